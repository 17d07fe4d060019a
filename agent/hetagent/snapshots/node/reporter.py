"""When a node reports to the server what it holds while a round runs, and what must not be overwritten: pure."""

from hetagent.snapshots.folder import Stamp
from hetrdzv.protocol.snapshots import Chosen, Held, Holdings, SnapshotsReply
from hetrdzv.protocol.snapshots import Stamp as ServerStamp

PAUSE_S, LONGEST_PAUSE_S = 0.2, 1.0
"""Pause between two reports of a node, among few nodes and among many (seconds)."""

ASK_S = 1.0
"""How often each of few nodes asks whether what lives once is safe, and what to copy (seconds)."""

MOST_PER_S = 100.0
"""Reports of all nodes together at most, until each has its longest pause (1/s)."""


def stamp_of(one: Held | Chosen | ServerStamp) -> Stamp:
    """Which snapshot in memory it is."""
    return Stamp(one.round, one.step)


class SnapshotReporter:
    """What this node has reported, and what the server has answered.

    Attributes:
        safe: the newest snapshot that outlives any other node, or that this node has all of, as far as is known.
    """

    def __init__(self) -> None:
        self.safe: Stamp | None = None
        self._reported = Holdings()
        self._round, self._nnodes = 0, 1
        self._began: Stamp | None = None  # from which the round began
        self._before: Stamp | None = None  # what was safe before that is
        self._pending: Stamp | None = None  # the newest that was reported, and lives once
        self._not_before = 0.0

    def begin(self, number: int, nnodes: int, chosen: Chosen | None) -> None:
        """A round begins, from a snapshot or from none."""
        self._round, self._nnodes = number, nnodes
        before = self.safe or self._before or self._began
        self._began = stamp_of(chosen) if chosen is not None and not chosen.on_disk else None
        if self.safe is not None and (self._began is None or self.safe > self._began):
            self.safe = None  # it is not held any more, or not to be used
        lives_once = chosen is not None and chosen.sharded and nnodes > 1
        self._pending = self._began if lives_once and self.safe != self._began else None
        if self._pending is None:
            self.safe = self._began or self.safe
        self._before = before if before is not None and _is_newer(self._began or before, before) else None

    @property
    def retained(self) -> tuple[Stamp, ...]:
        """Not to be overwritten: what is safe or the round began from, and what others may know to be safe."""
        first = self.safe or self._before or self._began
        return tuple(dict.fromkeys(stamp for stamp in (first, self._pending) if stamp is not None))

    def due_at(self, holdings: Holdings) -> float | None:
        """When to report (monotonic seconds); None: the server knows all."""
        if holdings != self._reported:
            return self._not_before
        if self._pending is None:
            return None
        return self._not_before + asks_every_s(self._nnodes) - reports_every_s(self._nnodes)

    def retain(self, holdings: Holdings) -> None:
        """The server is about to know of this, and may tell others that it is safe: workers have to know first."""
        for held in holdings.held:
            stamp = stamp_of(held)
            if held.round < self._round or not _is_newer(stamp, self.safe):
                continue
            if held.sharded and self._nnodes > 1:
                self._pending = stamp if _is_newer(stamp, self._pending) else self._pending
            elif held.whole and (not held.sharded or len(held.ranks) == held.world_size):
                self.safe = stamp

    def reported(self, now: float, holdings: Holdings | None) -> None:
        """The server is told; None: it cannot be now."""
        self._reported = self._reported if holdings is None else holdings
        self._not_before = now + reports_every_s(self._nnodes)

    def on_reply(self, reply: SnapshotsReply) -> bool:
        """The server's answer; returns whether workers have to know."""
        before = self.safe, self.retained
        if reply.complete is not None and _is_newer(stamp_of(reply.complete), self.safe):
            self.safe = stamp_of(reply.complete)
        if self._pending is not None and not _is_newer(self._pending, self.safe):
            self._pending = None
        return before != (self.safe, self.retained)


def _is_newer(stamp: Stamp, than: Stamp | None) -> bool:
    return than is None or stamp > than


def reports_every_s(nnodes: int) -> float:
    """Least pause between two reports of a node (seconds)."""
    return min(LONGEST_PAUSE_S, max(PAUSE_S, nnodes / MOST_PER_S))


def asks_every_s(nnodes: int) -> float:
    """How often each node asks whether there is news, unless it has some itself (seconds)."""
    return max(ASK_S, nnodes / MOST_PER_S)
