"""Looks for announcements in a thread beside the run loop."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from hetagent.job.leaving import Announcement
from hetagent.job.room import Room

LOOK_S = 2.0
"""How long between two looks (seconds)."""

LEAD_S = 120.0
"""How long before its machine goes a node leaves at most (seconds), unless its grace is longer."""


class Source(Protocol):
    """Where announcements come from. `ask` is called in the thread of `Announcements`, the others in any."""

    def ask(self) -> Announcement | None:
        """What is announced; None: nothing, or it could not be asked."""

    def kept(self) -> Collection[int]:
        """The sessions of its processes, which outlive rounds."""

    def close(self) -> None:
        """The agent ends."""


class Announcements(Room):
    """Has this node leave in time when its machine is taken away.

    Args:
        tell: shows one line to the person at the terminal.
        grace_s: how long this node has from a scheduler's signal until it has to be gone (seconds).
        look_s: how long between two looks (seconds).
    """

    def __init__(
        self,
        sources: Sequence[Source],
        tell: Callable[[str], None],
        grace_s: float,
        look_s: float = LOOK_S,
    ) -> None:
        self._sources = sources
        self._tell = tell
        self._lead_s = max(LEAD_S, grace_s)
        self._look_s = look_s
        self._over = threading.Event()
        self._announcement: Announcement | None = None
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        threading.Thread(target=self._watch, name="hetagent-announced", daemon=True).start()

    def kept(self) -> Collection[int]:
        return [session for source in self._sources for session in source.kept()]

    def fileno(self) -> int:
        return self._wake_read.fileno()

    def look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(16)

    def announces(self) -> Announcement | None:
        announcement, self._announcement = self._announcement, None
        return announcement

    def close(self) -> None:
        self._over.set()
        for source in self._sources:
            source.close()
        self._wake_read.close()

    def _watch(self) -> None:
        early = ""
        with self._wake_write:
            while not self._over.is_set():
                for announcement in filter(None, (source.ask() for source in self._sources)):
                    left_s = 0.0 if announcement.gone_at is None else announcement.gone_at - time.monotonic()
                    if left_s <= self._lead_s:
                        self._announcement = announcement
                        with contextlib.suppress(OSError):  # the agent has ended meanwhile
                            self._wake_write.send(b"!")
                        return
                    if announcement.why != early:
                        early = announcement.why
                        self._tell(f"{early} in {left_s:.0f} s: leaving {self._lead_s:.0f} s before")
                self._over.wait(self._look_s)
