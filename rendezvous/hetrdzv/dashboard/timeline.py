"""What became of a job's time: its rounds, and what the time between them went to. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from hetrdzv.storage.records import StoredEvent


class Phase(StrEnum):
    """What a job does for a while."""

    WAITING = "waiting"
    STARTING = "starting"
    TRAINING = "training"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time.

    Attributes:
        start, end: seconds since the job began.
        round: the round that it belongs to; of `WAITING`, the one that formed next or 0.
    """

    phase: Phase
    start: float
    end: float
    round: int = 0

    @property
    def length(self) -> float:
        """How long it is (seconds)."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Attempt:
    """A round as people remember it.

    Attributes:
        formed_at: wall-clock time (ISO 8601).
        trained_s: how long all its workers ran (seconds).
        down_s: how long it was until they did, since the round before ended or the job began (seconds).
        ended: why it ended, in a sentence; empty while it goes on.
        node_id: the node that ended it, or None.
        restart: whether its end cost a restart.
    """

    number: int
    formed_at: str
    trained_s: float = 0.0
    down_s: float = 0.0
    ended: str = ""
    node_id: str | None = None
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """A job's time.

    Attributes:
        length: how long it has taken so far (seconds).
        complete: whether the history goes back to the job's beginning.
        outcome: the sentence that it ended with; empty while it goes on.
    """

    spans: Sequence[Span] = ()
    attempts: Sequence[Attempt] = ()
    length: float = 0.0
    complete: bool = True
    outcome: str = ""

    def spent(self, phase: Phase) -> float:
        """How much time went to something (seconds)."""
        return sum(span.length for span in self.spans if span.phase is phase)

    @property
    def share(self) -> float | None:
        """The effective training time ratio: the share of the time in which all workers ran; None: nothing ran yet."""
        return self.spent(Phase.TRAINING) / self.length if self.attempts and self.length > 0 else None


_OUTCOMES = ("group_succeeded", "group_failed", "group_cancelled")


def timeline(events: Iterable[StoredEvent], now: datetime) -> Timeline:
    """The time of the newest job in a history.

    Args:
        now: wall-clock time, with its time zone; events are compared with nothing else.
    """
    known = list(events)
    begins = [index for index, one in enumerate(known) if one.event.kind == "job_began"]
    job = known[begins[-1] :] if begins else known
    if not job:
        return Timeline()
    walk = _Walk(datetime.fromisoformat(job[0].at))
    for one in job:
        walk.take(one)
    return walk.finish(now, complete=job[0].number == 1 or job[0].event.kind == "job_began")


class _Walk:
    """Goes through the events of one job."""

    def __init__(self, began: datetime) -> None:
        self._began = began
        self._since = 0.0
        self._phase = Phase.WAITING
        self._round = 0
        self._stopped: float | None = (
            None  # when the workers of the round that ended were gone, where that is known
        )
        self._down_since = 0.0
        self._spans: list[Span] = []
        self._attempts: list[Attempt] = []
        self._outcome = ""

    def take(self, one: StoredEvent) -> None:
        event, at = one.event, self._at(datetime.fromisoformat(one.at))
        if self._outcome:
            return
        match event.kind:
            case "round_formed":
                self._go_on(Phase.STARTING, at)
                self._round = event.round or 0
                self._attempts.append(Attempt(self._round, one.at))
            case "round_running":
                self._go_on(Phase.TRAINING, at)
                self._change(down_s=at - self._down_since)
            case "round_ended":
                self._trained(at)
                self._go_on(Phase.STOPPING, at)
                self._down_since, self._stopped = at, None
                prefix = f"round {event.round} ended: "
                self._change(ended=event.text.removeprefix(prefix), node_id=event.node_id)
            case "round_judged":
                prefix = f"round {event.round} ended because "
                self._change(ended=event.text.removeprefix(prefix), node_id=event.node_id)
            case "restart_spent":
                self._change(restart=True)
                self._stopped = at
            case kind if kind in _OUTCOMES:
                self._trained(at)
                self._go_on(self._phase, at)
                self._outcome = event.text
                if self._attempts and not self._attempts[-1].ended:
                    self._change(ended=event.text)

    def finish(self, now: datetime, *, complete: bool) -> Timeline:
        """The timeline, up to now or to the end of the job."""
        end = self._since if self._outcome else max(self._since, self._at(now))
        if not self._outcome:
            self._trained(end)
            self._go_on(self._phase, end)
        return Timeline(tuple(self._spans), tuple(self._attempts), end, complete, self._outcome)

    def _at(self, moment: datetime) -> float:
        return max(self._since, (moment - self._began).total_seconds())

    def _trained(self, at: float) -> None:
        if self._phase is Phase.TRAINING and self._attempts:
            self._change(trained_s=at - self._since)

    def _go_on(self, phase: Phase, at: float) -> None:
        if self._phase is Phase.STOPPING:
            stopped = at if self._stopped is None else min(self._stopped, at)
            self._add(Phase.STOPPING, self._since, stopped)
            self._add(Phase.WAITING, stopped, at)
        else:
            self._add(self._phase, self._since, at)
        self._since, self._phase = at, phase

    def _add(self, phase: Phase, start: float, end: float) -> None:
        if end > start:
            self._spans.append(Span(phase, start, end, self._round))

    def _change(self, **values: object) -> None:
        if self._attempts:
            self._attempts[-1] = replace(self._attempts[-1], **values)  # type: ignore[arg-type]
