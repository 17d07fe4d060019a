"""Locks a state file against a second server, and remembers beside it how many commits it has."""

import contextlib
import fcntl
import os
import re
from pathlib import Path
from typing import NamedTuple

from hetrdzv.protocol.errors import StorageError

_CONTENT = re.compile(rb"\s*(\d+)\s+(?:([0-9a-f]+) (\d+)\n)?")


class Marker(NamedTuple):
    """Which state file it is (a copy has the same name), and how many commits it has got."""

    name: str
    commits: int


class StateLock:
    """The right to use a state file, which the kernel releases however the process ends (flock), and its marker.

    The lock file has our pid, for people, and the marker. It is written after each commit and not synced: after a crash
    the state file may be ahead of it, never behind.

    Attributes:
        path: the lock file, `PATH.lock`.
    """

    def __init__(self, guarded: Path) -> None:
        self.path = guarded.with_name(f"{guarded.name}.lock")
        self._guarded = guarded
        self._lock: int | None = None

    def take(self) -> Marker | None:
        """Take the lock if it is not ours yet; returns what was noted last, None if nothing was.

        Raises:
            StorageError: another server has the file.
        """
        lock = self._lock
        if lock is None:
            lock = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
        content = _CONTENT.match(os.pread(lock, 100, 0))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
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
        marker = Marker(content[2].decode(), int(content[3])) if content is not None and content[2] else None
        self.note(marker)
        return marker

    def note(self, marker: Marker | None) -> None:
        """Remember what the state file holds now."""
        assert self._lock is not None
        text = b"%-10d\n" % os.getpid()
        if marker is not None:
            text += b"%s %020d\n" % (marker.name.encode(), marker.commits)
        with contextlib.suppress(OSError):  # a full disk: it is behind then, which it may be
            os.pwrite(self._lock, text, 0)
            if marker is None:
                os.ftruncate(self._lock, len(text))

    def release(self) -> None:
        """Let another server use the state file."""
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            os.close(descriptor)
