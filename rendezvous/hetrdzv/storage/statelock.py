"""Locks a state file against a second server, and remembers beside it how many commits it has."""

import contextlib
import fcntl
import os
import re
from pathlib import Path

from hetrdzv.protocol.errors import StorageError

_CONTENT = re.compile(rb"\s*(\d+)\s+(\d*)")


class StateLock:
    """The right to use a state file, which the kernel releases however the process ends (flock).

    The lock file has our pid, for people, and the number of commits. It is written after each commit and not synced:
    after a crash the state file may be ahead of it, never behind.

    Attributes:
        path: the lock file, `PATH.lock`.
    """

    def __init__(self, guarded: Path) -> None:
        self.path = guarded.with_name(f"{guarded.name}.lock")
        self._guarded = guarded
        self._lock: int | None = None

    def take(self) -> int:
        """Take the lock if it is not ours yet; returns how many commits were noted last.

        Raises:
            StorageError: another server has the file.
        """
        lock = self._lock
        if lock is None:
            lock = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            content = _CONTENT.match(os.pread(lock, 100, 0))
            os.close(lock)
            if not isinstance(error, BlockingIOError):
                raise
            holder = f"pid {int(content[1])}" if content is not None else "its pid is unknown"
            raise StorageError(
                f"state file {self._guarded} is in use by another hetserver ({holder}): "
                f"stop that one, or name another file with --store"
            ) from error
        self._lock = lock
        content = _CONTENT.match(os.pread(lock, 100, 0))
        commits = int(content[2] or 0) if content is not None else 0
        self.note(commits)
        return commits

    def note(self, commits: int) -> None:
        """Remember how many commits the state file has."""
        assert self._lock is not None
        with contextlib.suppress(OSError):  # a full disk: it is behind then, which it may be
            os.pwrite(self._lock, b"%-10d %020d\n" % (os.getpid(), commits), 0)

    def release(self) -> None:
        """Let another server use the state file."""
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            os.close(descriptor)
