"""Reads torch's shared libraries from a file server, in file order, before their pages are asked for one by one.

An import maps them and touches a fifth of their pages in an order of its own. A file server sends these one by one,
0.35 MB/s where it sends 13 MB/s of a file in order (Garden-AI/rootstock#167). Local disks are left to the import:
reading everything beside it takes longer (benchmarks/cold_import.py).
"""

import contextlib
import os
import threading
from importlib.util import find_spec
from pathlib import Path

REMOTE = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "ceph",
    "fuse",
    "gpfs",
    "beegfs",
    "9p",
    "afs",
    "virtiofs",
    "panfs",
    "wekafs",
)
"""How the names of file systems on other machines begin."""

LOCAL = "fuseblk"
"""A file system on a local disk whose name begins like that."""

PROBE_EVERY = 1 << 20
"""A file is looked at in pieces of this size (bytes): the first page of a piece says if the piece is in memory."""

CHUNK = 8 << 20
"""How much is read at once (bytes)."""


def read_ahead(package: str = "torch") -> threading.Thread | None:
    """Start to read an installed package's shared libraries in the background; the package is not imported.

    Returns:
        the thread; None if there is nothing to read, or it is on a local disk.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "lib"
    files = sorted(folder.glob("*.so*"), key=lambda path: path.name)
    if not files or not is_remote(folder):
        return None
    thread = threading.Thread(target=_read_all, args=(files,), name="read-ahead", daemon=True)
    thread.start()
    return thread


def is_remote(folder: Path) -> bool:
    """Whether a folder is on a file server."""
    import psutil  # cli.py says what to install where it is not there

    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    place = folder.resolve()
    mount = next((path for path in (place, *place.parents) if path in mounts), None)
    return mount is not None and mounts[mount].startswith(REMOTE) and mounts[mount] != LOCAL


def _read_all(files: list[Path]) -> None:
    for path in files:
        with contextlib.suppress(OSError):  # the import will say what is wrong
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                read_missing(descriptor)
            finally:
                os.close(descriptor)


def read_missing(descriptor: int) -> int:
    """Read the pieces of a file that are not in memory; returns how many bytes were read."""
    read = 0
    buffer = bytearray(CHUNK)
    for offset in range(0, os.fstat(descriptor).st_size, PROBE_EVERY):
        if not _is_resident(descriptor, offset):
            read += os.preadv(descriptor, [memoryview(buffer)[:PROBE_EVERY]], offset)
    return read


def _is_resident(descriptor: int, offset: int) -> bool:
    try:
        os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # this file system cannot say
        return True
    return True
