"""The console shows what workers write as it would without the agent in between, and the end of it is kept."""

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent.rig import Make, soon, tails
from tests.support.cluster import wait_for
from torch.distributed.elastic.multiprocessing import Std

from hetagent.workers import output
from hetagent.workers.output import STDERR, STDOUT, TAIL_BYTES, CapturedOutput, OutputCapture

Capture = Callable[[int], OutputCapture]


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[Capture]:
    """Captures what goes to a descriptor as if that were our stderr."""
    made: list[OutputCapture] = []

    def make(console: int) -> OutputCapture:
        monkeypatch.setattr(output, "STDERR", console)
        made.append(OutputCapture())
        return made[-1]

    yield make
    for one in made:
        one.hand_over()


def start(capture: OutputCapture, code: str) -> tuple["subprocess.Popen[bytes]", CapturedOutput]:
    """A program whose stderr is captured."""
    captured = capture.open(STDOUT, output.STDERR)
    code = f"import os, sys; e = sys.stderr; {code}"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=captured.writers[output.STDERR])
    captured.close_writers()
    return process, captured


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal: where a person looks at it, and what would be our stderr."""
    person, ours = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    yield person, ours
    os.close(ours)
    os.close(person)


def test_the_console_gets_every_byte_and_the_end_is_kept(
    capture: Capture, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    copies = capture(STDERR)
    process, captured = start(
        copies,
        f"e.buffer.write(b'\\x1b[1m\\r\\xff' * {TAIL_BYTES}); e.write(f'{{e.isatty()}} end'); sys.exit(3)",
    )
    assert process.wait() == 3
    assert copies.wait_for_output()
    assert capfdbinary.readouterr().err == b"\x1b[1m\r\xff" * TAIL_BYTES + b"False end"
    assert captured.stderr.endswith(b"\xffFalse end")
    assert len(captured.stderr) == TAIL_BYTES
    assert copies.wait_for_output(), "also when it has ended"


def test_a_terminal_stays_one(capture: Capture, terminal: tuple[int, int]) -> None:
    person, ours = terminal
    copies = capture(ours)
    process, _ = start(
        copies, f"e.write(f'{{e.isatty()}} {{os.get_terminal_size({STDERR})}}\\n\\r\\x1b[32m50%')"
    )
    seen = b""
    while not seen.endswith(b"50%"):
        seen += os.read(person, 65_536)
    assert seen == b"True os.terminal_size(columns=99, lines=33)\r\n\r\x1b[32m50%"
    assert process.wait() == 0
    assert copies.wait_for_output()


def test_one_that_writes_on_holds_nobody_up(capture: Capture) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    copies = capture(nowhere)
    process, captured = start(copies, "\nwhile True: os.write(2, b'x' * 65536)")
    wait_for(lambda: len(captured.stderr) == TAIL_BYTES, "what it writes")
    assert copies.wait_for_output()
    process.kill()
    process.wait()
    assert copies.wait_for_output()
    os.close(nowhere)


def test_a_blocked_console_holds_up_the_worker_and_not_the_agent(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "WAIT_S", 0.2)
    reader, writer = os.pipe()
    copies = capture(writer)
    process, _ = start(copies, "os.write(2, b'x' * 1_000_000); os.write(2, b'end')")
    wait_for(lambda: not copies.wait_for_output(), "a console that is full")
    assert process.poll() is None
    seen = b""
    while not seen.endswith(b"end"):
        seen += os.read(reader, 65_536)
    assert seen == b"x" * 1_000_000 + b"end"
    assert process.wait() == 0
    assert copies.wait_for_output()
    os.close(reader)


def test_lines_of_workers_that_write_much_are_not_mixed(capture: Capture, terminal: tuple[int, int]) -> None:
    person, console = terminal
    copies = capture(console)
    made = [start(copies, f"[os.write(2, b'{mark * 60}\\n') for _ in range(5000)]") for mark in "ab"]
    seen = b""
    while seen.count(b"\n") < 10_000:
        seen += os.read(person, 4096)
    assert {*seen.splitlines()} == {b"a" * 60, b"b" * 60}
    for process, _ in made:
        assert process.wait() == 0


STAYS = (
    "import subprocess; from hetagent.workers.output import OutputCapture; c = OutputCapture(); s = c.open(1, 2);"
    "subprocess.Popen(['sh', '-c', 'read line; echo late >&2'], stdin=0, stderr=s.writers[2], start_new_session=True);"
    "s.close_writers(); c.hand_over()"
)
"""An agent that ends while something that a worker has detached writes on."""


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_stays_behind_writes_on_when_the_agent_has_ended(tmp_path: Path, is_terminal: bool) -> None:
    ours, theirs = os.pipe()
    person, console = (
        pty.openpty() if is_terminal else (-1, os.open(tmp_path / "err", os.O_RDWR | os.O_CREAT))
    )
    subprocess.run([sys.executable, "-c", STAYS], stdin=ours, stderr=console, check=True)
    os.close(ours)
    os.write(theirs, b"go\n")
    os.close(theirs)
    os.close(console)
    if is_terminal:
        assert os.read(person, 65_536) == b"late\r\n"
        os.close(person)
    else:
        wait_for(lambda: (tmp_path / "err").read_text() == "late\n", "what it wrote")


@pytest.mark.parametrize(("reports", "message"), [(True, "usage: x"), (False, "")])
def test_a_worker_is_reported_with_the_end_of_its_stderr(
    rig: Make, capfd: pytest.CaptureFixture[str], reports: bool, message: str
) -> None:
    made = rig("echo usage: x >&2; exit 2", max_restarts=0, report_output=reports)
    assert made.run() == 2
    assert "usage: x\n" in capfd.readouterr().err
    assert made.group()["root_cause"]["failure"]["message"] == message


def test_what_comes_through_both_is_kept_in_its_order_and_what_goes_into_a_file_is_left_alone(
    capture: Capture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copies = capture(STDERR)
    captured = copies.open(STDOUT, STDERR)
    for console, text in ((STDOUT, b"loss 3\n"), (STDERR, b"warning\n"), (STDOUT, b"loss 2\n")):
        os.write(captured.writers[console], text)
        assert copies.wait_for_output()
    captured.close_writers()
    assert captured.both == b"loss 3\nwarning\nloss 2\n"
    assert captured.stderr == b"warning\n"
    with (tmp_path / "out").open("w") as out, Path(os.devnull).open("w") as nowhere:
        captured = copies.open(out.fileno(), nowhere.fileno())
        assert list(captured.writers) == [STDERR]
        os.write(captured.writers[STDERR], b"of a rank that is not shown\n")
        assert copies.wait_for_output()
        captured.close_writers()
    assert captured.stderr == captured.both == b"of a rank that is not shown\n"
    assert capfd.readouterr() == ("loss 3\nloss 2\n", "warning\n")


def test_a_reader_that_stalls_keeps_neither_the_next_round_nor_the_end_of_the_agent_waiting(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    console = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stdout", console)
    monkeypatch.setattr(output, "WAIT_S", 0.5)
    made = rig("head -c 600000 /dev/zero | tr '\\0' 'x\\n'; touch up.$HET_ROUND; exec sleep 100", tee=Std.OUT)
    try:
        made.run(
            *(made.appears("up.1"), made.asks("restart"), made.appears("up.2")),
            *(lambda: monkeypatch.setattr(output, "WAIT_S", 1000.0), made.gets(signal.SIGTERM)),
        )
    finally:
        reader = threading.Thread(target=lambda: deque(iter(lambda: os.read(reading, 65_536), b""), maxlen=0))
        reader.start()
        soon(lambda: not tails(), "the end of all copying")
        with contextlib.suppress(OSError):
            console.close()
        reader.join(10)
        os.close(reading)
    assert made.agent.shutdown.ended_by == "SIGTERM"
