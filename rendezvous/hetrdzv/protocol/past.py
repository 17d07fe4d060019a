"""The rounds of a group's past, added up from its history: how long each ran, what ended it, what that cost.

All that is needed is in the codes and data of events, so servers, pages and tools work it out alike. Times are
wall-clock times of one server after another; where their clocks disagree, no duration is below 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from hetrdzv.protocol.pages import Event
from hetrdzv.protocol.phases import Phase, Times, divided
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.states import GroupState
from hetrdzv.protocol.texts.times import lasted

OUTCOMES = {f"group_{state}": state.value for state in GroupState if state.terminal}
"""What an event says about the outcome of a job, by its code."""

_OF_A_ROUND = ("round_formed", "round_running", "training_began", "stalled", "goes_on", "round_ended")

_COSTS = ("began_from_snapshot",)

CODES = {*_OF_A_ROUND, "round_judged", "restart_spent", *OUTCOMES, *_COSTS}
"""The codes of events that `past` looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownReply:
    """How long nobody trained after a round, by what that time went into (seconds); None: unknown, or not over yet.

    Attributes:
        noticed_s: from what went wrong until the round ended. Of a planned end 0.
        stopped_s: until the last of its workers were gone.
        formed_s: until the next round formed, or the job ended without one: nodes were waited for.
        started_s: until that round trained, or ended before it did; until its workers ran, if nobody can tell.
        total_s: all of it, up to now if it is not over.
        over: whether it is.
    """

    noticed_s: float | None = None
    stopped_s: float | None = None
    formed_s: float | None = None
    started_s: float | None = None
    total_s: float = 0.0
    over: bool = True

    @property
    def lasted(self) -> str:
        """All of it: `22 s`, or `15 s so far`."""
        return lasted(self.total_s) if self.over else f"{lasted(self.total_s)} so far"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReply:
    """A stretch of a round's time: what it went into, and how long it is (seconds)."""

    phase: Phase
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRoundReply:
    """A round of the past, or the one that runs.

    Attributes:
        number: of the round.
        formed_at, running_at, ended_at: when it formed, ran on all its nodes, and was over (ISO 8601, UTC); None: not
            known, or not yet.
        world_size: None: unknown.
        cause: what ended it, as in the event `round_formed` of the next one (`failed`, `lost`, `joined`, ...), or
            the outcome of the job; None: not known yet, or it has not ended.
        why: the same in a sentence.
        is_last: the job ended with it.
        cost_restart: a restart was spent on it.
        trained_s: from the first collective or step of its workers to the last, without the time in which they hung
            (seconds); None: nobody can tell.
        hung_s: how long they waited for others that did not come (seconds).
        phases: what its time went into, from its forming to its end.
        down: what its end cost; None: it runs, or the job ended at the same moment.
        costs: what else its end cost, as optional features say, in a few words each.
    """

    number: int
    formed_at: str | None = None
    running_at: str | None = None
    ended_at: str | None = None
    world_size: int | None = None
    cause: str | None = None
    why: str = ""
    is_last: bool = False
    cost_restart: bool = False
    trained_s: float | None = None
    hung_s: float = 0.0
    phases: tuple[PhaseReply, ...] = ()
    down: DownReply | None = None
    costs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PastReply:
    """What became of a group's time since its first round formed, as far back as its history goes.

    Attributes:
        trained_s: of all rounds together (seconds), as far as is known.
        hung_s: the same.
        unknown_s: how long workers ran of whom nobody can tell whether they trained (seconds).
        whole_s: from the first round to the end of the job, or to now (seconds).
    """

    rounds: tuple[PastRoundReply, ...]
    trained_s: float
    hung_s: float = 0.0
    unknown_s: float = 0.0
    whole_s: float

    @property
    def share(self) -> float | None:
        """Which share of the time was spent training (0 to 1), of that of which it is known; None: of none it is."""
        known_s = self.whole_s - self.unknown_s
        return min(1.0, self.trained_s / known_s) if known_s > 0 else None


class _Round:
    """A round while its events are being read."""

    def __init__(self, number: int, known_since: datetime) -> None:
        self.number = number
        self.known_since = known_since
        self.formed: datetime | None = None
        self.running: datetime | None = None
        self.ended: datetime | None = None
        self.stopped: datetime | None = None
        self.after: _Round | None = None  # of the same job
        self.world_size: int | None = None
        self.noticed_s: float | None = None
        self.formed_s: float | None = None
        self.cause: str | None = None
        self.why = ""
        self.job_ended: datetime | None = None
        self.cost_restart = False
        self.costs: list[str] = []
        self.watched = False
        self.began: datetime | None = None
        self.idle_s: float | None = None
        self.stalls: list[tuple[datetime, datetime | None]] = []
        self.hangs = False  # that ended it

    def stalled(self, at: datetime, for_s: float) -> None:
        """Workers have waited for others for so long."""
        if not self.stalls or self.stalls[-1][1] is not None:
            self.stalls.append((at - timedelta(seconds=for_s), None))

    def goes_on(self, at: datetime) -> None:
        """They wait no longer."""
        if self.stalls and self.stalls[-1][1] is None:
            self.stalls[-1] = self.stalls[-1][0], at

    def ends(self, at: datetime, noticed_s: float | None) -> None:
        """It is over; what ended it happened so long before."""
        began = self.running or self.formed
        if noticed_s is not None and began is not None:
            noticed_s = min(noticed_s, _seconds(began, at))
        self.ended, self.noticed_s = at, noticed_s

    def reply(self, now: datetime) -> PastRoundReply:
        phases = self._phases(self.ended if self.ended is not None else now)
        spent = dict.fromkeys(Phase, 0.0)
        for phase, seconds in phases:
            spent[phase] += seconds
        trained_s = None if spent[Phase.UNKNOWN] else round(spent[Phase.TRAINING], 3)
        return PastRoundReply(
            number=self.number,
            formed_at=_shown(self.formed),
            running_at=_shown(self.running),
            ended_at=_shown(self.ended),
            world_size=self.world_size,
            cause=self.cause,
            why=self.why,
            is_last=self.job_ended is not None,
            cost_restart=self.cost_restart,
            trained_s=trained_s,
            hung_s=round(spent[Phase.HANGING], 3),
            phases=tuple(PhaseReply(phase=phase, seconds=round(seconds, 3)) for phase, seconds in phases),
            costs=tuple(self.costs),
            down=self._down(self.ended, now) if self.ended is not None and self._has_cost else None,
        )

    @property
    def _has_cost(self) -> bool:
        """Whether its end cost any time: it is not the end of the job, or that was noticed late."""
        return self.ended != self.job_ended or bool(self.noticed_s)

    def _phases(self, over: datetime) -> list[tuple[Phase, float]]:
        start = self.formed or self.known_since
        fault_s = _seconds(start, over) - (self.noticed_s or 0.0)
        stalls = [(_signed(start, since), _signed(start, until or over)) for since, until in self.stalls]
        if self.hangs:
            stalls.append((fault_s, _seconds(start, over)))
        return divided(
            Times(
                formed=0.0,
                ended=_seconds(start, over),
                running=None if self.running is None else _signed(start, self.running),
                began=None if self.began is None else _signed(start, self.began),
                last=None if self.idle_s is None else fault_s - self.idle_s,
                fault=fault_s,
                watched=self.watched,
                stalls=sorted(stalls),
            )
        )

    def _trains_at(self) -> datetime | None:
        """When it was done with starting up; None: it is not yet."""
        began = self.began if self.watched or self.began is not None else self.running
        if began is None and self.ended is not None:
            return self.ended - timedelta(seconds=self.noticed_s or 0.0)
        return began

    def _down(self, ended: datetime, now: datetime) -> DownReply:
        stopped_s = formed_s = started_s = None
        if self.stopped is not None:
            stopped_s = _seconds(ended, self.stopped)
        formed = self.after.formed if self.after is not None else self.job_ended
        if formed is not None:
            whole_s = _seconds(ended, formed)
            formed_s = self.formed_s if self.formed_s is not None else whole_s - (stopped_s or 0.0)
            formed_s = max(0.0, min(whole_s, formed_s))
            if stopped_s is not None or self.formed_s is not None:
                stopped_s = whole_s - formed_s
        over = self.job_ended
        if self.after is not None and formed is not None and (over := self.after._trains_at()) is not None:
            started_s = _seconds(formed, over)
        parts = {
            "noticed_s": self.noticed_s,
            "stopped_s": stopped_s,
            "formed_s": formed_s,
            "started_s": started_s,
        }
        return DownReply(
            **{name: None if part is None else round(part, 3) for name, part in parts.items()},
            total_s=round((self.noticed_s or 0.0) + _seconds(ended, over or now), 3),
            over=over is not None,
        )


def past(events: Iterable[Event], now: datetime) -> PastReply:
    """What a group's history says about its rounds.

    Args:
        events: in order; the first ones may be missing.
        now: with a time zone; a round that runs has run until then.
    """
    rounds: list[_Round] = []
    spans: list[tuple[datetime, datetime | None]] = []  # of jobs: from its first round on, to its end
    for event in events:
        at, what = datetime.fromisoformat(event.at), event.reason
        current = rounds[-1] if rounds and rounds[-1].job_ended is None else None
        if what.code == ReasonCode.ROUND_FORMED and what.round is not None:
            if current is None:
                spans.append((at, None))
            formed = _Round(what.round, at)
            if current is not None:
                current.after, current.formed_s = formed, _number(what, "after_s")
                current.cause = _text(what, "after") or current.cause
            formed.formed = at
            size = _number(what, "world_size")
            formed.world_size = None if size is None else int(size)
            rounds.append(formed)
            continue
        if current is None:
            if what.round is None or what.code not in _OF_A_ROUND:
                continue
            current = _Round(what.round, at)
            rounds.append(current)
            spans.append((at, None))
        match what.code:
            case ReasonCode.ROUND_RUNNING:
                current.running, current.watched = at, bool(what.data.get("watched"))
            case ReasonCode.TRAINING_BEGAN:
                current.began = at - timedelta(seconds=_number(what, "after_s") or 0.0)
            case ReasonCode.STALLED:
                current.stalled(at, _number(what, "for_s") or 0.0)
            case ReasonCode.GOES_ON:
                current.goes_on(at)
            case ReasonCode.ROUND_ENDED:
                current.ends(at, _number(what, "after_s"))
                current.why = _why(what)
                current.idle_s, current.watched = _number(what, "idle_s"), bool(what.data.get("watched"))
                current.hangs = bool(what.data.get("hung"))
            case ReasonCode.ROUND_JUDGED:
                current.why = _why(what)
            case ReasonCode.RESTART_SPENT:
                current.stopped, current.cost_restart, current.cause = at, True, "failed"
                current.why = _why(what)
            case code if code in _COSTS:
                if len(rounds) > 1 and rounds[-2].job_ended is None and (cost := _text(what, "cost")):
                    rounds[-2].costs.append(cost)
            case code if code in OUTCOMES:
                if current.ended is None:
                    current.ended = at
                    if code == ReasonCode.GROUP_SUCCEEDED:
                        current.idle_s = _number(what, "idle_s")
                        current.watched = bool(what.data.get("watched"))
                current.formed_s = _number(what, "after_s")
                current.cause, current.why, current.job_ended = OUTCOMES[code], _why(what), at
                spans[-1] = (spans[-1][0], at)
    replies = tuple(past_round.reply(now) for past_round in rounds)
    return PastReply(
        rounds=replies,
        trained_s=_sum(replies, Phase.TRAINING),
        hung_s=_sum(replies, Phase.HANGING),
        unknown_s=_sum(replies, Phase.UNKNOWN),
        whole_s=round(sum(_seconds(began, end or now) for began, end in spans), 3),
    )


def _number(of: Reason, name: str) -> float | None:
    value = of.data.get(name)
    return value if isinstance(value, int | float) else None


def _text(of: Reason, name: str) -> str:
    value = of.data.get(name)
    return value if isinstance(value, str) else ""


def _why(of: Reason) -> str:
    """What ended a round, in a sentence."""
    return str(of.cause or of)


def _sum(rounds: Iterable[PastRoundReply], phase: Phase) -> float:
    """How long all rounds were in a phase (seconds)."""
    return round(sum(part.seconds for each in rounds for part in each.phases if part.phase is phase), 3)


def _signed(since: datetime, until: datetime) -> float:
    return (until - since).total_seconds()


def _seconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds())


def _shown(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="milliseconds")
