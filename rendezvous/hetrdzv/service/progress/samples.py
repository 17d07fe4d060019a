"""The newest samples of workers, as their agents reported them, and of whom there are none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from hetrdzv.core.model import Group
from hetrdzv.protocol.progress import UNKNOWN_STATE, WorkerProgress
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.texts.node_rank_lists import RankList

MIN_RATE_WINDOW_S = 5.0
"""A rate is measured over at least this long (seconds)."""

MAX_UNSEEN_PROGRESS_S = 0.8
"""A worker may have gone on this long after its agent last saw it move (seconds); that looks once a second or more
often."""

UNWATCHED_WARNING_AFTER_S = 30.0
"""How long a worker, or its round, has to have been unseen until people are told (seconds): scripts import first."""


@dataclass(frozen=True, slots=True)
class GrowthRate:
    """How fast a number grows."""

    per_s: float | None = None  # None until it has been measured
    since: float = inf  # when the measurement that is under way began (seconds)
    base: int = 0  # with which number it began

    def with_measurement(self, number: int | None, now: float) -> "GrowthRate":
        """The rate after another look at the number."""
        if number is None:
            return GrowthRate()
        if self.since == inf or number < self.base:
            return GrowthRate(None, now, number)
        if now - self.since < MIN_RATE_WINDOW_S:
            return self
        return GrowthRate((number - self.base) / (now - self.since), now, number)


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """The newest sample of a worker. Times are on the server's clock (seconds)."""

    node_id: str
    sample: WorkerProgress
    seen_at: float  # when it was taken
    known_until: float  # until when it holds: newer ones have stopped coming if none has by then
    began_at: float  # when the worker first moved in its round; infinite: it has not, or nobody can tell
    unseen_since: float  # since when its collectives cannot be known; infinite: they can
    collectives: GrowthRate
    steps: GrowthRate

    @classmethod
    def from_report(
        cls,
        node_id: str,
        sample: WorkerProgress,
        before: "WorkerSample | None",
        seen_at: float,
        known_until: float,
    ) -> "WorkerSample":
        """A sample after an earlier one of the same round."""
        began_at = before.began_at if before is not None else inf
        if began_at == inf and sample.began_s is not None:
            began_at = seen_at - sample.began_s
        unseen_since = inf
        if sample.state == UNKNOWN_STATE or sample.unseen:
            unseen_since = min(seen_at, before.unseen_since) if before is not None else seen_at
        collectives = (before.collectives if before is not None else GrowthRate()).with_measurement(
            sample.collective_count, seen_at
        )
        steps = (before.steps if before is not None else GrowthRate()).with_measurement(sample.step, seen_at)
        return cls(node_id, sample, seen_at, known_until, began_at, unseen_since, collectives, steps)

    @property
    def moved_at(self) -> float:
        """When it last moved (seconds)."""
        return self.seen_at - self.sample.idle_s

    def explain_unseen(self, now: float) -> str:
        """Why its collectives cannot be known now: often as its agent says; empty: they are."""
        if now > self.known_until:
            return "reports of the agent have stopped"
        return self.sample.unseen or ("torch is not imported" if self.sample.state == UNKNOWN_STATE else "")

    def worker_at(self, now: float) -> WorkerProgress:
        """The worker as it is now, as far as was seen: only one that stands still was idle after its agent looked."""
        sample = self.sample
        if now > self.known_until:
            return WorkerProgress(rank=sample.rank, pid=sample.pid, state=UNKNOWN_STATE)
        return replace(
            sample,
            state=UNKNOWN_STATE if sample.unseen else sample.state,
            idle_s=max(0.0, now - MAX_UNSEEN_PROGRESS_S - self.moved_at) if sample.still else 0.0,
            long_s=max(0.0, self.seen_at + sample.long_s - now),
            collectives=() if sample.unseen else sample.collectives,
        )


def unwatched_warnings(group: Group, seen: Mapping[int, WorkerSample], now: float) -> Sequence[Reason]:
    """The workers of the running round of which nobody can tell whether they hang, by reason.

    One that reports its steps is watched by these. One without others has nobody to wait for.
    """
    active = group.running_round
    if active is None or now < active.formed_at + UNWATCHED_WARNING_AFTER_S or active.world_size == 1:
        return []
    by_reason: dict[str, list[int]] = {}
    for rank in range(active.world_size):
        entry = seen.get(rank)
        if entry is None:
            by_reason.setdefault("the agent has not reported", []).append(rank)
        elif now >= min(entry.unseen_since, entry.known_until) + UNWATCHED_WARNING_AFTER_S and (
            entry.sample.step is None or now > entry.known_until
        ):
            by_reason.setdefault(entry.explain_unseen(now), []).append(rank)
    most = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[1]))[:3]
    return [ReasonCode.NOT_WATCHED.reason(ranks=RankList.of(ranks), quote=why) for why, ranks in most]
