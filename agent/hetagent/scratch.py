"""Private folders: removed by the agent that made them, or by the next one here where that one was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Another one on every host, and after every start of it: where TMPDIR is shared, locks may not be."""


class Folder:
    """A folder that is locked for as long as this process lives; what is not locked is nobody's any more.

    Args:
        prefix: what it is for; its name begins with that.
        parent: where it is; None: in TMPDIR.

    Attributes:
        path: its path; short, since names of sockets must be.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=marked_prefix(prefix), dir=parent))
            with contextlib.suppress(FileNotFoundError):  # another agent swept it away before the lock
                self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                with contextlib.suppress(OSError):  # a file system without locks, which nobody sweeps
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._lock)

    def close(self) -> None:
        """Remove it."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def sweep(prefix: str, parent: Path | None = None) -> None:
    """Remove what agents of this user that were killed left behind.

    Args:
        prefix, parent: as `Folder`'s.
    """
    for path in (parent or Path(tempfile.gettempdir())).glob(f"{marked_prefix(prefix)}*"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def marked_prefix(prefix: str) -> str:
    """The prefix with a mark of this start of this host."""
    return f"{prefix}{BOOT.read_text().strip()[:8]}_"
