"""Private folders, removed by the agent that made them, or by the next agent here if that one was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Differs from host to host and from boot to boot: TMPDIR may be shared by hosts that do not share locks."""


def nameless() -> int:
    """A file without a name, open for reading and writing.

    Raises:
        OSError: there is no room for it.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hetagent", os.MFD_CLOEXEC)
    with (
        tempfile.TemporaryFile() as file
    ):  # Pythons that were built for old systems do not have it (conda-forge's)
        return os.dup(file.fileno())


class Folder:
    """A folder that is locked as long as this process lives; one without a lock belongs to nobody.

    Args:
        prefix: what its name begins with, which says what it is for.
        parent: where to make it; None: in TMPDIR.

    Attributes:
        path: its path, which is short, since names of sockets must be.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=marked_prefix(prefix), dir=parent))
            with contextlib.suppress(FileNotFoundError):  # another agent removed it before it was locked
                self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                with contextlib.suppress(OSError):  # a file system without locks is never swept
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
    """Remove what killed agents of this user left behind.

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
    """The prefix with a mark of this host and its current boot."""
    return f"{prefix}{BOOT.read_text().strip()[:8]}_"
