"""Stacks of workers that cannot show them, and of a round that ends while somebody else asks for them."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.agent.rig import soon
from tests.agent.workers.test_store import start
from tests.support.fuse import DeadFiles

from hetagent.monitor import round_watch, stacks, watcher
from hetagent.monitor.round_watch import RoundWatch
from hetagent.monitor.stall_detector import State
from hetagent.monitor.watcher import Watcher
from hetagent.node.processes import proctree
from hetrdzv.protocol.directive import StacksAsked
from hetrdzv.protocol.stacks import Stack
from hetrdzv.protocol.states import DirectiveKind


def watch_of(pid: int) -> RoundWatch:
    watch = RoundWatch(1, 2, lambda: None)
    watch.begin({0: pid}, 0)
    return watch


def test_a_process_that_hangs_in_the_kernel_is_said_to_once_it_has_for_a_while(tmp_path: Path) -> None:
    with DeadFiles(tmp_path / "dead") as files:
        look = f"import os; os.stat({str(files.folder / 'file')!r})"
        process = subprocess.Popen([sys.executable, "-c", look], stderr=subprocess.DEVNULL)
        watch = watch_of(process.pid)
        assert files.asked.wait(15)
        process.kill()  # until then it waits as for any file
        soon(lambda: proctree.state(process.pid) == "D", "its hang")
        soon(lambda: watch.stacks(None, 0.1)[0].why == "its process hangs in the kernel (state D)", "that")
    process.wait()
    (stack,) = watch.stacks(None, 1.0)
    assert stack.why == "its process has ended"
    watch.close()


def test_one_that_is_there_for_a_moment_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # a shell is, while it starts a child
    watch = watch_of(os.getpid())
    monkeypatch.setattr(round_watch, "process_state", lambda pid: State.BLOCKED)
    (stack,) = watch.stacks(None, 0.5)
    watch.close()
    assert stack.why.startswith(("it does not run torch's server", "py-spy"))


class Rounds:
    """An agent's watcher of rounds of one worker, the stack of which is known, and that of another, who hangs.

    Attributes:
        asked: whether their stacks are being taken.
        answered: to be set when the other's is known, too.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.asked, self.answered = threading.Event(), threading.Event()
        self.line, launch = Mock(), Mock(uses_process_groups=True, one_per_node=False)
        self.watcher = Watcher(self.line, launch, cpu=True, reports_output=True, keeps_stacks=True)
        monkeypatch.setattr(stacks, "take", self._take)

    def _take(self, targets: Sequence[stacks.Target], *given: Any) -> list[Stack]:
        taken = given[-1]
        taken[0] = Stack(rank=0, text="in barrier")
        self.asked.set()
        self.answered.wait(20)
        return list(taken.values())

    def begin(self, number: int) -> None:
        place = Mock(rank_offset=0, world_size=2)
        self.watcher.prepare(Mock(round=number, start=place), Mock())
        files = {rank: str(self.path / f"{number}.{rank}" / "error.json") for rank in range(2)}
        for file in files.values():
            Path(file).parent.mkdir()
        workers = Mock(pids=dict.fromkeys(range(2), os.getpid()), started=Mock(error_files=files))
        workers.output.return_value = (b"", b"")
        self.watcher.begin(workers)

    def hangs(self) -> None:
        stop = replace(start("a", 1), kind=DirectiveKind.STOP, start=None, hang=True)
        self.watcher.on_directive(stop)

    def shown(self, number: int) -> list[str]:
        return [path.read_text() for path in sorted(self.path.glob(f"{number}.*/stack.txt"))]


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    made = Rounds(tmp_path, monkeypatch)
    made.begin(1)
    yield made
    made.answered.set()
    made.watcher.end()


def test_stacks_of_a_hang_are_there_although_somebody_else_waits_for_them(rounds: Rounds) -> None:
    _, ask = rounds.line.watch.call_args.args
    ask(StacksAsked(number=1, round=1))
    assert rounds.asked.wait(10)
    rounds.hangs()
    assert rounds.shown(1) == ["in barrier\n", f"no stack: {round_watch.NOT_YET}\n"]


def test_stacks_that_come_late_are_those_of_their_round(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "LAST_STACKS_S", 0.6)
    rounds.hangs()
    rounds.begin(2)
    rounds.answered.set()
    soon(lambda: rounds.shown(1) == ["in barrier\n"], "that")
    assert rounds.shown(2) == []
