"""Locks a state file against a second server, and remembers beside it how many commits it has.

Two advisory locks, which the kernel releases however the process ends: on a file next to the state file, which stays
when the state file is replaced; and on the state file itself, which a hard link shares. The latter is of the kind that
SQLite does not use (flock); its descriptor is open for as long as SQLite has the file open, since closing any
descriptor of a file drops SQLite's own locks (https://www.sqlite.org/howtocorrupt.html, 2.2).
"""

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hetrdzv.protocol.errors import StorageError

_CONTENT = re.compile(rb"\s*(\d+)\s+(?:([0-9a-f]+) (\d+)\n)?")


@dataclass(frozen=True, slots=True)
class Marker:
    """Which state file it is, and how old.

    Attributes:
        name: made with the file; a copy has the same.
        commits: how many it has got.
    """

    name: str
    commits: int


class StateLock:
    """The right to use a state file, and the marker beside it.

    The lock file has our pid, for people, and the marker. It is written after each commit and not synced: after a crash
    the state file may be ahead of it, never behind.

    Attributes:
        path: the lock file, `PATH.lock`.
    """

    def __init__(self, guarded: Path) -> None:
        self.path = guarded.with_name(f"{guarded.name}.lock")
        self._guarded = guarded
        self._lock: int | None = None
        self._state: int | None = None

    def take(self) -> Marker | None:
        """Take what is not taken yet; returns what was noted last, None if nothing was.

        Raises:
            StorageError: another server has the file, it is gone, or it has a second name.
        """
        if self._lock is None:
            self._lock = self._locked(self.path, os.O_CREAT)
        content = _CONTENT.match(os.pread(self._lock, 100, 0))
        marker = Marker(content[2].decode(), int(content[3])) if content is not None and content[2] else None
        if self._state is None:
            try:
                self._state = self._locked(self._guarded, os.O_CREAT if marker is None else 0)
            except FileNotFoundError:
                raise StorageError(
                    f"state file {self._guarded} is gone, but was used before: put it back, with its -wal. "
                    f"To begin with an empty state, remove {self.path} and start again"
                ) from None
        self.require_in_place()
        self.note(marker)
        return marker

    def note(self, marker: Marker | None) -> None:
        """Remember what the state file holds now."""
        assert self._lock is not None
        said = b"%-10d\n" % os.getpid()
        if marker is not None:
            said += b"%s %020d\n" % (marker.name.encode(), marker.commits)
        with contextlib.suppress(OSError):  # a full disk: it is behind then, which it may be
            os.pwrite(self._lock, said, 0)
            if marker is None:
                os.ftruncate(self._lock, len(said))

    def require_in_place(self) -> None:
        """Check that the state file that we have open is still found under its name, and under no other.

        Raises:
            StorageError: it is not; says what to do.
        """
        assert self._state is not None
        opened = os.fstat(self._state)
        if not same_file(self._guarded, opened):
            raise StorageError(
                f"state file {self._guarded} was removed or replaced while hetserver uses it: put it back, or stop "
                f"hetserver and restore a backup. No change is stored until then"
            )
        if opened.st_nlink > 1:
            raise StorageError(
                f"state file {self._guarded} has another name (a hard link), under which other changes could be "
                f"written: remove it (find {self._guarded.parent} -samefile {self._guarded}). "
                f"No change is stored until then"
            )

    def let_state_go(self) -> None:
        """Give up the state file; SQLite must not have it open any more."""
        if self._state is not None:
            descriptor, self._state = self._state, None
            os.close(descriptor)

    def release(self) -> None:
        """Give up everything."""
        self.let_state_go()
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            os.close(descriptor)

    def _locked(self, path: Path, flags: int) -> int:
        """A locked descriptor of a file."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            content = _CONTENT.match(os.pread(descriptor, 100, 0)) if path == self.path else None
            holder = f"pid {int(content[1])}" if content is not None else "under another name"
            os.close(descriptor)
            raise StorageError(
                f"state file {self._guarded} is in use by another hetserver ({holder}): "
                f"stop that one, or name another file with --store"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def same_file(path: Path, opened: os.stat_result) -> bool:
    """Whether a path leads to the file that was opened."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)
