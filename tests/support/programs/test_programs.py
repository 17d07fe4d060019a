"""A forked program behaves like one started for real: what it finds, how it ends, how it can be watched."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.netns import hosts
from tests.support.programs import start as programs
from tests.support.servers import ROOT

PROBE = "tests.support.programs.probe"
WAIT_S = 30.0


@dataclass
class Run:
    """A started probe and its output."""

    process: programs.Process
    out: Path
    err: Path

    def said(self) -> dict[str, Any]:
        """What it found, once it has printed that."""
        until = time.monotonic() + WAIT_S
        while "\n" not in (text := self.out.read_text()):
            assert time.monotonic() < until, self.err.read_text()
            time.sleep(0.01)
        found: dict[str, Any] = json.loads(text.splitlines()[0])
        return found


class Starter:
    """Starts probes in a folder."""

    def __init__(self, folder: Path, servers: programs.ForkServers) -> None:
        self._folder = folder
        self._servers = servers
        self._number = 0
        self.runs: list[Run] = []

    def __call__(self, *words: str, warm: bool = True, prefix: tuple[str, ...] = (), **env: str) -> Run:
        """Start one."""
        self._number += 1
        out, err = (self._folder / f"{self._number}.{kind}" for kind in ("out", "err"))
        self._servers.warm()
        how = contextlib.nullcontext() if warm else self._servers.unused()
        with out.open("wb") as stdout, err.open("wb") as stderr, how:
            process = programs.start_program(
                [*prefix, sys.executable, "-m", PROBE, *words],
                env={**os.environ, "PYTHONPATH": str(ROOT), **env},
                stdout=stdout,
                stderr=stderr,
            )
        assert isinstance(process, programs.Forked) == warm
        self.runs.append(Run(process, out, err))
        return self.runs[-1]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    monkeypatch.setattr(programs, "PRELOADED", {PROBE: ()})
    monkeypatch.setattr(programs, "COLD", False)
    monkeypatch.setattr(programs, "servers", servers := programs.ForkServers())
    made = Starter(tmp_path, servers)
    yield made
    for run in made.runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait(WAIT_S)
    servers.close()


def found(run: Run) -> dict[str, Any]:
    """What a probe found, without what differs between processes."""
    said = run.said()
    assert run.process.wait(WAIT_S) == 0
    assert run.err.read_text() == ""
    assert 0 <= said.pop("random") < 1
    said.pop("orig")
    return said


def test_it_finds_what_it_would_have_found(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AT_FIRST", "only")
    start("exit", "0")  # must not pass its environment on
    monkeypatch.delenv("AT_FIRST")
    monkeypatch.chdir(tmp_path)
    warm, cold = (found(start("exit", "0", warm=warm, A_VARIABLE="two words")) for warm in (True, False))
    assert warm == cold
    assert "A_VARIABLE=two words" in warm["libc"]
    assert warm["cwd"] == str(tmp_path)


@pytest.mark.parametrize(
    ("words", "status", "last"),
    [
        (["exit", "3"], 3, "at exit"),
        (["raise"], 1, "at exit"),
        (["kill"], -signal.SIGKILL, ""),
        (["thread"], 0, "at exit"),
    ],
)
def test_it_ends_as_it_would_have_ended(start: Starter, words: list[str], status: int, last: str) -> None:
    runs = [start(*words, warm=warm) for warm in (True, False)]
    assert [run.process.wait(WAIT_S) for run in runs] == [status, status]
    warm, cold = (run.out.read_text().splitlines()[1:] for run in runs)
    assert warm == cold
    assert "".join(warm[-1:]) == last
    warm, cold = (run.err.read_text().splitlines()[-1:] for run in runs)
    assert warm == cold


def test_it_can_be_watched_and_killed(start: Starter) -> None:
    run, other = start("sleep"), start("sleep")
    run.said(), other.said()
    assert run.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        run.process.wait(0.01)
    os.kill(run.process.pid, signal.SIGKILL)
    until = time.monotonic() + WAIT_S
    while (state := psutil.Process(run.process.pid).status()) != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, state
    os.kill(run.process.pid, signal.SIGTERM)  # its pid cannot be reused yet
    assert other.process.poll() is None
    other.process.send_signal(signal.SIGINT)
    assert other.process.wait(WAIT_S) == -signal.SIGINT
    assert "KeyboardInterrupt" in other.err.read_text()
    assert run.process.poll() == -signal.SIGKILL == run.process.wait(0)
    assert not psutil.pid_exists(run.process.pid)
    run.process.kill()


def test_its_standard_input_ends_with_what_the_test_holds(start: Starter, tmp_path: Path) -> None:
    """With two of them, neither holds the other's open."""
    with (tmp_path / "out").open("wb") as out:
        command = [sys.executable, "-m", PROBE, "read"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        programs.servers.warm()
        one, other = (
            programs.start_program(command, env=env, stdin=subprocess.PIPE, stdout=out, stderr=out)
            for _ in range(2)
        )
    for process in (one, other):
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.write(b"word")
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
    assert (tmp_path / "out").read_text().count("read word") == 2


@pytest.mark.netns
def test_on_a_host_of_its_own(start: Starter) -> None:
    if why := hosts.missing():
        pytest.skip(why)
    with hosts.Hosts() as net:
        host = net.switch("lan").host("a")
        warm, cold = (
            found(start("exit", "0", warm=warm, prefix=tuple(host.prefix))) for warm in (True, False)
        )
    assert warm == cold
    assert warm["interfaces"] == ["eth0", "lo"]
    assert warm["net"] != os.readlink("/proc/self/ns/net")
