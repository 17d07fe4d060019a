"""How far the workers of each group's newest round have come, as their agents last said.

In memory only: after a restart of the server the next polls bring it again. No clock of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from hetrdzv.protocol.progress import UNKNOWN, NodeProgress, Worker

RATE_S = 5.0
"""A rate is measured over at least this long (seconds)."""

LATE_S = 1.0
"""How much later than it could a poll may come (seconds)."""

UNSEEN_S = 0.8
"""A worker may have gone on this long after its agent last saw it move (seconds); that looks once a second or more
often."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a number grows, measured from one moment to a later one.

    Attributes:
        per_s: None until it has been measured.
        since, base: when the measurement that is under way began (seconds), and with which number.
    """

    per_s: float | None = None
    since: float = inf
    base: int = 0

    def at(self, number: int | None, now: float) -> "Rate":
        """The rate after another look at the number."""
        if number is None:
            return Rate()
        if self.since == inf or number < self.base:
            return Rate(None, now, number)
        if now - self.since < RATE_S:
            return self
        return Rate((number - self.base) / (now - self.since), now, number)


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest sample of a worker.

    Attributes:
        seen_at: when it was taken (seconds on the server's clock).
        known_until: until when it holds (seconds): newer ones have stopped coming if none has by then.
        began_at: when it first moved in its round (seconds on the server's clock); infinite: it has not, or nobody can
            tell.
        moved_at, long_until: when it last moved, and until when it need not (seconds on the server's clock).
        unseen_since: since when its collectives cannot be known (seconds); infinite: they can.
        collectives, steps: how fast they come.
    """

    node_id: str
    sample: Worker
    seen_at: float
    known_until: float
    began_at: float
    moved_at: float
    long_until: float
    unseen_since: float
    collectives: Rate
    steps: Rate

    def unseen(self, now: float) -> str:
        """Why its collectives cannot be known now: of `UNSEEN`, or as its agent says; empty: they are."""
        if now > self.known_until:
            return "stale"
        return self.sample.unseen or ("no_torch" if self.sample.state == UNKNOWN else "")

    def worker(self, now: float) -> Worker:
        """The worker as it is now, as far as was seen: only one that stands still was idle after its agent looked."""
        sample = self.sample
        if now > self.known_until:
            return Worker(rank=sample.rank, pid=sample.pid, state=UNKNOWN)
        return replace(
            sample,
            state=UNKNOWN if sample.unseen else sample.state,
            idle_s=max(0.0, now - UNSEEN_S - self.moved_at) if sample.still else 0.0,
            long_s=max(0.0, self.long_until - now),
            collectives=() if sample.unseen else sample.collectives,
        )


class Table:
    """The newest samples of all workers of the newest round of each group."""

    def __init__(self) -> None:
        self._rounds: dict[str, tuple[int, dict[int, Seen]]] = {}

    def note(
        self,
        group_id: str,
        node_id: str,
        progress: NodeProgress,
        seen_at: float,
        known_until: float = inf,
    ) -> None:
        """Samples of a node of the newest round came, taken at `seen_at`; late ones count for nothing.

        Args:
            known_until: see `Seen` (seconds).
        """
        number, workers = self._rounds.get(group_id, (0, {}))
        if number != progress.round:
            workers = {}
            self._rounds[group_id] = (progress.round, workers)
        for sample in progress.workers:
            before = workers.get(sample.rank)
            if before is not None and before.seen_at > seen_at:
                continue
            workers[sample.rank] = Seen(
                node_id,
                sample,
                seen_at,
                known_until,
                _began_at(sample, before, seen_at),
                seen_at - sample.idle_s,
                seen_at + sample.long_s,
                _unseen_since(sample, before, seen_at),
                (before.collectives if before is not None else Rate()).at(sample.count, seen_at),
                (before.steps if before is not None else Rate()).at(sample.step, seen_at),
            )

    def workers(self, group_id: str, round_number: int) -> Mapping[int, Seen]:
        """The workers of a round, by global rank; empty if nothing of it is known."""
        number, workers = self._rounds.get(group_id, (0, {}))
        return workers if number == round_number else {}

    def forget(self, group_id: str) -> None:
        """A group was deleted."""
        self._rounds.pop(group_id, None)

    def clear(self) -> None:
        """The groups were loaded again."""
        self._rounds.clear()


def _began_at(sample: Worker, before: Seen | None, seen_at: float) -> float:
    if before is not None and before.began_at < inf:
        return before.began_at
    return seen_at - sample.began_s if sample.began_s is not None else inf


def _unseen_since(sample: Worker, before: Seen | None, seen_at: float) -> float:
    if sample.state != UNKNOWN and not sample.unseen:
        return inf
    return min(seen_at, before.unseen_since) if before is not None else seen_at
