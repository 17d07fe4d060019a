"""When a node tells the server what it holds while a round runs, and what is to be kept by what that answers: pure."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hetrdzv.protocol.rooms.snapshots import Chosen, Holdings, SnapshotsReply, Stamp

PAUSE_S, LONGEST_PAUSE_S = 0.2, 1.0
"""How long after the server was told it is told again, of a few nodes and of many (seconds)."""

ASKS_S = 5.0
"""For how long the server is asked again what to copy of a sharded snapshot, and which one is safe: other nodes may not
have it yet (seconds)."""

KEPT_S = 30.0
"""How long what was told is kept at least although the server does not say that it is safe (seconds)."""

LOOK_S = 5.0
"""How often it is asked at most whether there is news, by few nodes (seconds)."""

MOST_PER_S = 100.0
"""How many nodes ask that each second at most; as many of a few tell it something (1/s)."""


class Declaring:
    """What this node has told, and heard.

    Attributes:
        reply: what was heard last in this round, but for what to copy.
    """

    def __init__(self) -> None:
        self.reply = SnapshotsReply()
        self._told = Holdings()
        self._number, self._nnodes = 0, 1
        self._safe: Stamp | None = None  # the newest that outlives any other node, as far as is known
        self._began: Stamp | None = None  # from which the round began
        self._before: Stamp | None = (
            None  # the newest that this node had before that: perhaps nobody else has its part
        )
        self._since: dict[Stamp, float] = {}  # when what this node holds was told first
        self._may_be: tuple[Stamp, ...] = ()  # what may be safe, unknown to this node, the oldest first
        self._asks_until = 0.0
        self._not_before = 0.0

    def begin(self, number: int, nnodes: int, chosen: Chosen | None, holdings: Holdings, now: float) -> None:
        """A round begins, from a snapshot or from none.

        Args:
            holdings: what this node said that it holds as it joined.
        """
        self._number, self._nnodes = number, nnodes
        self.reply = SnapshotsReply()
        began = None
        if chosen is not None:
            other = chosen.origin if chosen.on_disk and chosen.origin != holdings.origin else None
            began = Stamp(round=chosen.round, step=chosen.step, origin=other)
        self._began = began if chosen is not None and not chosen.on_disk else None
        if self._safe is not None and (began is None or self._safe.newness > began.newness):
            self._safe = None  # it is not held any more, or not to be used
        shards = _stamps(replace(holdings, held=tuple(held for held in holdings.held if held.sharded)))
        before = [one for one in shards if began is not None and one.newness < began.newness]
        if began is not None:
            self._safe = _newest(self._safe, *_complete_here(holdings, began))
        self._before = _newest(*before)
        if self._began is not None and chosen is not None and chosen.sharded:
            self._asks_until = now + ASKS_S  # others may have what lives once
        self._may_be = _stamps(holdings)  # the server knows of it, and others may have copies
        self.keep(holdings, now)

    @property
    def kept(self) -> tuple[Stamp, ...]:
        """What is not to be overwritten: what outlives any node; and until something newer does, what may by now.

        That is what the round began from, and what the server was told of: it has perhaps told others, which have
        dropped what was safe before. Where nothing is known to be safe, what the node had before that comes last.
        """
        may_be = [
            stamp
            for stamp in (self._began, *self._may_be)
            if stamp is not None and (self._safe is None or stamp.newness > self._safe.newness)
        ]
        if self._safe is not None:
            return (self._safe, *may_be)
        before = self._before
        return (*may_be, before) if before is not None and before not in may_be else tuple(may_be)

    def began_from(self, stamp: Stamp) -> bool:
        """Whether the round began from a snapshot."""
        return stamp == self._began

    def tells_at(self, holdings: Holdings, *, to_disk: bool) -> float | None:
        """When the server has to be told (monotonic seconds); None: it knows all.

        Args:
            holdings: what this node holds.
            to_disk: snapshots are written to disk.
        """
        if holdings != self._told or self._not_before < self._asks_until:
            return self._not_before
        waits = self._nnodes > 1 and (to_disk or len(self.kept) > 1)
        pause_s = asks_every_s(self._nnodes) - tells_every_s(self._nnodes)
        return self._not_before + pause_s if waits else None

    def keep(self, holdings: Holdings, now: float) -> None:
        """The server is about to know that this node holds this; whoever might overwrite it has to know before.

        The server may then tell others that some of it is safe.
        """
        self._since = {stamp: self._since.get(stamp, now) for stamp in _stamps(holdings)}
        new = [stamp for stamp, at in self._since.items() if at == now or stamp in self._may_be]
        self._may_be = self._in_order(new)

    def put_off(self, now: float) -> None:
        """The server cannot be told now."""
        self._not_before = now + tells_every_s(self._nnodes)

    def refused(self) -> None:
        """The server hears nothing of this in this round."""
        self._may_be = ()

    def tell(self, holdings: Holdings, now: float) -> None:
        """The server is about to be told; see `keep`."""
        if holdings != self._told:
            lives_once = self._nnodes > 1 and any(each.sharded for each in holdings.held)
            self._asks_until = now + ASKS_S if lives_once else now
        self._told, self._not_before = holdings, now + tells_every_s(self._nnodes)

    def _in_order(self, stamps: Iterable[Stamp]) -> tuple[Stamp, ...]:
        """Those of them that may be safe by now, the oldest first."""
        return tuple(sorted(filter(self._can_be_safe, stamps), key=lambda stamp: stamp.newness))

    def _can_be_safe(self, stamp: Stamp) -> bool:
        """Whether that may be by now: not what the round did not begin from although it is newer."""
        if stamp.round >= self._number:
            return True
        return self._began is not None and stamp.newness < self._began.newness

    def hear(self, reply: SnapshotsReply, now: float) -> bool:
        """Its answer; returns whether it says something new, or something is not kept any longer."""
        before = self.reply, self.kept
        self._safe = reply.complete or self._safe
        kept_s = max(KEPT_S, 2 * asks_every_s(self._nnodes))
        self._may_be = self._in_order([one for one in self._may_be if now < self._since[one] + kept_s])
        self.reply = replace(reply, copy=None)
        return before != (self.reply, self.kept)


def _stamps(holdings: Holdings) -> tuple[Stamp, ...]:
    return tuple(Stamp(round=held.round, step=held.step) for held in holdings.held)


def _complete_here(holdings: Holdings, began: Stamp) -> Iterator[Stamp]:
    """What this node alone has all of, and that is no newer than what the round began from."""
    for held in holdings.held:
        stamp = Stamp(round=held.round, step=held.step)
        if (
            held.whole
            and held.sharded
            and len(held.ranks) == held.world_size
            and stamp.newness <= began.newness
        ):
            yield stamp


def _newest(*stamps: Stamp | None) -> Stamp | None:
    return max(
        (stamp for stamp in stamps if stamp is not None), key=lambda stamp: stamp.newness, default=None
    )


def tells_every_s(nnodes: int) -> float:
    """How long each node waits at least until it tells the server again (seconds)."""
    return min(LONGEST_PAUSE_S, max(PAUSE_S, nnodes / MOST_PER_S))


def asks_every_s(nnodes: int) -> float:
    """How often each node asks the server whether there is news, unless it has some itself (seconds)."""
    return max(LOOK_S, nnodes / MOST_PER_S)
