"""Private folders for one round: removed after it, or by the next agent here where this one was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "hetmpi_"
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Another one on every host, and after every start of it: where TMPDIR is shared, locks may not be."""

MEMORY = Path("/dev/shm")


class Scratch:
    """A folder for sockets and small files, and one for shared memory, which may be the same.

    Each is locked for as long as this process lives; what is not locked is nobody's any more.

    Attributes:
        files, memory: their paths; short, since names of sockets must be.
    """

    def __init__(self) -> None:
        self._locks: list[int] = []
        self.files = self.memory = self._make(Path(tempfile.gettempdir()))
        with contextlib.suppress(OSError):  # it may be full, or not be there
            self.memory = self._make(MEMORY)

    def close(self) -> None:
        """Remove them."""
        for path in {self.files, self.memory}:
            shutil.rmtree(path, ignore_errors=True)
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()

    def _make(self, parent: Path) -> Path:
        while True:
            path = Path(tempfile.mkdtemp(prefix=_prefix(), dir=parent))
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():  # else another agent swept it away between the two
                self._locks.append(lock)
                return path
            os.close(lock)


def sweep() -> None:
    """Remove what agents of this user that were killed left behind."""
    for parent in {Path(tempfile.gettempdir()), MEMORY}:
        for path in parent.glob(f"{_prefix()}*"):
            with contextlib.suppress(OSError):
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if os.fstat(lock).st_uid == os.geteuid():
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lock)


def _prefix() -> str:
    return f"{PREFIX}{BOOT.read_text().strip()[:8]}_"
