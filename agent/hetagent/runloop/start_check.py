"""Looks whether the workers of all nodes have met, some time after they were started."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.roundhook import RoundHook
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import make_round_report
from hetagent.workers.processes import Workers
from hetrdzv.protocol.states import ReportKind

MEET_AFTER_S = 60.0
"""When to look whether the workers have met (seconds after their start); they import, and read their data, before."""


class StartCheck(RoundHook):
    """Whether the workers of all nodes have met in the round's store, as its master sees it (`count_workers`).

    With `must_meet` it is a failure if workers end well but have not met.
    """

    def __init__(
        self,
        server: ServerConnection,
        count_workers: Callable[[], int | None],
        log: Callable[[str], None],
        *,
        must_meet: bool = False,
    ) -> None:
        self._server = server
        self._count_workers = count_workers
        self._log = log
        self._must_meet = must_meet
        self._due_at: float | None = None

    def on_round_start(self, assignment: Assignment, command: WorkerCommand) -> None:
        self._round, self._world_size = assignment.round, assignment.start.world_size
        self._reported = self._world_size  # how many had met at the last look

    def on_workers_started(self, workers: Workers) -> None:
        self._due_at = time.monotonic() + MEET_AFTER_S

    def due_at(self) -> float | None:
        return self._due_at

    def on_wakeup(self) -> None:
        """Report how many have met if that is not all, and once it is: they may only have been loading."""
        met = self._count_met_workers()
        is_late = met is not None and met < self._world_size
        self._due_at = time.monotonic() + MEET_AFTER_S if is_late else None
        if met is None or met == self._reported:
            return
        self._reported = met
        hint = (
            ": unless they are still loading, or meet in another way than init_process_group with env://, they train "
            "alone or wait for each other"
        )
        text = f"{met} of {self._world_size} workers have met by now{hint if is_late else ''}"
        self._log(f"round {self._round}: {text}")
        self._server.send(make_round_report(ReportKind.STARTED, self._round, met=met))

    def report_fields(self) -> Mapping[str, Any]:
        """Fields of a report of success."""
        return {"met": self._count_met_workers(), "must_meet": self._must_meet}

    def _count_met_workers(self) -> int | None:
        """How many workers of all nodes have met; None: there is only one, or it is unknown."""
        met = self._count_workers() if self._world_size > 1 else None
        return None if met is None else min(met, self._world_size)

    def on_round_end(self) -> None:
        self._due_at = None
