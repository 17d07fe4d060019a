"""Looks at workers that have run for a while: whether they have met, and what their launch wants to see."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import WorkerCommand
from hetagent.roundhook import RoundHook
from hetagent.session import reports
from hetagent.session.connection import ServerConnection
from hetagent.workers.failures import failure_message
from hetagent.workers.processes import Workers
from hetrdzv.protocol.states import ReportKind

MOST_LOST_PORTS = 3
"""So many rounds in a row may end for a port that was taken; then it is the script that opens it twice."""

MEET_AFTER_S = 60.0
"""When to look whether the workers have met (seconds after their start); they import, and read their data, before."""


class Meeting(RoundHook):
    """Whether the workers of all nodes have met in the round's store, as the master sees it.

    Args:
        line: where it is told.
        launch: how the workers are started.
        tell: shows one line to the person at the terminal.
        must_meet: whether it is a failure if workers end well but have not met.
    """

    def __init__(
        self, line: ServerConnection, launch: Launch, tell: Callable[[str], None], *, must_meet: bool = False
    ) -> None:
        self._line = line
        self._launch = launch
        self._tell = tell
        self._must_meet = must_meet
        self._assignment: Assignment | None = None
        self._workers: Workers | None = None
        self._look_at: float | None = None
        self._told: int | None = None  # how many had met at the last look; None: all, or nobody looked

    def prepare(self, assignment: Assignment, command: WorkerCommand) -> None:
        self._assignment = assignment

    def begin(self, workers: Workers) -> None:
        assert self._assignment is not None
        if self._launch.meets_in_store and self._assignment.start.world_size > 1:
            self._workers, self._told = workers, None
            self._look_at = time.monotonic() + MEET_AFTER_S if self._assignment.is_master else None

    def due_at(self) -> float | None:
        return self._look_at

    def look(self) -> None:
        """Tell how many have met if that is not all, and once it is."""
        assert self._assignment is not None
        number, world_size = self._assignment.round, self._assignment.start.world_size
        met = self._met()
        is_late = met is not None and met < world_size
        # They may only have been loading.
        self._look_at = time.monotonic() + MEET_AFTER_S if is_late else None
        if met is None or met == self._told or not (is_late or self._told is not None):
            return
        self._told = met
        self._tell(f"round {number}: {_described(met, world_size)}")
        self._line.send(reports.started(number, met))

    def report(self, kind: ReportKind) -> Mapping[str, Any]:
        """What a report of success says beside."""
        if kind is not ReportKind.SUCCEEDED:
            return {}
        return {"met": self._met(), "must_meet": self._must_meet}

    def end(self) -> None:
        self._workers = self._look_at = None

    def _met(self) -> int | None:
        """How many workers of all nodes have found each other; None: there is only one, or nobody can tell."""
        if self._workers is None or self._assignment is None:
            return None
        met = self._launch.met(self._workers.started.met)
        return None if met is None else min(met, self._assignment.start.world_size)


def _described(met: int, world_size: int) -> str:
    if met == world_size:
        return f"all {world_size} workers have met by now"
    so_far = f"only {met} of {world_size}" if met else f"none of {world_size}"
    return (
        f"{so_far} workers have met {MEET_AFTER_S:g} s after they started: unless they are still loading, "
        "or meet in another way than init_process_group with env:// or hvd.init(), they train alone or wait for each "
        "other"
    )


class LaunchLook(RoundHook):
    """Has the launch look at its processes once, some time after their start, and at their end.

    Args:
        launch: how the workers are started.
        tell: shows one line to the person at the terminal.
    """

    def __init__(self, launch: Launch, tell: Callable[[str], None]) -> None:
        self._launch = launch
        self._tell = tell
        self._assignment: Assignment | None = None
        self._look_at: float | None = None
        self._pid = 0
        self._workers: Workers | None = None
        self._lost_port = ""  # why it gives up
        self._lost_ports = 0  # in how many rounds in a row

    def prepare(self, assignment: Assignment, command: WorkerCommand) -> None:
        self._assignment = assignment

    def begin(self, workers: Workers) -> None:
        self._workers = workers
        if self._launch.look_after_s is not None:
            self._pid, self._look_at = workers.pids[0], time.monotonic() + self._launch.look_after_s

    def due_at(self) -> float | None:
        return self._look_at

    def look(self) -> None:
        """Tell what the launch warns of."""
        self._look_at = None
        assert self._assignment is not None
        if (warning := self._launch.look(self._assignment, self._pid)) is not None:
            self._tell(warning)

    def abandon_reason(self) -> str:
        """The program could not open its port, which somebody else had taken: that is no failure of the script."""
        if not self._lost_port:
            self._lost_port = self._look_for_port()
        return self._lost_port

    def _look_for_port(self) -> str:
        assert self._assignment is not None
        if self._workers is None or not (self._launch.frees_port and self._assignment.is_master):
            return ""
        failed = next((end for end in self._workers.exits if not end.succeeded), None)
        if failed is None or self._lost_ports == MOST_LOST_PORTS:
            return ""
        port = self._assignment.start.master.script_port
        text = failure_message(self._workers.left(failed.local_rank), failed.status, ())
        if not re.search(rf"\b{port}\b", text) or "address already in use" not in text.lower():
            return ""
        return f"could not begin: another program took port {port} before the script opened it"

    def end(self) -> None:
        if self._workers is not None:
            self._lost_ports = self._lost_ports + 1 if self._lost_port else 0
        self._look_at = self._workers = None
        self._lost_port = ""
