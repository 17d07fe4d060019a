"""When a node reports to the server what it holds while a round runs, and what must not be overwritten: pure."""

from hetagent.snapshots.folder import SnapshotId
from hetrdzv.protocol.snapshots import HeldSnapshot, Holdings, SnapshotsReply, StartSnapshot
from hetrdzv.protocol.snapshots import SnapshotId as ServerStamp

PAUSE_S, NEWS_PAUSE_S = 0.2, 1.0
"""Least pause between two reports of a node, and the longest if it has news (seconds)."""

MOST_PER_S = 100.0
"""Reports of all nodes together at most, unless they have news (1/s)."""


def snapshot_id_of(one: HeldSnapshot | StartSnapshot | ServerStamp) -> SnapshotId:
    """Which snapshot in memory it is."""
    return SnapshotId(one.round, one.step)


class SnapshotReporter:
    """What this node has reported, and what the server has answered."""

    def __init__(self) -> None:
        # the newest known to outlive any other node, or that this one has all of
        self.safe: SnapshotId | None = None
        self._fallback: SnapshotId | None = None  # the newest that is safe, or that a round began from before
        self._pending: SnapshotId | None = None  # the newest that was reported, and lives once
        self._reported = Holdings()
        self._round, self._nnodes = 0, 1
        self._reported_at = -NEWS_PAUSE_S

    def begin(self, number: int, nnodes: int, chosen: StartSnapshot | None, joined: Holdings) -> None:
        """A round begins, from a snapshot or from none; the server knows what this node had as it joined."""
        self._round, self._nnodes, self._reported = number, nnodes, joined
        began = snapshot_id_of(chosen) if chosen is not None and not chosen.on_disk else None
        if began is None or (self.safe is not None and self.safe > began):
            self.safe = None  # it is not held any more, or not to be used
        is_older = began is not None and self._fallback is not None and self._fallback < began
        self._fallback = self._fallback if is_older else began
        self._pending = began
        if self.safe == began or chosen is None or not chosen.sharded or nnodes == 1:
            self._mark_safe(began)

    def _mark_safe(self, stamp: SnapshotId | None) -> None:
        self.safe = self._fallback = stamp
        if self._pending is not None and (stamp is None or self._pending <= stamp):
            self._pending = None

    @property
    def retained(self) -> tuple[SnapshotId, ...]:
        """Not to be overwritten: what is safe or a round began from, and what others may know to be safe."""
        return tuple(dict.fromkeys(filter(None, (self._fallback, self._pending))))

    def due_at(self, holdings: Holdings) -> float | None:
        """When to report (monotonic seconds); None: the server knows all."""
        pause_s = max(PAUSE_S, self._nnodes / MOST_PER_S)
        if holdings != self._reported:
            return self._reported_at + min(NEWS_PAUSE_S, pause_s)
        # Until what lives once is safe this node asks whether it is, and what to copy.
        return self._reported_at + pause_s if self._pending is not None else None

    def protect(self, holdings: Holdings) -> None:
        """The server is about to know of this, and may tell others that it is safe: workers have to know first."""
        for held in holdings.held:
            stamp = snapshot_id_of(held)
            if held.round < self._round or (self.safe is not None and stamp <= self.safe):
                continue
            if held.sharded and self._nnodes > 1:
                self._pending = max(self._pending or stamp, stamp)
            elif held.whole and (not held.sharded or len(held.ranks) == held.world_size):
                self._mark_safe(stamp)

    def on_report(self, now: float, holdings: Holdings) -> None:
        """The server is told."""
        self._reported = holdings
        self.postpone(now)

    def postpone(self, now: float) -> None:
        """Report after the next pause."""
        self._reported_at = now

    def on_reply(self, reply: SnapshotsReply) -> None:
        """The server's answer."""
        if reply.complete is not None and (self.safe is None or snapshot_id_of(reply.complete) > self.safe):
            self._mark_safe(snapshot_id_of(reply.complete))
