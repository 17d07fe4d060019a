"""The workers of a round as processes: every end is seen, and nothing is left of them."""

import os
import selectors
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hetagent import workers
from hetagent.processes import INCARNATION, living
from hetagent.workers import Exit, Workers

RUN = uuid.uuid4().hex


class Context:
    """As much of torch's process context as `Workers` uses."""

    def __init__(self, folder: Path, commands: list[str]) -> None:
        environment = os.environ | {INCARNATION: RUN}
        self.processes = [
            subprocess.Popen(["sh", "-c", command], env=environment, start_new_session=True)
            for command in commands
        ]
        self.error_files = {rank: str(folder / f"{rank}.json") for rank in range(len(commands))}
        self.stderrs = dict.fromkeys(range(len(commands)), "")
        self.closed: list[tuple[int, float]] = []

    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in enumerate(self.processes)}

    def close(self, death_sig: int, timeout: float) -> None:
        self.closed.append((death_sig, timeout))
        for process in self.processes:
            process.wait(10)


class Round:
    """Workers that run shell commands, and the selector that they are in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.selector = selectors.DefaultSelector()
        self.workers: Workers | None = None

    def start(self, *commands: str) -> Workers:
        self.context = Context(self._folder, list(commands))
        self.workers = Workers(self.context, self.selector, RUN)
        return self.workers

    def ends(self, count: int) -> list[Exit]:
        """The next ends, in the order in which they are seen."""
        assert self.workers is not None
        seen: list[Exit] = []
        until = time.monotonic() + 10
        while len(seen) < count and time.monotonic() < until:
            for key, _ in self.selector.select(0.5):
                assert key.data is self.workers
            seen += self.workers.collect()
        return seen

    def registered(self) -> int:
        return len(self.selector.get_map())


@pytest.fixture
def round_(tmp_path: Path) -> Iterator[Round]:
    made = Round(tmp_path)
    yield made
    if made.workers is not None:
        made.workers.clear()
    assert made.registered() == 0
    made.selector.close()


def soon(what: Callable[[], Any]) -> Any:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.005)
    raise AssertionError("not within 10 s")


@pytest.mark.parametrize(
    ("command", "exit_code", "name"),
    [
        ("exit 0", 0, None),
        ("exit 3", 3, None),
        ("exit 255", 255, None),
        ("kill -TERM $$", None, "SIGTERM"),
        ("kill -SEGV $$", None, "SIGSEGV"),
        ("kill -40 $$", None, "signal 40"),
    ],
)
def test_how_a_worker_ended(round_: Round, command: str, exit_code: int | None, name: str | None) -> None:
    before = time.monotonic()
    made = round_.start(command)
    (end,) = round_.ends(1)
    assert (end.local_rank, end.exit_code, end.signal) == (0, exit_code, name)
    assert end.succeeded == (exit_code == 0)
    assert before <= end.seen_at <= time.monotonic()
    assert not made.running
    assert round_.registered() == 0


def test_each_end_is_seen_once_while_others_run(round_: Round) -> None:
    made = round_.start("sleep 100", "exit 1")
    (end,) = round_.ends(1)
    assert (end.local_rank, end.exit_code) == (1, 1)
    assert made.collect() == []
    assert made.running


def test_a_leader_stays_until_its_round_is_cleaned_up(round_: Round) -> None:
    """Else its pid, which names its session, could be somebody else's when the session is killed."""
    made = round_.start("exit 0")
    round_.ends(1)
    pid = round_.context.processes[0].pid
    assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    made.clear()
    assert not psutil.pid_exists(pid)
    assert round_.context.closed == [(signal.SIGKILL, 0)]


def test_a_signal_reaches_the_whole_process_group(round_: Round, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("trap 'echo $1 >> got; exit 7' TERM; echo $1 >> up; while :; do sleep 0.01; done")
    made = round_.start(f"cd {tmp_path}; sh script child & set leader; . ./script")
    soon(lambda: (tmp_path / "up").exists() and len((tmp_path / "up").read_text().split()) == 2)
    made.send(signal.SIGTERM)
    assert [end.exit_code for end in round_.ends(1)] == [7]
    assert soon(lambda: sorted((tmp_path / "got").read_text().split()) == ["child", "leader"])


def test_a_signal_to_those_who_are_gone_or_not_ours_is_no_error(
    round_: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = round_.start("exit 0")
    round_.ends(1)
    made.send(signal.SIGTERM)

    def refuse(pid: int, signum: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    made.send(signal.SIGTERM)


def test_all_that_a_worker_started_is_killed(round_: Round, tmp_path: Path) -> None:
    """Also what ignores SIGTERM, outlives its parent, or has a session of its own."""
    script = tmp_path / "script"
    script.write_text("trap '' TERM; echo $$ >> pids; while :; do sleep 0.05; done")
    made = round_.start(f"cd {tmp_path}; sh script & setsid sh script & exit 5")
    round_.ends(1)
    soon(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert {psutil.pid_exists(pid) for pid in pids} == {True}
    assert made.clear() == []
    assert not set(pids) & set(living())


def test_running_workers_are_killed(round_: Round) -> None:
    made = round_.start("exec sleep 100", "exec sleep 100")
    made.clear()
    assert [process.returncode for process in round_.context.processes] == [-9, -9]
    assert not made.running


def test_cleaning_up_what_has_ended_waits_for_nothing(round_: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    made = round_.start("exit 0", "exit 0")
    round_.ends(2)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))
    assert made.clear() == []


def test_what_does_not_die_is_named(round_: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    made = round_.start("exec sleep 100")
    pid = round_.context.processes[0].pid
    monkeypatch.setattr(workers, "KILL_WAIT_S", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, signum: None)
        patch.setattr(round_.context, "close", lambda death_sig, timeout: None)
        assert made.clear() == [pid]
    assert made.clear() == []


def test_without_a_descriptor_nothing_stays_registered(
    round_: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    pidfd_open = os.pidfd_open

    def one_only(pid: int) -> int:
        if opened:
            raise OSError(24, "Too many open files")
        opened.append(pidfd_open(pid))
        return opened[0]

    monkeypatch.setattr(os, "pidfd_open", one_only)
    with pytest.raises(OSError, match="Too many"):
        round_.start("exec sleep 100", "exec sleep 100")
    assert round_.registered() == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
    assert workers.kill_all_of(RUN) == []
    assert [process.wait(10) for process in round_.context.processes] == [-9, -9]


def test_of_those_that_fail_together_the_first_is_told(round_: Round, tmp_path: Path) -> None:
    made = round_.start("exit 1", "exit 1", "exit 1", "kill -KILL $$")
    ends = round_.ends(4)
    for rank, age_s in ((0, 1.0), (1, 2.0), (2, 0.5)):
        file = tmp_path / f"{rank}.json"
        file.touch()
        os.utime(file, (time.time() - age_s,) * 2)
    without = [end for end in ends if end.local_rank != 3]
    assert made.first(without).local_rank == 1
    assert made.first(ends).local_rank == 3, (
        "who was killed wrote nothing, and was gone before the others noticed"
    )
