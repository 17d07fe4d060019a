"""What became of each round: the record that the server makes of it, and what its time went into."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import NamedTuple

from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.texts.phrasing import LEAST_S, duration_text, percent


class Phase(StrEnum):
    """What a job does for a while, in the order of a round (docs/operations.md says from when until when)."""

    STARTING_UP = "starting_up"
    TRAINING = "training"
    HANGING = "hanging"
    IDLE = "idle"
    UNKNOWN = "unknown"
    NOTICING = "noticing"
    STOPPING = "stopping"
    WAITING = "waiting"


TimeSpent = Mapping[str, float]
"""Seconds by `Phase`; what took no time is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """A round and the time after it, up to the next one or the end of the job; or the round that runs, up to now.

    Attributes:
        formed_at: wall-clock time (ISO 8601, UTC), for people only.
        ended_by: an `EndKind`, or the outcome of the job; empty: it runs.
        is_last: the job ended with it.
        cost: what else its end cost, in words (steps lost).
        time: on the server's clock, which stands still while no server runs.
    """

    number: int
    job: int = 1
    world_size: int
    formed_at: str | None = None
    ended_by: str = ""
    reason: Reason | None = None
    is_last: bool = False
    cost_restart: bool = False
    cost: str = ""
    time: TimeSpent = field(default_factory=dict)

    @property
    def trained_s(self) -> float | None:
        """How long it trained (seconds); None: nobody can tell."""
        return None if Phase.UNKNOWN in self.time else self.time.get(Phase.TRAINING, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsReply:
    """`GET /v1/groups/{g}/rounds`: the last rounds of a group, in order."""

    rounds: tuple[RoundRecord, ...] = ()


def total_time(rounds: Iterable[RoundRecord]) -> TimeSpent:
    """What the time of some rounds together went into."""
    total = dict.fromkeys(map(str, Phase), 0.0)
    for record in rounds:
        for phase, seconds in record.time.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return {phase: round(seconds, 3) for phase, seconds in total.items() if seconds}


def known_s(time: TimeSpent) -> float:
    """How much time it is of which somebody can tell whether the job trained (seconds)."""
    return sum(time.values()) - time.get(Phase.UNKNOWN, 0.0)


def time_text(time: TimeSpent) -> str:
    """`trained 44 s of 1 min 32 s (48.1 %); starting up 27 s, idle 4.3 s`."""
    share = share_trained(time)
    if Phase.UNKNOWN in time and Phase.TRAINING not in time:
        trained = "how much was training is unknown"
    elif share is None:
        trained = "trained 0 s"
    else:
        trained = duration_text(time.get(Phase.TRAINING, 0.0))
        trained = f"trained {trained} of {duration_text(known_s(time))} ({percent(share)})"
    rest = [
        f"{phase.replace('_', ' ')} {duration_text(seconds)}"
        for phase, seconds in time.items()
        if phase != Phase.TRAINING and seconds >= LEAST_S
    ]
    return "; ".join(filter(None, [trained, ", ".join(rest)]))


def share_trained(time: TimeSpent) -> float | None:
    """Which share of the known time was training (0 to 1); None: none is known."""
    known = known_s(time)
    return min(1.0, time.get(Phase.TRAINING, 0.0) / known) if known > 0 else None


class Downtime(NamedTuple):
    """How long nobody trained after a round, until the next one had started up (seconds)."""

    noticing: float
    stopping: float
    waiting: float
    starting_up: float


def downtime_after(ended: RoundRecord, following: RoundRecord | None) -> Downtime | None:
    """How long nobody trained after a round; None: it runs, or the job ended with it at once."""
    if not ended.ended_by:
        return None
    noticing, stopping, waiting = (
        ended.time.get(phase, 0.0) for phase in (Phase.NOTICING, Phase.STOPPING, Phase.WAITING)
    )
    if ended.is_last:
        return Downtime(noticing, stopping, waiting, 0.0) if noticing + stopping + waiting else None
    starting = following.time.get(Phase.STARTING_UP, 0.0) if following is not None else 0.0
    return Downtime(noticing, stopping, waiting, starting)


def with_downtimes(rounds: Sequence[RoundRecord]) -> list[tuple[RoundRecord, Downtime | None]]:
    """Rounds, each with how long nobody trained after it."""
    return [
        (record, downtime_after(record, following)) for record, following in zip_longest(rounds, rounds[1:])
    ]
