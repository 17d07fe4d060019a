"""When a node reports to the server what it holds while a round runs, and what must not be overwritten: pure."""

from hetagent.snapshots.folder import SnapshotId
from hetrdzv.protocol.snapshots import HeldSnapshot, SnapshotInventory, SnapshotsReply, StartSnapshot
from hetrdzv.protocol.snapshots import SnapshotId as ServerStamp

PAUSE_S, NEWS_PAUSE_S = 0.2, 1.0
"""Least pause between two reports of a node, and the longest if it has news (seconds)."""

MOST_PER_S = 100.0
"""Reports of all nodes together at most, unless they have news (1/s)."""


def make_snapshot_id(one: HeldSnapshot | StartSnapshot | ServerStamp) -> SnapshotId:
    """Which snapshot in memory it is."""
    return SnapshotId(one.round, one.step)


class SnapshotReporter:
    """What this node has reported, and what the server has answered.

    Attributes:
        safe: the newest known to outlive any other node, or that this one has all of.
    """

    def __init__(self) -> None:
        self.safe: SnapshotId | None = None
        self._start_snapshot: SnapshotId | None = None  # what the round began from, in memory
        self._former: SnapshotId | None = None  # reported in an earlier round, and safe for all that is known
        self._reported_inventory = SnapshotInventory()
        self._round, self._nnodes = 0, 1
        self._last_report_at = -NEWS_PAUSE_S

    def begin(
        self, number: int, nnodes: int, chosen: StartSnapshot | None, joined: SnapshotInventory
    ) -> None:
        """A round begins, from a snapshot or from none; the server knows what this node had as it joined."""
        former = filter(None, (self._former, self.find_unsafe()))
        self._round, self._nnodes, self._reported_inventory = number, nnodes, joined
        start = make_snapshot_id(chosen) if chosen is not None and not chosen.on_disk else None
        self._start_snapshot = start
        self._former = max((one for one in former if start is not None and one < start), default=None)
        if nnodes == 1 or (chosen is not None and not chosen.sharded):
            self.safe = self._start_snapshot
        elif self._start_snapshot is None or (self.safe is not None and self.safe > self._start_snapshot):
            self.safe = None  # it is not held any more, or not to be used

    @property
    def retained(self) -> tuple[SnapshotId, ...]:
        """Not to be overwritten: what is safe, or may be, or the round began from; and what is not yet safe."""
        first = self.safe or self._former or self._start_snapshot
        return tuple(dict.fromkeys(filter(None, (first, self.find_unsafe()))))

    def find_unsafe(self) -> SnapshotId | None:
        """The newest that was reported, or the round began from, if it is not known to be safe; None: it is."""
        held = [one for one in self._reported_inventory.held if one.round == self._round and one.sharded]
        reported = map(make_snapshot_id, held if self._nnodes > 1 else ())
        newest = max(filter(None, (self._start_snapshot, *reported)), default=None)
        return newest if newest is not None and (self.safe is None or newest > self.safe) else None

    def due_at(self, inventory: SnapshotInventory) -> float | None:
        """When to report (monotonic seconds); None: the server knows all."""
        pause_s = max(PAUSE_S, self._nnodes / MOST_PER_S)
        if inventory != self._reported_inventory:
            return self._last_report_at + min(NEWS_PAUSE_S, pause_s)
        # Until what lives once is safe this node asks whether it is, and what to copy.
        return self._last_report_at + pause_s if self.find_unsafe() is not None else None

    def begin_report(self, now: float, inventory: SnapshotInventory) -> None:
        """The server is about to know this, and may tell others that it is safe: workers have to know first."""
        self._reported_inventory, self._last_report_at = inventory, now
        for held in inventory.held:
            is_alone = self._nnodes == 1 and len(held.ranks) == held.world_size
            has_all = not held.sharded or is_alone
            if held.round == self._round and held.whole and has_all:
                self._mark_safe(make_snapshot_id(held))

    def cancel_report(self) -> None:
        """Workers could not be told: report after the next pause."""
        self._reported_inventory = SnapshotInventory()

    def on_reply(self, reply: SnapshotsReply) -> None:
        """The server's answer."""
        self._former = None
        if reply.complete is not None:
            self._mark_safe(make_snapshot_id(reply.complete))

    def _mark_safe(self, stamp: SnapshotId) -> None:
        if self.safe is None or stamp > self.safe:
            self.safe = stamp
