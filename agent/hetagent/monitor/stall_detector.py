"""What follows from looks at the workers of a round: who moves, who does not, and what the server must know at once.

Pure: looks come in, each with its time (monotonic seconds), and `NodeProgress` go out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any

from hetrdzv.protocol.bounds import (
    MAX_ALL_PROCESS_GROUPS,
    MAX_PROCESS_GROUPS,
    MAX_SAMPLE_VALIDITY_S,
    MAX_SECONDS,
)
from hetrdzv.protocol.progress import NodeProgress, ProcessGroupProgress, WorkerProgress

MIN_STILL_S = 2.0
"""A worker that moves at least this often is never `still` (seconds)."""

STILL_PAUSE_FACTOR = 2.0
"""Else it is, once it has not moved for so many times the longest pause that it has made in this round."""

STILL_BEFORE_FIRST_MOVE_S = 30.0
"""The same before its first collective (seconds): scripts load models and data then, each worker in its own time."""

MIN_BLOCKED_S = 2.0
"""How long a process hangs in the kernel until that is its state (seconds); whoever reads files often does."""

REPORT_ENDED_AFTER_S = 2.0
"""How long after the end of a worker the server is told, unless the round is over by then (seconds)."""

SAMPLE_VALIDITY_S = 5.0
"""For how long what was seen at a look holds (seconds): the next one follows within a second, unless the watch stands
still itself."""

MIN_CPU_WINDOW_S = 1.0
"""A share of a core is measured over at least this long (seconds)."""

MAX_REASON_CHARACTERS = 200
"""The longest reason why nothing can be known that is told (characters)."""


class ProcessState(StrEnum):
    """What a worker's process does; the words are those of `WorkerProgress`."""

    RUNS = "runs"
    STOPPED = "stopped"
    BLOCKED = "blocked"
    ENDED = "ended"
    UNKNOWN = "unknown"


FROZEN_STATES = (ProcessState.STOPPED, ProcessState.BLOCKED)
"""Those of a process that cannot go on."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What a script says about itself.

    Attributes:
        step: None: nothing.
        until: until when nothing need change (monotonic seconds).
        first_at, last_at: when it said a step first, and last, if that is known (monotonic seconds).
    """

    step: int | None = None
    until: float = 0.0
    first_at: float | None = field(default=None, compare=False)
    last_at: float | None = field(default=None, compare=False)


@dataclass(slots=True)
class WorkerTrack:
    """One worker.

    Attributes:
        began_at: when it was started.
        pid: of its process.
        unseen: why its collectives cannot be known now; empty: they are; None: there is nothing to see yet.
        report, counts, groups: as last seen.
        cpu: how much of a core its process has taken since it last moved (0 to 1); None: nobody knows yet.
        first_at, last_at: when its collectives and steps first changed, and last; None: they have not.
        changed_at: when anything of it last changed, also what its process does.
        looked_at: until when it is known to have changed no more, also because it has no collectives to look at.
    """

    began_at: float
    rank: int = 0
    pid: int = 0
    unseen: str | None = None
    report: ProgressReport = ProgressReport()
    counts: Mapping[Any, object] = field(default_factory=dict)
    groups: Sequence[ProcessGroupProgress] = ()
    cpu: float | None = None
    first_at: float | None = None
    last_at: float | None = None
    changed_at: float = field(init=False)
    looked_at: float = field(init=False)
    _state: ProcessState = ProcessState.RUNS
    _state_since: float = field(init=False)
    _longest_s: float = 0.0
    _still: bool = False
    _news: tuple[object, ...] = ()
    _cpu_began: tuple[float, float] | None = None  # the first reading since it moved: when, how much
    _answers: int = 0
    _waits: int = 0

    def __post_init__(self) -> None:
        self.changed_at = self.looked_at = self._state_since = self.began_at

    # -- what is seen ------------------------------------------------------------------------------------------

    def on_process_state(self, state: ProcessState, at: float) -> None:
        """What its process does."""
        if state is self._state:
            return
        self._state, self._state_since = state, at
        if state is ProcessState.ENDED:  # it may have gone on since it was last asked
            self._record_change(at, counts=False)

    def on_report(self, report: ProgressReport, at: float) -> None:
        """What the script says."""
        if report != self.report:
            # An announced pause is none, and neither is its end.
            self._record_change(at, counts=self.report.until == 0.0 and self.report.step is not None)
            if report.step is not None and report.step != self.report.step:
                first_at, last_at = (
                    at if moment is None else min(moment, at) for moment in (report.first_at, report.last_at)
                )
                self._record_move(first_at, last_at)
            self.report, self.looked_at = report, at

    def on_cpu_time(self, cpu_s: float | None, at: float) -> None:
        """So much CPU time all its threads have taken so far (seconds); None: nobody can tell."""
        self.cpu = None
        if cpu_s is None:
            self._cpu_began = None
        elif self._cpu_began is None or self._cpu_began[0] < self.changed_at:
            self._cpu_began = at, cpu_s
        elif (for_s := at - self._cpu_began[0]) >= MIN_CPU_WINDOW_S:
            self.cpu = min(1.0, max(0.0, cpu_s - self._cpu_began[1]) / for_s)

    def on_collectives(
        self,
        counts: Mapping[Any, object],
        groups: Sequence[ProcessGroupProgress],
        at: float,
        *,
        waits: bool,
    ) -> None:
        """How far its collectives are.

        If it does not wait for one of them, and one is not done, it computes meanwhile, and moves.
        """
        self.unseen = ""
        self._answers += 1
        self._waits += waits
        if counts != self.counts:
            self._record_change(at, counts=bool(self.counts) and self.report.until <= self.changed_at)
            self.counts = counts
            if any(group.enqueued for group in groups):
                self._record_move(self.looked_at, at)
        elif not waits and any(map(is_waiting, groups)):
            self._record_change(at, counts=False)
            self._record_move(at, at)
        self.groups, self.looked_at = groups, at

    def _record_change(self, at: float, *, counts: bool) -> None:
        if counts:
            self._longest_s = max(self._longest_s, at - self.changed_at)
        self.changed_at = max(self.changed_at, at)

    def _record_move(self, first_at: float, last_at: float) -> None:
        """It has moved; if it had not before, it may have begun to at `first_at`."""
        self.last_at = last_at if self.last_at is None else max(last_at, self.last_at)
        if self.first_at is None:
            self.first_at = min(first_at, last_at)

    def on_probe_failure(self, why: str, at: float) -> None:
        """Nothing at all can be known of it now."""
        self.on_process_state(ProcessState.UNKNOWN, at)
        self.unseen = why

    # -- what follows ------------------------------------------------------------------------------------------

    @property
    def idle_s(self) -> float:
        """For how long nothing had changed when it was last seen (seconds)."""
        return max(0.0, self.looked_at - self.changed_at)

    def state(self, at: float) -> ProcessState:
        """What its process does, if that is known, and if it runs, its collectives are."""
        state = self._state
        if state is ProcessState.BLOCKED and min(at - self._state_since, self.idle_s) < MIN_BLOCKED_S:
            state = ProcessState.RUNS
        return ProcessState.UNKNOWN if state is ProcessState.RUNS and self.unseen != "" else state

    def is_stalled(self, at: float, hang_timeout_s: float | None) -> bool:
        """Whether it is known not to have moved for unusually long."""
        if self._state is ProcessState.ENDED:
            return self.idle_s >= MIN_STILL_S
        is_unseen = self.unseen != "" and self.report.step is None and self._state not in FROZEN_STATES
        if self._state is ProcessState.UNKNOWN or is_unseen:
            return False
        limit_s = max(MIN_STILL_S, STILL_PAUSE_FACTOR * self._longest_s)
        if hang_timeout_s is not None:
            limit_s = min(limit_s, hang_timeout_s / 2)
        if not self.counts and self.report.step is None and self._state not in FROZEN_STATES:
            limit_s = STILL_BEFORE_FIRST_MOVE_S if self._answers else inf
        return self.idle_s >= limit_s and at >= self.report.until

    def take_urgent_changes(self, at: float, hang_timeout_s: float | None) -> tuple[object, ...]:
        """Settle whether it is still; returns of what the server has to know at once that it has changed."""
        self._still = self.is_stalled(at, hang_timeout_s)
        state = self.state(at)
        lasted = self._still and hang_timeout_s is not None and self.idle_s >= hang_timeout_s
        unseen = state is ProcessState.UNKNOWN and (self._state is ProcessState.UNKNOWN or self._answers > 0)
        process = ProcessState.RUNS if state is ProcessState.UNKNOWN else state
        begun = self.rank == 0 and self.first_at is not None  # from then on the job trains
        if state is not ProcessState.ENDED or at - self._state_since >= REPORT_ENDED_AFTER_S:
            # another moment if it has gone on, and stands again
            self._news = (process, self.changed_at if self._still else None, lasted, unseen, begun)
        return self._news

    def to_worker_progress(self, at: float, *, most: int = MAX_PROCESS_GROUPS) -> WorkerProgress:
        """What the server is told, at most of so many process groups."""
        state = self.state(at)
        known = state is not ProcessState.UNKNOWN
        # first those in which it waits
        groups = sorted(self.groups, key=is_waiting, reverse=True)[:most] if known else ()
        return WorkerProgress(
            rank=self.rank,
            pid=self.pid,
            state=state,
            unseen="" if known else (self.unseen or "")[:MAX_REASON_CHARACTERS],
            idle_s=round(self.idle_s, 3),
            began_s=None if self.first_at is None else round(max(0.0, self.looked_at - self.first_at), 3),
            still=self._still,
            cpu=None if self.cpu is None else round(self.cpu, 2),
            waiting=round(self._waits / self._answers, 3) if groups else None,
            long_s=round(min(max(0.0, self.report.until - at), MAX_SECONDS), 3),
            step=self.report.step,
            collectives=tuple(groups),
        )


def is_waiting(group: ProcessGroupProgress) -> bool:
    """Whether a worker has asked for a collective of this group that is not done."""
    return group.enqueued > group.completed


def node_progress(
    round_number: int, tracks: Sequence[WorkerTrack], watched_at: float, at: float
) -> NodeProgress:
    """What the server is told of the workers of a round on this node, which were last looked at at `watched_at`."""
    looked_at = max(track.looked_at for track in tracks)
    most = max(1, min(MAX_PROCESS_GROUPS, MAX_ALL_PROCESS_GROUPS // len(tracks)))
    return NodeProgress(
        round=round_number,
        age_s=round(max(0.0, at - looked_at), 3),
        known_s=round(min(max(0.0, watched_at + SAMPLE_VALIDITY_S - looked_at), MAX_SAMPLE_VALIDITY_S), 3),
        workers=tuple(track.to_worker_progress(at, most=most) for track in tracks),
    )
