"""Private folders, removed by the agent that made them, or by the next agent here if that one was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Differs from host to host and from boot to boot: TMPDIR may be shared by hosts that do not share locks."""

MAX_PARENT = 60
"""The longest name of a folder with folders that have sockets (bytes): the kernel takes 107 for a socket's."""


def lock_folder(path: Path) -> int | None:
    """Lock a folder; returns the descriptor that holds the lock, None: another one does, or the path is gone.

    The kernel gives the lock up when this process ends, however it ends.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def find_socket_parent() -> Path:
    """TMPDIR, or /tmp if the names of sockets in a folder there would be too long."""
    parents = Path(tempfile.gettempdir()), Path("/tmp")
    fits = (each for each in parents if len(os.fsencode(each)) <= MAX_PARENT and os.access(each, os.W_OK))
    return next(fits, parents[0])


class ScratchFolder:
    """A folder that is locked as long as this process lives; one without a lock belongs to nobody.

    Attributes:
        path: its path, which is short, since names of sockets must be.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        self._lock: int | None = None
        while self._lock is None:  # another agent may remove it before it is locked
            self.path = Path(tempfile.mkdtemp(prefix=make_boot_prefix(prefix), dir=parent))
            try:
                self._lock = lock_folder(self.path)
            except OSError:  # a file system without locks is never swept
                return

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_stale_folders(prefix: str, parent: Path | None = None, unused_s: float = 0.0) -> None:
    """Remove what killed agents of this user left behind, if nothing has changed in it for so long (seconds)."""
    for path in (parent or Path(tempfile.gettempdir())).glob(f"{make_boot_prefix(prefix)}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid != os.geteuid():
                continue
            inside = (path, *path.glob("*"), *path.glob("*/*")) if unused_s else ()
            if time.time() < max((os.lstat(each).st_mtime for each in inside), default=0.0) + unused_s:
                continue
            if (lock := lock_folder(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def make_boot_prefix(prefix: str) -> str:
    """The prefix with a mark of this host and its current boot."""
    return f"{prefix}{BOOT.read_text().strip()[:8]}_"
