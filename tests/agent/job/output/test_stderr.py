"""The end of the workers' stderr is kept, and the console shows what it would show without that."""

import contextlib
import fcntl
import os
import pty
import resource
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.job.conftest import Make
from tests.support.cluster import wait_for

from hetagent.job.output import console, stderr
from hetagent.job.output.stderr import IN_FLIGHT, KEPT, Copier

SAYS = "import os, sys; e = sys.stderr; "


def start(copier: Copier, code: str) -> "tuple[subprocess.Popen[bytes], stderr.Source]":
    """A program that has its stderr from a copier."""
    source = copier.open()
    assert source is not None
    process = subprocess.Popen([sys.executable, "-c", SAYS + code], stderr=source.writer)
    source.close_writer()
    return process, source


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal that is our stderr; this is where a person would look at it."""
    person, ours = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    monkeypatch.setattr(stderr, "CONSOLE", ours)
    before = signal.getsignal(signal.SIGWINCH)
    yield person
    signal.signal(signal.SIGWINCH, before)
    os.close(ours)
    os.close(person)


def shown(terminal: int, end: bytes) -> bytes:
    """What a person has seen once the end is there."""
    seen = b""
    while not seen.endswith(end):
        seen += os.read(terminal, 65_536)
    return seen


def test_the_console_gets_every_byte_and_the_end_is_kept(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    copier = Copier()
    process, source = start(
        copier, f"e.buffer.write(b'\\x1b[1m\\r\\xff' * {KEPT}); e.write('the end'); sys.exit(3)"
    )
    assert process.wait() == 3
    assert copier.catch_up([source])
    assert capfdbinary.readouterr().err == b"\x1b[1m\r\xff" * KEPT + b"the end"
    assert source.end().endswith(b"\xffthe end")
    assert KEPT <= len(source.end()) <= 2 * KEPT + stderr.CHUNK
    assert copier.catch_up([source]), "also when it has ended"


def test_a_terminal_stays_one(terminal: int) -> None:
    copier = Copier()
    process, source = start(copier, "e.write(f'{e.isatty()} {os.get_terminal_size(2)}\\n\\r\\x1b[32m50%')")
    end = b"50%"
    assert shown(terminal, end) == b"True os.terminal_size(columns=99, lines=33)\r\n\r\x1b[32m50%"
    assert process.wait() == 0
    assert copier.catch_up([source])


def test_a_new_size_is_passed_on(terminal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    copier = Copier()
    source = copier.open()
    assert source is not None
    fcntl.ioctl(stderr.CONSOLE, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 111, 0, 0))
    os.kill(os.getpid(), signal.SIGWINCH)
    wait_for(lambda: os.get_terminal_size(source.writer) == (111, 50), "the new size")
    source.close_writer()


def test_without_a_terminal_there_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    copier = Copier()
    process, source = start(copier, "e.write(str(e.isatty()))")
    process.wait()
    assert copier.catch_up([source])
    assert capfd.readouterr().err == "False"


def test_one_that_writes_on_holds_nobody_up(capfd: pytest.CaptureFixture[str]) -> None:
    copier = Copier()
    with capfd.disabled():
        nowhere, console = os.open(os.devnull, os.O_WRONLY), os.dup(2)
        os.dup2(nowhere, 2)
        try:
            process, source = start(copier, "\nwhile True: os.write(2, b'x' * 65536)")
            wait_for(lambda: source.copied >= IN_FLIGHT, "what it writes")
            assert copier.catch_up([source])
            assert len(source.end()) <= 2 * KEPT + stderr.CHUNK
        finally:
            process.kill()
            process.wait()
            copier.catch_up([source])  # or the next test would see the rest
            os.dup2(console, 2)
            os.close(nowhere)
            os.close(console)


def test_one_that_runs_on_in_silence_holds_nobody_up(capfd: pytest.CaptureFixture[str]) -> None:
    copier = Copier()
    source = copier.open()
    assert source is not None
    for _ in range(20):
        os.write(source.writer, b"y" * 4000)
        assert copier.catch_up([source])
        assert capfd.readouterr().err == "y" * 4000
    source.close_writer()


def test_a_console_that_nobody_reads_holds_up_the_worker_and_not_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console, "STALL_S", 0.2)
    reader, writer = os.pipe()
    monkeypatch.setattr(stderr, "CONSOLE", writer)
    copier = Copier()
    process, source = start(copier, "os.write(2, b'x' * 1_000_000); os.write(2, b'end')")
    held = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)
    wait_for(lambda: len(source.end()) > held, "more than the console holds")
    assert not copier.catch_up([source])
    assert process.poll() is None
    seen = b""
    while not seen.endswith(b"end"):
        seen += os.read(reader, 65_536)
    assert process.wait() == 0
    assert copier.catch_up([source])
    os.close(reader)


def test_one_that_stays_behind_writes_on_when_the_agent_has_ended(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys; from hetagent.job.output.stderr import Copier; c = Copier(); s = c.open();"
        "subprocess.Popen(['sh', '-c', 'read line; echo late >&2'], stdin=0, stderr=s.writer, start_new_session=True);"
        "c.hand_over()"
    )
    ours, theirs = os.pipe()
    with (tmp_path / "err").open("w") as err:
        agent = subprocess.run([sys.executable, "-c", code], stdin=ours, stderr=err, check=True)
    assert agent.returncode == 0
    os.write(theirs, b"go\n")
    wait_for(lambda: (tmp_path / "err").read_text() == "late\n", "what it wrote")
    os.close(ours)
    os.close(theirs)


def test_what_stays_behind_at_a_terminal_ends_without_a_word() -> None:
    code = (
        "import subprocess; from hetagent.job.output.stderr import Copier; c = Copier(); s = c.open();"
        "subprocess.Popen(['sh', '-c', 'read line; echo late >&2'], stdin=0, stderr=s.writer, start_new_session=True);"
        "c.hand_over()"
    )
    ours, theirs = os.pipe()
    person, terminal = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdin=ours, stderr=terminal, check=True)
    os.close(ours)
    os.close(terminal)
    os.write(theirs, b"go\n")
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more
        while data := os.read(person, 65_536):
            seen += data
    os.close(person)
    assert seen == b"late\r\n"


def test_a_disk_that_was_full_for_a_while_gets_what_comes_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "err").open("ab", buffering=0) as file:
        monkeypatch.setattr(stderr, "CONSOLE", file.fileno())
        copier = Copier()
        source = copier.open()
        assert source is not None
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # Python ignores SIGXFSZ
        try:
            os.write(source.writer, b"x" * 4000)
            assert copier.catch_up([source])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        os.write(source.writer, b"later")
        assert copier.catch_up([source])
        source.close_writer()
    assert (tmp_path / "err").read_bytes() == b"x" * 1000 + b"later"


def test_a_worker_is_reported_with_the_end_of_its_stderr(
    rig: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    made = rig("echo usage: x >&2; exit 2", max_restarts=0)
    assert made.run() == 2
    assert "usage: x\n" in capfd.readouterr().err
    cause = made.agent.outcome and made.agent.outcome.root_cause
    assert cause
    assert cause.failure
    assert cause.failure.message == "usage: x"


def test_it_can_be_turned_off(rig: Make, capfd: pytest.CaptureFixture[str]) -> None:
    made = rig("echo usage: x >&2; exit 2", max_restarts=0, report_stderr=False)
    assert made.run() == 2
    assert "usage: x\n" in capfd.readouterr().err
    cause = made.agent.outcome and made.agent.outcome.root_cause
    assert cause
    assert cause.failure
    assert cause.failure.message == "exit code 2"
