"""Node ids for several agents of one group on one host: HOST, HOST.2, HOST.3 and so on.

A lock file per name decides, in a folder that only this user can write to. The kernel gives the lock up when the
agent ends, however it ends, so an agent that is started again gets its name back. Containers with one host name but
folders of their own are different hosts, between which only the server can tell.
"""

import contextlib
import fcntl
import hashlib
import itertools
import os
import socket
import stat
import weakref
from collections.abc import Sequence
from pathlib import Path

from hetrdzv.protocol.ids import is_id


def host_name() -> str:
    """The name of this host, which is the node id unless another one is given.

    Raises:
        ValueError: it cannot be a node id.
    """
    name = socket.gethostname()
    if not is_id(name):
        raise ValueError(f"this host's name, {name!r}, cannot be a node id")
    return name


class Name:
    """A node id that no other agent on this host has in the same group, until `release` or the end of this process.

    Args:
        node_id: the name.
        notes: what to show at the terminal.
        lock: path and descriptor of the lock file; None: there is none.
    """

    def __init__(self, node_id: str, notes: Sequence[str] = (), lock: tuple[Path, int] | None = None) -> None:
        self.node_id = node_id
        self.notes = notes
        self.release = weakref.finalize(self, _let_go, *lock, os.getpid()) if lock is not None else _nothing
        """Let another agent have the name; once is enough. Happens by itself when nobody keeps this object."""
        _held.add(self)


def _nothing() -> None:
    pass


def _let_go(path: Path, fd: int, owner: int) -> None:
    if os.getpid() == owner:  # a fork has the descriptor, but not the name
        with contextlib.suppress(OSError):
            path.unlink()  # still locked, so nobody else's yet
    os.close(fd)


_held: "weakref.WeakSet[Name]" = weakref.WeakSet()


def _after_fork() -> None:
    for name in list(_held):
        name.release()


os.register_at_fork(after_in_child=_after_fork)  # a worker that outlives its agent must not keep the name


def take(host: str, group: str, servers: Sequence[str]) -> Name:
    """The first of HOST, HOST.2, HOST.3, ... that no other agent of this user has in a group.

    Where no lock can be taken (no folder can be made), HOST itself: a server refuses the second agent then.

    Args:
        host: the name of this host.
        group: the group's id.
        servers: URLs of the servers that the group is on.
    """
    key = hashlib.sha256("\0".join([group, *sorted(set(servers))]).encode()).hexdigest()[:16]
    try:
        folder = _folder()
        for number in itertools.count(1):
            name = host if number == 1 else f"{host}.{number}"
            path = folder / f"{key}.{name}"
            if (fd := _lock(path)) is not None:
                note = f"this host already has an agent of group '{group}', so this one is node '{name}'"
                return Name(name, [note] if number > 1 else [], (path, fd))
    except OSError:
        pass
    return Name(host)


def _lock(path: Path) -> int | None:
    """Lock a file that may not exist yet; None: somebody else has it locked.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        os.close(fd)  # removed by its last owner between our two calls


def _folder() -> Path:
    """A folder on this host that only this user can write to: in XDG_RUNTIME_DIR, else in /tmp.

    Raises:
        OSError: somebody else has made it, or it cannot be made.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and _is_private(Path(runtime)):
        folder = Path(runtime) / "hetagent"
    else:
        folder = Path("/tmp") / f"hetagent-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(folder):
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _is_private(folder: Path) -> bool:
    try:
        stats = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(stats.st_mode) and stats.st_uid == os.getuid() and not stats.st_mode & 0o077
