"""Node ids for several agents of one group on one host: HOST, HOST.2, HOST.3 and so on.

A lock file per name decides, in a folder that only this user can write to. The kernel gives the lock up when the
agent ends, however it ends, so an agent that is started again gets its name back. Containers with one host name but
folders of their own are different hosts, between which only the server can tell.
"""

import contextlib
import hashlib
import itertools
import os
import socket
import stat
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from hetagent.node.scratch import locked
from hetrdzv.protocol.texts.ids import is_id


def host_name() -> str:
    """The name of this host, which is the node id unless another one is given."""
    name = socket.gethostname()
    if not is_id(name):
        raise ValueError(f"this host's name, {name!r}, cannot be a node id")
    return name


class Name:
    """A node id that no other agent on this host has in the same group.

    Attributes:
        notes: what a person should know of it.
        release: lets another agent have the name. Happens by itself when nobody keeps this object.
    """

    def __init__(self, node_id: str, notes: Sequence[str] = (), lock: tuple[Path, int] | None = None) -> None:
        self.node_id = node_id
        self.notes = notes
        self.release: Callable[[], object] = lambda: None
        if lock is not None:
            self.release = finalizer = weakref.finalize(self, _unlock, *lock)
            finalizer.atexit = False  # the kernel sees to that, and a fork must not give the name away


def _unlock(path: Path, fd: int) -> None:
    with contextlib.suppress(OSError):
        path.unlink()  # still locked, so nobody else's yet
    os.close(fd)


def take(host: str, group: str, servers: Sequence[str]) -> Name:
    """The first of HOST, HOST.2, HOST.3, ... that no other agent of this user has in a group.

    Where no lock can be taken (no folder can be made), HOST itself: a server refuses the second agent then.
    """
    key = hashlib.sha256("\0".join([group, *sorted(set(servers))]).encode()).hexdigest()[:16]
    try:
        folder = _folder()
        for number in itertools.count(1):
            name = host if number == 1 else f"{host}.{number}"
            path = folder / f"{key}.{name}"
            if (fd := locked(path, os.O_RDWR | os.O_CREAT)) is not None:
                note = f"this host already has an agent of group '{group}', so this one is node '{name}'"
                return Name(name, [note] if number > 1 else [], (path, fd))
    except OSError:
        pass
    return Name(host)


def _folder() -> Path:
    """A folder on this host that only this user can write to."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"hetagent-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    stats = os.lstat(folder)
    if not stat.S_ISDIR(stats.st_mode) or stats.st_uid != os.getuid() or stats.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder
