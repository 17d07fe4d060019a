"""When a node tells the server what it holds while a round runs, and what is to be kept by what that answers: pure."""

from hetrdzv.protocol.rooms.snapshots import Chosen, Held, Holdings, SnapshotsReply, Stamp

PAUSE_S, LONGEST_PAUSE_S = 0.2, 1.0
"""How long after the server was told it is told again, of a few nodes and of many (seconds)."""

ASK_S = 1.0
"""How often it is asked at most by few nodes whether what lives once is safe, and what to copy of it (seconds)."""

MOST_PER_S = 100.0
"""How many nodes ask that each second at most; as many of a few tell it something (1/s)."""


class Declaring:
    """What this node has told, and heard.

    Attributes:
        safe: the newest snapshot that outlives any other node, or that this node has all of, as far as is known.
    """

    def __init__(self) -> None:
        self.safe: Stamp | None = None
        self._told = Holdings()
        self._number, self._nnodes = 0, 1
        self._began: Stamp | None = None  # from which the round began
        self._before: Stamp | None = None  # what was safe before that is
        self._pending: Stamp | None = None  # the newest that was told, and lives once
        self._not_before = 0.0

    def begin(self, number: int, nnodes: int, chosen: Chosen | None) -> None:
        """A round begins, from a snapshot or from none."""
        self._number, self._nnodes = number, nnodes
        in_memory = chosen is not None and not chosen.on_disk
        before = self.safe or self._before or self._began
        self._began = (
            Stamp(round=chosen.round, step=chosen.step) if chosen is not None and in_memory else None
        )
        if self.safe is not None and (self._began is None or self.safe.newness > self._began.newness):
            self.safe = None  # it is not held any more, or not to be used
        lives_once = chosen is not None and chosen.sharded and nnodes > 1
        self._pending = self._began if lives_once and self.safe != self._began else None
        if self._pending is None:
            self.safe = self._began or self.safe
        self._before = None if before is None or not _is_newer(self._began or before, before) else before

    @property
    def kept(self) -> tuple[Stamp, ...]:
        """What is not to be overwritten: what is safe or the round began from, and what others may know to be safe."""
        first = self.safe or self._before or self._began
        return tuple(dict.fromkeys(stamp for stamp in (first, self._pending) if stamp is not None))

    def began_from(self, stamp: Stamp) -> bool:
        """Whether the round began from a snapshot."""
        return stamp == self._began

    def tells_at(self, holdings: Holdings) -> float | None:
        """When the server has to be told (monotonic seconds); None: it knows all.

        Args:
            holdings: what this node holds.
        """
        if holdings != self._told:
            return self._not_before
        if self._pending is None:
            return None
        return self._not_before + asks_every_s(self._nnodes) - tells_every_s(self._nnodes)

    def put_off(self, now: float) -> None:
        """The server cannot be told now."""
        self._not_before = now + tells_every_s(self._nnodes)

    def keep(self, holdings: Holdings) -> None:
        """The server is about to know of this, and may tell others that it is safe: whoever overwrites has to know."""
        for held in holdings.held:
            stamp = Stamp(round=held.round, step=held.step)
            if held.round < self._number or not _is_newer(stamp, self.safe):
                continue
            if held.sharded and self._nnodes > 1:
                self._pending = stamp if _is_newer(stamp, self._pending) else self._pending
            elif held.whole and (not held.sharded or _has_all(held)):
                self.safe = stamp

    def tell(self, holdings: Holdings, now: float) -> None:
        """The server is about to be told; see `keep`."""
        self._told, self._not_before = holdings, now + tells_every_s(self._nnodes)

    def hear(self, reply: SnapshotsReply) -> bool:
        """Its answer; returns whether workers have to know."""
        before = self.safe, self.kept
        if reply.complete is not None and _is_newer(reply.complete, self.safe):
            self.safe = reply.complete
        if self._pending is not None and not _is_newer(self._pending, self.safe):
            self._pending = None
        return before != (self.safe, self.kept)


def _has_all(held: Held) -> bool:
    return len(held.ranks) == held.world_size


def _is_newer(stamp: Stamp, than: Stamp | None) -> bool:
    return than is None or stamp.newness > than.newness


def tells_every_s(nnodes: int) -> float:
    """How long each node waits at least until it tells the server again (seconds)."""
    return min(LONGEST_PAUSE_S, max(PAUSE_S, nnodes / MOST_PER_S))


def asks_every_s(nnodes: int) -> float:
    """How often each node asks the server whether there is news, unless it has some itself (seconds)."""
    return max(ASK_S, nnodes / MOST_PER_S)
