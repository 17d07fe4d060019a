"""Output reaches the console completely if somebody reads it, and holds nobody up if not."""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.job.rig import Make, soon, tails
from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from hetagent.workers import console
from hetagent.workers.console import drained

# torch forgets the files of workers that end by themselves.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

LINES = 40_000
LINE = "x" * 999 + "\n"


class Pipe:
    """A console that somebody may read, or not."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        self.console = os.fdopen(writing, "w")
        self.got = b""

    def read(self, most: int = 65_536) -> bytes:
        part = os.read(self.reading, most)
        self.got += part
        return part

    def close(self) -> None:
        reader = threading.Thread(target=lambda: deque(iter(self.read, b""), maxlen=0))
        reader.start()
        soon(lambda: not tails(), "the end of all copying")
        with contextlib.suppress(OSError):
            self.console.close()
        reader.join(10)
        os.close(self.reading)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def tail(log: Path, pipe: Pipe) -> TailLog:
    return TailLog("t", {0: str(log)}, pipe.console, {0: ""}, interval_sec=0.01).start()


def test_all_output_is_waited_for(tmp_path: Path, pipe: Pipe) -> None:
    log = tmp_path / "log"
    log.write_text(LINE * 600)
    copying = tail(log, pipe)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(drained([copying.stop])))
    waiting.start()
    while waiting.is_alive():
        if select.select([pipe.reading], [], [], 0.1)[0]:
            pipe.read(40_000)
            time.sleep(0.02)
    assert answers == [True]


@pytest.mark.parametrize("until_s", [None, 0.2])
def test_output_that_nobody_reads_is_not_waited_for(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch, until_s: float | None
) -> None:
    if until_s is None:
        monkeypatch.setattr(console, "WAIT_S", 0.2)
    log = tmp_path / "log"
    log.write_text(LINE * 600)
    copying = tail(log, pipe)
    until = None if until_s is None else time.monotonic() + until_s
    assert not drained([copying.stop], until)
    assert tails() != [], "they copy the rest if somebody reads after all"


def test_a_reader_that_stalls_keeps_neither_the_next_round_nor_the_end_of_the_agent_waiting(
    rig: Make, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.console)
    monkeypatch.setattr(console, "WAIT_S", 0.5)
    made = rig("head -c 600000 /dev/zero | tr '\\0' 'x\\n'; touch up.$HET_ROUND; exec sleep 100", tee=Std.OUT)
    made.run(
        *(made.appears("up.1"), made.asks("restart"), made.appears("up.2")),
        *(lambda: monkeypatch.setattr(console, "WAIT_S", 1000.0), made.gets(signal.SIGTERM)),
    )
    assert made.said.count("console is blocked; continuing without waiting for the workers' output") == 2
    assert made.agent.ended_by == "SIGTERM"
    assert made.agent.hangs, "whoever runs the agent knows that threads are left"
