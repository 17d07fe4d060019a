"""The workers of a round as processes: every end is seen, and nothing is left of them."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.cluster import wait_for

from hetagent.node.processes.proctree import INCARNATION, find_stopped
from hetagent.node.processes.signals import capture_signals
from hetagent.workers.leftovers import OrphanReaper
from hetagent.workers.processes import Workers
from hetagent.workers.starter import StartedWorker, WorkerExit

RUN = uuid.uuid4().hex


class Round:
    """Workers that run shell commands, and the socket that wakes whoever waits for their ends."""

    def __init__(self, folder: Path, woken: socket.socket) -> None:
        self._folder = folder
        self._woken = woken
        self.workers: Workers | None = None

    def start(self, *commands: str) -> Workers:
        environment = os.environ | {INCARNATION: RUN}
        self.processes = [
            subprocess.Popen(["sh", "-c", command], env=environment, start_new_session=True)
            for command in commands
        ]
        workers = {
            rank: StartedWorker(process.pid, str(self._folder / f"{rank}.json"))
            for rank, process in enumerate(self.processes)
        }
        self.workers = Workers(workers, self._close, OrphanReaper(RUN, print))
        return self.workers

    def _close(self, until: float | None) -> None:
        for process in self.processes:
            process.wait(10)

    def ends(self, count: int) -> list[WorkerExit]:
        """The next ends, in the order in which they are seen; looks only when a child has ended."""
        assert self.workers is not None
        seen: list[WorkerExit] = []
        while len(seen) < count:
            assert select.select([self._woken], [], [], 10)[0], f"woken for {len(seen)} of {count} ends only"
            self._woken.recv(4096)
            seen += self.workers.take_exits()
        return seen


@pytest.fixture
def round_(tmp_path: Path) -> Iterator[Round]:
    with capture_signals((), []) as woken:
        made = Round(tmp_path, woken)
        yield made
        if made.workers is not None:
            made.workers.kill_remaining()


@pytest.mark.parametrize(
    ("command", "exit_code", "name"),
    [
        ("exit 0", 0, None),
        ("exit 3", 3, None),
        ("kill -TERM $$", None, "SIGTERM"),
        ("kill -40 $$", None, "signal 40"),
    ],
)
def test_how_a_worker_ended(round_: Round, command: str, exit_code: int | None, name: str | None) -> None:
    before = time.monotonic()
    made = round_.start(command)
    (end,) = round_.ends(1)
    failure = made.describe_failure(end, 0)
    assert (end.local_rank, failure.exit_code, failure.signal) == (0, exit_code, name)
    assert end.succeeded == (exit_code == 0)
    assert before <= end.seen_at <= time.monotonic()
    assert not made.running
    assert made.exits == [end]


def test_a_leader_stays_until_its_round_is_cleaned_up(round_: Round) -> None:
    """Else its pid, which names its session, could be somebody else's when the session is killed."""
    made = round_.start("exit 0")
    round_.ends(1)
    pid = round_.processes[0].pid
    assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    made.kill_remaining()
    assert not psutil.pid_exists(pid)


FAMILY = """
import ctypes, os, signal, sys, time

def process(name, *below):
    # Notes that it got SIGTERM, and that it has saved, in one file; first come those below it.
    ctypes.CDLL(None).prctl(15, name.encode())
    ranks = []
    for child in below:
        if (pid := os.fork()) == 0:
            process(*child)
        if child[0] == "rank":
            ranks.append(pid)
    def save(*_):
        note(name + " got")
        time.sleep(0.2)
        for pid in ranks:
            os.waitpid(pid, 0)
        note(name + " saved")
        os._exit(0)
    signal.signal(signal.SIGTERM, save)
    note(name + " up")
    while True:
        time.sleep(10)

def note(text):
    with open("notes", "a") as file:
        file.write(text + "\\n")

process(*eval(sys.argv[1]))
"""
"""A process that handles SIGTERM, and others below it that do so, too, as forks of a script have its handler."""


@pytest.mark.parametrize("command", ["exec {python}", "trap 'exit 0' TERM; {python}; exit 1"])
def test_those_who_save_at_a_signal_keep_their_data_loaders(
    round_: Round, tmp_path: Path, command: str
) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    loaded = ("rank", ("pt_data_worker",))
    python = f'{sys.executable} family.py "{("parent", ("rank",), loaded, ("helper",))}"'

    def notes() -> list[str]:
        return (tmp_path / "notes").read_text().splitlines() if (tmp_path / "notes").exists() else []

    made = round_.start(f"cd {tmp_path}; {command.format(python=python)}", "exec sleep 1000")
    wait_for(lambda: len(notes()) == 5)
    made.send_signal(signal.SIGTERM)
    assert {end.local_rank: end.returncode for end in round_.ends(2)} == {0: 0, 1: -signal.SIGTERM}
    wait_for(lambda: "helper saved" in notes())
    assert notes().count("rank saved") == 2
    assert "pt_data_worker got" not in notes()


def test_ctrl_c_is_for_the_helpers_as_well(round_: Round, tmp_path: Path) -> None:
    """Python itself handles SIGINT: that of a parent of workers, which are to end with it, says nothing."""
    script = "import os, time; pid = os.fork(); open(f'up.{bool(pid)}', 'w'); pid and os.wait(); pid or time.sleep(99)"
    made = round_.start(f'cd {tmp_path}; exec {sys.executable} -c "{script}"')
    wait_for(lambda: (tmp_path / "up.True").exists() and (tmp_path / "up.False").exists())
    made.send_signal(signal.SIGINT)
    round_.ends(1)


def test_what_is_stopped_is_killed_instead_of_waited_for(round_: Round, tmp_path: Path) -> None:
    """A stopped process acts on SIGTERM only once it is continued; others may wait for a child that is stopped."""
    waits = f"cd {tmp_path}; trap 'wait; exit 7' TERM"
    made = round_.start(
        "kill -STOP $$",
        f"{waits}; sh -c 'kill -STOP $$' & touch same; wait",
        f"{waits}; setsid sh -c 'kill -STOP $$' & touch own; wait",
    )
    wait_for(lambda: (tmp_path / "same").exists() and (tmp_path / "own").exists())
    wait_for(lambda: len(find_stopped(made.pids.values())) == 3)
    made.send_signal(signal.SIGTERM)
    ended = {end.local_rank: end.returncode for end in round_.ends(3)}
    assert ended == {0: -signal.SIGKILL, 1: 7, 2: 7}


def test_an_exception_counts_from_when_it_was_raised(round_: Round, tmp_path: Path) -> None:
    made = round_.start(f"touch {tmp_path}/0.json; sleep 0.4; exit 1", "sleep 0.4; exit 1", "exit 1")
    (tmp_path / "2.json").symlink_to(
        os.devnull
    )  # as with --log-dir /dev/null, which is as old as the machine
    ends = sorted(round_.ends(3), key=lambda end: end.local_rank)
    time.sleep(0.3)
    raised_s = [made.describe_failure(end, 5).raised_s or 0.0 for end in ends]
    assert 0.4 <= raised_s[0] < 0.7, "not since it was reported"
    assert raised_s[1:] == [0.0, 0.0]


def test_who_raised_a_moment_ago_has_ended_and_who_raised_before_that_lingers(
    round_: Round, tmp_path: Path
) -> None:
    made = round_.start("sleep 60", "sleep 60", "sleep 60")
    for rank, age_s in ((0, 0.1), (1, 5.0)):
        (tmp_path / f"{rank}.json").write_text(json.dumps({"raised_at": time.time() - age_s}))
    told = [made.describe_failure(end, 5).how for end in made.find_lingering()]
    assert told == ["exit code 1", "has not ended"]


def test_of_those_that_fail_together_the_first_is_told(round_: Round, tmp_path: Path) -> None:
    """By the workers' clocks where they say so: the error files may be on NFS, whose server has one of its own."""
    made = round_.start("exit 1", "exit 1", "exit 1", "exit 1", "kill -KILL $$")
    ends, now = sorted(round_.ends(5), key=lambda end: end.local_rank), time.time()
    for rank, content, age_s in (
        (0, {}, 1.0),
        (1, {}, 2.0),
        (2, {"raised_at": now - 3.0}, 0.5),
        (3, {}, 0.5),
    ):
        file = tmp_path / f"{rank}.json"
        file.write_text(json.dumps(content))
        os.utime(file, (now - age_s,) * 2)
    assert made.find_first_failure([ends[0], ends[1], ends[3]]).local_rank == 1
    assert made.find_first_failure(ends[:4]).local_rank == 2
    assert made.find_first_failure(ends).local_rank == 4, (
        "who was killed wrote nothing, and was gone before the others noticed"
    )
    last = made.describe_failure(ends[2], 7)
    assert (last.local_rank, last.rank, last.exit_code) == (2, 7, 1)
    assert abs((last.raised_s or 0.0) - (ends[2].seen_at - time.monotonic() + time.time() - now + 3.0)) < 0.1
