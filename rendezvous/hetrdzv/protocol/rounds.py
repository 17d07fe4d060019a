"""What became of each round: how its workers failed, the record that the server makes of it, and its time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Annotated

from annotated_types import Ge, Lt

from hetrdzv.protocol.bounds import Count, Duration, ExitCode, Id, RequestBody, Seconds, ShortText, Text
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.settings import MAX_SLOTS, MAX_WORLD_SIZE
from hetrdzv.protocol.texts.phrasing import MIN_SHOWN_S, duration_text, percent_text


@dataclass(frozen=True, kw_only=True)
class WorkerFailure(RequestBody):
    """How a worker failed.

    Attributes:
        local_rank, rank: -1 stands for the node's one program, or, with neither exit code nor signal, for workers that
            could not be started at all.
        signal: the name of the signal that killed it (`SIGKILL`).
        message: the end of its traceback or of its stderr. Of a worker that hangs, which has neither exit code nor
            signal, its Python stack.
        at: when the exit was seen, or the hang began (seconds on the server's clock, which sets it).
        raised_s: how long before that its exception was raised (seconds): the worker saved a snapshot, and unwound. It
            does not count for whose failure came first: a worker that is killed closes its connections before it ends.
        final: the node's agent gives up with it, so that this node takes part in no further round.
        lingers: its script has ended by an exception, but its process has not ended since.
        permanent: a restart would end the same way (the script has a syntax error), so none is spent.
    """

    local_rank: Annotated[int, Ge(-1), Lt(MAX_SLOTS)]
    rank: Annotated[int, Ge(-1), Lt(MAX_WORLD_SIZE)]
    exit_code: ExitCode | None = None
    signal: ShortText | None = None
    message: Text = ""
    at: Seconds = 0.0
    raised_s: Duration = 0.0
    final: bool = False
    lingers: bool = False
    permanent: bool = False

    @property
    def is_start_failure(self) -> bool:
        """Whether workers could not be started at all."""
        return self.rank < 0 and self.exit_code is None and self.signal is None and not self.lingers

    @property
    def how(self) -> str:
        """How it ended, in a few words."""
        if self.signal is not None:
            return f"killed by {self.signal}"
        if self.exit_code is not None:
            return f"exit code {self.exit_code}"
        return "has not ended" if self.lingers else "hangs"

    def __str__(self) -> str:
        """Which worker of a node it was, and how it ended: `rank 1: exit code 1`."""
        who = f"rank {self.rank}" if self.rank >= 0 else "its program"
        return "its workers could not be started" if self.is_start_failure else f"{who}: {self.how}"


@dataclass(frozen=True, kw_only=True)
class EarlierSuccesses(RequestBody):
    """Workers that had ended with exit code 0 when others of their round failed, which may follow from that."""

    node_id: Id
    rank: Annotated[int, Ge(0), Lt(MAX_WORLD_SIZE)]
    others: Count = 0
    before_s: Duration = 0.0


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """Why a job failed."""

    reason: Reason
    round: int = 0
    node_id: str | None = None
    failure: WorkerFailure | None = None

    @property
    def details(self) -> str:
        """Where and how the worker failed: `node gpu3, rank 5 (local rank 1), exit code 1, round 2`."""
        parts = [f"node {self.node_id}"] if self.node_id else []
        if (failure := self.failure) is not None:
            if failure.rank >= 0:
                parts.append(f"rank {failure.rank} (local rank {failure.local_rank})")
            if not failure.is_start_failure:
                parts.append(failure.how)
        if self.round:
            parts.append(f"round {self.round}")
        return ", ".join(parts)


# -- rounds and their time ---------------------------------------------------------------------------------------


class RoundPhase(StrEnum):
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
"""Seconds by `RoundPhase`; what took no time is left out."""


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
        return None if RoundPhase.UNKNOWN in self.time else self.time.get(RoundPhase.TRAINING, 0.0)


@dataclass(frozen=True, kw_only=True)
class RoundsReply:
    """`GET /v1/groups/{g}/rounds`: the last rounds of a group, in order."""

    rounds: tuple[RoundRecord, ...] = ()


def total_time(rounds: Iterable[RoundRecord]) -> TimeSpent:
    """What the time of some rounds together went into."""
    total = dict.fromkeys(map(str, RoundPhase), 0.0)
    for record in rounds:
        for phase, seconds in record.time.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return {phase: round(seconds, 3) for phase, seconds in total.items() if seconds}


def known_time_s(time: TimeSpent) -> float:
    """How much time it is of which somebody can tell whether the job trained (seconds)."""
    return sum(time.values()) - time.get(RoundPhase.UNKNOWN, 0.0)


def time_spent_text(time: TimeSpent) -> str:
    """`trained 44 s of 1 min 32 s (48.1 %); starting up 27 s, idle 4.3 s`."""
    share = trained_share(time)
    if RoundPhase.UNKNOWN in time and RoundPhase.TRAINING not in time:
        trained = "how much was training is unknown"
    elif share is None:
        trained = "trained 0 s"
    else:
        trained = duration_text(time.get(RoundPhase.TRAINING, 0.0))
        trained = f"trained {trained} of {duration_text(known_time_s(time))} ({percent_text(share)})"
    rest = [
        f"{phase.replace('_', ' ')} {duration_text(seconds)}"
        for phase, seconds in time.items()
        if phase != RoundPhase.TRAINING and seconds >= MIN_SHOWN_S
    ]
    return "; ".join(filter(None, [trained, ", ".join(rest)]))


def trained_share(time: TimeSpent) -> float | None:
    """Which share of the known time was training (0 to 1); None: none is known."""
    known = known_time_s(time)
    return min(1.0, time.get(RoundPhase.TRAINING, 0.0) / known) if known > 0 else None


Downtime = tuple[float, float, float, float]
"""How long nobody trained after a round: noticing, stopping, waiting, and starting up the next one (seconds)."""


def downtime_after(ended: RoundRecord, following: RoundRecord | None) -> Downtime | None:
    """How long nobody trained after a round; None: it runs, or the job ended with it at once."""
    noticing, stopping, waiting = (
        ended.time.get(phase, 0.0) for phase in (RoundPhase.NOTICING, RoundPhase.STOPPING, RoundPhase.WAITING)
    )
    if not ended.ended_by or (ended.is_last and not noticing + stopping + waiting):
        return None
    starting = following.time.get(RoundPhase.STARTING_UP, 0.0) if following and not ended.is_last else 0.0
    return noticing, stopping, waiting, starting


def with_downtimes(rounds: Sequence[RoundRecord]) -> list[tuple[RoundRecord, Downtime | None]]:
    """Rounds, each with how long nobody trained after it."""
    return [
        (record, downtime_after(record, following)) for record, following in zip_longest(rounds, rounds[1:])
    ]
