"""Small file systems for tests that fill a disk."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    """Mount a file system of `kib` KiB for the length of a block.

    Args:
        folder: where it is mounted; must not exist yet.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system: sudo make test")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "hetrdzv-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount does not work here ({done.stderr.strip()}): try outside a container")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill a disk; returns the file that takes the space."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return filler
