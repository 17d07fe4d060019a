"""When a node tells the server what it holds while a round runs, and what is to be kept by what that answers: pure."""

from dataclasses import replace

from hetrdzv.protocol.rooms.snapshots import Chosen, Holdings, SnapshotsReply, Stamp

PAUSE_S = 1.0
"""How long after the server was told it is told again (seconds)."""

ASKS = 5
"""How often the server is asked for what to copy of a sharded snapshot: the other node may not have it yet."""

LOOK_S = 5.0
"""How often it is asked at most whether there is news, by few nodes (seconds)."""

MOST_PER_S = 100.0
"""How many nodes ask it that each second at most (1/s)."""


class Declaring:
    """What this node has told, and heard.

    Attributes:
        reply: what was heard last in this round, but for what to copy.
    """

    def __init__(self) -> None:
        self.reply = SnapshotsReply()
        self._told = Holdings()
        self._nnodes = 1
        self._safe: Stamp | None = None  # the newest that outlives any node, as far as is known
        self._began: Stamp | None = None  # from which the round began
        self._asks = 0  # how often the server may still be asked for what to copy
        self._not_before = 0.0

    def begin(self, chosen: Chosen | None, nnodes: int) -> None:
        """A round begins, from a snapshot or from none."""
        self._nnodes = nnodes
        self.reply = SnapshotsReply(every=self.reply.every)
        in_memory = chosen is not None and not chosen.on_disk
        self._began = (
            Stamp(round=chosen.round, step=chosen.step) if chosen is not None and in_memory else None
        )
        if self._safe is not None and (chosen is None or self._safe.newness > (chosen.step, chosen.round)):
            self._safe = None  # it is not held any more, or not to be used
        if self._began is not None and chosen is not None and chosen.sharded:
            self._asks = ASKS  # others may have what lives once

    @property
    def kept(self) -> tuple[Stamp, ...]:
        """What is not to be overwritten: what outlives any node, and what the round began from until that does."""
        safe, began = self._safe, self._began
        if safe is not None and began is not None and began.newness <= safe.newness:
            began = None
        return tuple(stamp for stamp in (safe, began) if stamp is not None)

    def began_from(self, stamp: Stamp) -> bool:
        """Whether the round began from a snapshot."""
        return stamp == self._began

    def tells_at(self, holdings: Holdings, *, to_disk: bool) -> float | None:
        """When the server has to be told (monotonic seconds); None: it knows all.

        Args:
            holdings: what this node holds.
            to_disk: snapshots are written to disk.
        """
        if holdings != self._told or self._asks > 0:
            return self._not_before
        waits = self._nnodes > 1 and (to_disk or len(self.kept) > 1)
        return self._not_before - PAUSE_S + asks_every_s(self._nnodes) if waits else None

    def tell(self, holdings: Holdings, now: float) -> None:
        """The server is about to be told."""
        if holdings == self._told:
            self._asks = max(0, self._asks - 1)
        else:
            lives_once = self._nnodes > 1 and any(each.sharded for each in holdings.held)
            self._asks = ASKS if lives_once else 0
        self._not_before = now + PAUSE_S

    def told(self, holdings: Holdings) -> None:
        """This is what it is told: the newest when the message leaves."""
        self._told = holdings

    def hear(self, reply: SnapshotsReply) -> bool:
        """Its answer; returns whether it says something new."""
        self._safe = reply.complete or self._safe
        before, self.reply = self.reply, replace(reply, copy=None)
        return before != self.reply


def asks_every_s(nnodes: int) -> float:
    """How often each node asks the server whether there is news, unless it has some itself (seconds)."""
    return max(LOOK_S, nnodes / MOST_PER_S)
