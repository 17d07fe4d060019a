"""Looks whether the workers of all nodes have met, some time after they were started."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import WorkerCommand
from hetagent.roundhook import RoundHook
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import round_report
from hetagent.workers.processes import Workers
from hetrdzv.protocol.states import ReportKind

MEET_AFTER_S = 60.0
"""When to look whether the workers have met (seconds after their start); they import, and read their data, before."""


class StartCheck(RoundHook):
    """Whether the workers of all nodes have met in the round's store, as the master sees it.

    Args:
        server: where it is reported.
        launch: how the workers are started.
        log: shows one line at the terminal.
        must_meet: whether it is a failure if workers end well but have not met.
    """

    def __init__(
        self, server: ServerConnection, launch: Launch, log: Callable[[str], None], *, must_meet: bool = False
    ) -> None:
        self._server = server
        self._launch = launch
        self._log = log
        self._must_meet = must_meet
        self._assignment: Assignment | None = None
        self._workers: Workers | None = None
        self._due_at: float | None = None
        self._reported: int | None = None  # how many had met at the last look; None: all, or nobody looked

    def prepare(self, assignment: Assignment, command: WorkerCommand) -> None:
        self._assignment = assignment

    def begin(self, workers: Workers) -> None:
        assert self._assignment is not None
        self._workers, self._reported = workers, None
        self._due_at = time.monotonic() + MEET_AFTER_S if self._assignment.is_master else None

    def due_at(self) -> float | None:
        return self._due_at

    def on_wakeup(self) -> None:
        """Report how many have met if that is not all, and once it is: they may only have been loading."""
        if self._assignment is None or self._due_at is None or time.monotonic() < self._due_at:
            return
        met, world_size = self._met(), self._assignment.start.world_size
        is_late = met is not None and met < world_size
        self._due_at = time.monotonic() + MEET_AFTER_S if is_late else None
        if met is None or met == self._reported or not (is_late or self._reported is not None):
            return
        self._reported = met
        self._log(f"round {self._assignment.round}: {_described(met, world_size)}")
        self._server.send(round_report(ReportKind.STARTED, self._assignment.round, met=met))

    def report_fields(self) -> Mapping[str, Any]:
        """Fields of a report of success."""
        return {"met": self._met(), "must_meet": self._must_meet}

    def _met(self) -> int | None:
        """How many workers of all nodes have met; None: there is only one, or it is unknown."""
        if self._workers is None or self._assignment is None or not self._launch.workers_join_store:
            return None
        world_size = self._assignment.start.world_size
        met = self._launch.count_met_workers(self._workers.started.met) if world_size > 1 else None
        return None if met is None else min(met, world_size)

    def end(self) -> None:
        self._due_at = self._workers = None


def _described(met: int, world_size: int) -> str:
    if met == world_size:
        return f"all {world_size} workers have met by now"
    so_far = f"only {met} of {world_size}" if met else f"none of {world_size}"
    return (
        f"{so_far} workers have met {MEET_AFTER_S:g} s after they started: unless they are still loading, "
        "or meet in another way than init_process_group with env:// or hvd.init(), they train alone or wait for each "
        "other"
    )
