"""The phases of this node's part of a round, with real processes."""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.agent.rig import soon
from tests.agent.workers.test_store import start

from hetagent.errors import OutOfResourcesError
from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import WorkerCommand
from hetagent.node.processes import proctree as processes
from hetagent.roundhook import RoundHook
from hetagent.runloop.local_round import LocalRound, Phase
from hetagent.runloop.parts import Parts
from hetagent.workers.starter import Program, StartedWorker, Take
from hetrdzv.protocol.snapshots import StartSnapshot


class Popens:
    """A starter that starts one process and nothing else."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        assignment: Assignment,
        command: WorkerCommand,
        environs: Sequence[Mapping[str, str | None]],
        take: Take | None,
    ) -> Mapping[int, StartedWorker]:
        environ = {name: value for name, value in environs[0].items() if value is not None}
        program = Program((command.entrypoint, *command.args), os.environ | environ)
        self.process = (take and take(0, program, 1, 2)) or subprocess.Popen(
            program.args, env=program.environ, start_new_session=True
        )
        return {0: StartedWorker(self.process.pid)}

    def catch_up(self, until: float) -> bool:
        return True

    def end_round(self, until: float | None) -> bool:
        assert self.process is not None
        self.process.wait(10)
        return True


class Gate(RoundHook):
    """Snapshots that hold back what a test wants held back, and note what they are told."""

    def __init__(self) -> None:
        self.before_end = False
        self.save_for_s: float | None = None
        self.why_not = ""
        self.told: list[str] = []
        self.ahead: subprocess.Popen[bytes] | None = None

    def abandon_reason(self) -> str:
        return self.why_not

    def persistent_sessions(self) -> Collection[int]:
        return ()

    def have_workers_save(self, within_s: float) -> None:
        self.told.append(f"save {within_s:g}")

    def saving_until(self) -> float | None:
        return None if self.save_for_s is None else time.monotonic() + self.save_for_s

    def prepare(self, assignment: Assignment, command: WorkerCommand) -> None:
        self.told.append("prepare")

    def begin(self, *_: Any) -> None:
        self.told.append("begin")

    def end(self) -> None:
        self.told.append("end")

    @property
    def parts(self) -> Parts:
        """These snapshots, with notices and standbys that do what the test says."""
        notices = RoundHook()
        notices.__dict__ |= {"is_end_awaited": lambda: self.before_end, "abandon_reason": lambda: ""}
        standbys = RoundHook()
        standbys.__dict__ |= {"claim_standby": lambda *_: self.ahead, "persistent_sessions": tuple}
        made: Any = {"snapshots": self, "notices": notices, "standbys": standbys}
        return Parts(**made)


class Slow(Launch):
    """Keeps back how its processes have ended, and starts them when a test says so."""

    keeps_back_s = 0.0
    waits = False

    def begin(self, assignment: Assignment) -> WorkerCommand | None:
        return None if self.waits else super().begin(assignment)

    def failure_report_delay_s(self, assignment: Assignment, *, failed: bool) -> float:
        return self.keeps_back_s


class Part:
    """A round of this node whose worker runs some words in a shell."""

    def __init__(self, words: str) -> None:
        self.gate = Gate()
        self.launch = Slow(WorkerCommand("/bin/sh", ("-c", words), is_python=False))
        directive = start("a", 1)
        assert directive.start is not None
        of = replace(directive.start, slots=1)
        assignment = Assignment(group="g", node_id="a", round=1, start=of)
        self.incarnation = uuid.uuid4().hex
        popens: Any = Popens()
        self.round = LocalRound(assignment, self.launch, popens, self.incarnation, self.gate.parts)

    def begin(self) -> None:
        self.round.start({processes.INCARNATION: self.incarnation})

    def ends(self) -> Any:
        return soon(self.round.take_end, "the end")


@pytest.fixture
def part() -> Iterator[Callable[[str], Part]]:
    made: list[Part] = []

    def make(words: str) -> Part:
        made.append(Part(words))
        return made[-1]

    yield make
    for one in made:
        if one.round.has_processes:
            one.round.clear()
        assert processes.find_by_incarnation(one.incarnation) == []


def test_a_node_without_snapshots_does_not_begin_from_nothing_while_others_load_one(
    part: Callable[[str], Part],
) -> None:
    made = part("exit 0")
    made.round._parts.snapshots = None
    assignment = made.round.assignment
    assignment.start = replace(assignment.start, snapshot=StartSnapshot(round=1, step=40, world_size=2))
    with pytest.raises(
        OutOfResourcesError, match=r"snapshot of step 40, and this node keeps none: .*--snapshot-memory"
    ):
        made.begin()
    made.round.clear()
    assert made.round.phase is Phase.GONE


def test_a_round_that_is_over_before_its_start_never_starts(part: Callable[[str], Part]) -> None:
    made = part("exit 0")
    made.launch.waits = True
    made.begin()
    assert (made.round.phase, made.round.has_processes) == (Phase.HELD, False)
    made.round.clear()
    assert made.round.phase is Phase.GONE
    assert made.gate.told == ["end"]


def test_a_failure_for_which_a_room_gives_up_is_none(part: Callable[[str], Part]) -> None:
    made = part("exit 7")
    made.begin()
    made.gate.why_not = "cannot begin from there"
    soon(lambda: made.round.take_end() is None and made.round.phase is Phase.ENDING)
    assert (made.round.take_end(), made.round.abandon_reason()) == (None, "cannot begin from there")
    made.gate.why_not = ""
    assert made.ends().failure.exit_code == 7


def saving(part: Callable[[str], Part], grace_s: float = 60.0) -> Part:
    """A worker that is to be stopped, once it has saved."""
    made = part("trap 'exit 5' TERM; while :; do sleep 0.01; done")
    made.begin()
    made.gate.save_for_s = 60.0
    made.round.stop(signal.SIGTERM, grace_s)
    assert (made.round.phase, made.round.has_stopped()) == (Phase.SAVING, False)
    return made


def test_workers_are_stopped_once_they_have_saved(part: Callable[[str], Part]) -> None:
    made = saving(part)
    assert made.gate.told[-1] == "save 10"
    due_at = made.round.due_at()
    assert due_at is not None
    assert due_at > time.monotonic()
    made.gate.save_for_s = None
    assert not made.round.has_stopped()
    assert made.round.phase is Phase.STOPPING
    soon(made.round.has_stopped)
    made.round.clear()
    assert made.gate.told[-1] == "end"


def test_nobody_saves_longer_than_until_he_would_be_killed(part: Callable[[str], Part]) -> None:
    made = saving(part, grace_s=5.0)
    assert made.gate.told[-1] == "save 5"
    made.round.stop(signal.SIGKILL, 0.0)
    assert made.round.has_stopped(), "a second stop waits for nobody"
    assert made.round.phase is Phase.STOPPING
    assert made.gate.told[-1] == "save 5", "without a grace nothing is saved"


def test_what_ends_during_a_save_is_reported_by_nobody(part: Callable[[str], Part]) -> None:
    made = saving(part)
    os.kill(made.round.pids[0], signal.SIGKILL)
    soon(made.round.has_stopped)
    assert made.round.take_end() is None


def test_a_failure_that_is_kept_back_is_nobodys_once_the_round_is_over(part: Callable[[str], Part]) -> None:
    made = part("exit 7")
    made.launch.keeps_back_s = 60.0
    made.begin()
    soon(lambda: made.round.take_end() is None and made.round.phase is Phase.ENDING, "the failure")
    made.round.stop_for_others(signal.SIGTERM, 5.0)
    assert made.round.has_stopped(), "nobody is waited for"
    made.round.clear()
    assert made.round.take_end() is None


def test_a_room_keeps_workers_that_ended_well_for_the_end_of_the_round(part: Callable[[str], Part]) -> None:
    made = part("exit 0")
    made.gate.before_end = True
    made.begin()
    soon(lambda: made.round.take_end() is None and not made.round._workers.running, "its end")  # type: ignore[union-attr]
    assert made.round.phase is Phase.RUNNING
    made.gate.before_end = False
    assert made.ends().failure is None
