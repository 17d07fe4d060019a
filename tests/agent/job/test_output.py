"""Output reaches the console completely if somebody reads it, and holds nobody up if not; captured files stay small."""

import contextlib
import os
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

from hetagent.job import output
from hetagent.job.output import drained, trim

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


def test_all_output_is_waited_for_while_somebody_reads_however_slowly(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "STALL_S", 0.4)
    monkeypatch.setattr(output, "LOOK_S", 0.01)
    log = tmp_path / "log"
    log.write_text(LINE * 600)
    copying = tail(log, pipe)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(drained([copying.stop], [str(log)])))
    waiting.start()
    began = time.monotonic()
    while waiting.is_alive() and len(pipe.got) < 600_000:
        pipe.read(40_000)
        time.sleep(0.1)
    waiting.join(10)
    assert answers == [True]
    assert time.monotonic() - began > 2 * 0.4, "longer than a stall may last"
    pipe.console.flush()


@pytest.mark.parametrize("until_s", [None, 0.2])
def test_output_that_nobody_reads_is_not_waited_for(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch, until_s: float | None
) -> None:
    if until_s is None:
        monkeypatch.setattr(output, "STALL_S", 0.2)
    log = tmp_path / "log"
    log.write_text(LINE * 600)
    copying = tail(log, pipe)
    until = None if until_s is None else time.monotonic() + until_s
    assert not drained([copying.stop], [str(log)], until)
    assert tails() != [], "they copy the rest if somebody reads after all"


def test_a_reader_that_stalls_keeps_neither_the_next_round_nor_the_end_of_the_agent_waiting(
    rig: Make, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.console)
    monkeypatch.setattr(output, "STALL_S", 0.5)
    made = rig("head -c 600000 /dev/zero | tr '\\0' 'x\\n'; touch up.$HET_ROUND; exec sleep 100", tee=Std.OUT)
    made.run(
        *(made.appears("up.1"), made.asks("restart"), made.appears("up.2")),
        *(lambda: monkeypatch.setattr(output, "STALL_S", 1000.0), made.gets(signal.SIGTERM)),
    )
    assert made.said.count("nobody reads the workers' output: continuing without waiting for it") == 2
    assert made.agent.signum == signal.SIGTERM
    assert made.agent.hangs, "whoever runs the agent knows that threads are left"


def written(path: Path) -> int:
    """Bytes on disk."""
    return 512 * path.stat().st_blocks


@pytest.fixture
def can_punch(tmp_path: Path) -> None:
    with (tmp_path / "probe").open("wb") as file:
        file.write(b"x" * 100_000)
        file.flush()
        try:
            output._punch(file.fileno(), 50_000)
        except OSError as error:
            pytest.skip(f"this file system cannot give back the beginning of a file: {error}")


def test_a_file_is_trimmed_behind_its_reader_and_its_writer_notices_nothing(
    tmp_path: Path, can_punch: None
) -> None:
    log = tmp_path / "log"
    with log.open("w") as writer, log.open() as reader:
        writer.writelines(f"{number:9} {LINE[11:]}" for number in range(LINES))
        writer.flush()
        for _ in range(LINES // 2):
            last = reader.readline()
        assert int(last.split()[0]) == LINES // 2 - 1
        trim(str(log))
        assert written(log) < log.stat().st_size * 0.6
        assert int(reader.readline().split()[0]) == LINES // 2, "nothing unread is lost"
        for line in reader:
            last = line
        trim(str(log))
        assert written(log) < output.KEPT + 1_000_000
        writer.write("the end\n")
        writer.flush()
        assert reader.readline() == "the end\n"
    assert log.read_text().endswith(f"{last}the end\n")
    trim(str(log))


def test_the_stderr_of_programs_does_not_fill_the_disk(
    rig: Make, can_punch: None, capfd: pytest.CaptureFixture[str]
) -> None:
    log = "$(dirname $TORCHELASTIC_ERROR_FILE)/stderr.log"
    made = rig(
        f"yes {LINE[1:-1]} | head -n {LINES} >&2; "
        f"while [ $(du -k {log} | cut -f1) -gt 17000 ]; do sleep 0.05; done; echo the end >&2; exit 3",
        is_python=False,
        max_restarts=0,
    )
    assert made.run() == 3
    assert made.group()["root_cause"]["failure"]["message"].endswith("\nthe end")
    said = capfd.readouterr().err.splitlines()
    assert sum(line.startswith("[default0]:xxx") for line in said) == LINES, "all of it reached the console"
    assert not any("\0" in line for line in said)
