"""A forked program behaves like one started for real: what it finds, and how it ends.

That it can be watched and killed, gets its standard input and runs on a host of its own, all other tests show.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.programs import start as programs
from tests.support.servers import ROOT

PROBE = "tests.support.programs.probe"

Run = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a probe to its end: its exit status, and the lines of its output and of its errors."""
    monkeypatch.setattr(programs, "PRELOADED", {PROBE: ()})
    monkeypatch.setattr(programs, "COLD", False)
    servers = programs.ForkServers()
    monkeypatch.setattr(programs, "servers", servers)
    servers.warm()

    def to_end(*words: str, warm: bool, **env: str) -> tuple[int, list[str], list[str]]:
        out, err = tmp_path / "out", tmp_path / "err"
        how = contextlib.nullcontext() if warm else servers.unused()
        with out.open("wb") as stdout, err.open("wb") as stderr, how:
            process = programs.start_program(
                [sys.executable, "-m", PROBE, *words],
                env={**os.environ, "PYTHONPATH": str(ROOT), **env},
                stdout=stdout,
                stderr=stderr,
            )
        assert isinstance(process, programs.Forked) == warm
        return process.wait(30.0), out.read_text().splitlines(), err.read_text().splitlines()

    yield to_end
    servers.close()


def test_it_finds_what_it_would_have_found(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AT_FIRST", "only")
    run("exit", "0", warm=True)  # must not pass its environment on
    monkeypatch.delenv("AT_FIRST")
    monkeypatch.chdir(tmp_path)
    both = [run("exit", "0", warm=warm, A_VARIABLE="two words") for warm in (True, False)]
    assert [(status, said) for status, _, said in both] == [(0, [])] * 2
    warm, cold = (json.loads(output[0]) for _, output, _ in both)
    assert warm == cold
    assert "A_VARIABLE=two words" in warm["libc"]
    assert warm["cwd"] == str(tmp_path)


@pytest.mark.parametrize(
    ("words", "status", "last"),
    [
        (["exit", "3"], 3, ["at exit"]),
        (["raise"], 1, ["at exit"]),
        (["kill"], -signal.SIGKILL, []),
        (["thread"], 0, ["at exit"]),
    ],
)
def test_it_ends_as_it_would_have_ended(run: Run, words: list[str], status: int, last: list[str]) -> None:
    both = [run(*words, warm=warm) for warm in (True, False)]
    assert [found for found, _, _ in both] == [status, status]
    (warm, warm_said), (cold, cold_said) = ((output[1:], said[-1:]) for _, output, said in both)
    assert (warm, warm_said) == (cold, cold_said)
    assert warm[-1:] == last
