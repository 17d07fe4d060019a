"""The end of what workers write is kept, and the console shows what it would show without that."""

import contextlib
import fcntl
import gc
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

from hetagent.workers import console
from hetagent.workers.copier import CHUNK, IN_FLIGHT, KEPT, Copier, End, Source, caught_up
from hetagent.workers.kept import STDERR, STDOUT, Consoles

SAYS = "import os, sys; e = sys.stderr; "


def start(copier: Copier, code: str) -> tuple["subprocess.Popen[bytes]", Source]:
    """A program that has its stderr from a copier."""
    source = copier.open([End()])
    assert source is not None
    process = subprocess.Popen([sys.executable, "-c", SAYS + code], stderr=source.writer)
    source.close_writer()
    return process, source


def catch_up(copier: Copier, source: Source) -> bool:
    """Wait until all that was written by now is on the console; whether somebody reads that."""
    copier.await_all([source])
    return caught_up([source])


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal: where a person looks at it, and what would be our stderr."""
    person, ours = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    before = signal.getsignal(signal.SIGWINCH)
    yield person, ours
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
    copier = Copier(STDERR)
    process, source = start(
        copier, f"e.buffer.write(b'\\x1b[1m\\r\\xff' * {KEPT}); e.write('the end'); sys.exit(3)"
    )
    assert process.wait() == 3
    assert catch_up(copier, source)
    assert capfdbinary.readouterr().err == b"\x1b[1m\r\xff" * KEPT + b"the end"
    assert source.ends[0].read().endswith(b"\xffthe end")
    assert KEPT <= len(source.ends[0].read()) <= 2 * KEPT + CHUNK
    assert catch_up(copier, source), "also when it has ended"


def test_a_terminal_stays_one(terminal: tuple[int, int]) -> None:
    person, ours = terminal
    copier = Copier(ours)
    process, source = start(copier, "e.write(f'{e.isatty()} {os.get_terminal_size(2)}\\n\\r\\x1b[32m50%')")
    end = b"50%"
    assert shown(person, end) == b"True os.terminal_size(columns=99, lines=33)\r\n\r\x1b[32m50%"
    assert process.wait() == 0
    assert catch_up(copier, source)


def test_a_new_size_is_passed_on(terminal: tuple[int, int]) -> None:
    _, ours = terminal
    copier = Copier(ours)
    source = copier.open([End()])
    assert source is not None
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 111, 0, 0))
    os.kill(os.getpid(), signal.SIGWINCH)
    wait_for(lambda: os.get_terminal_size(source.writer) == (111, 50), "the new size")
    source.close_writer()


def test_without_a_terminal_there_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    copier = Copier(STDERR)
    process, source = start(copier, "e.write(str(e.isatty()))")
    process.wait()
    assert catch_up(copier, source)
    assert capfd.readouterr().err == "False"


def test_one_that_writes_on_holds_nobody_up(capfd: pytest.CaptureFixture[str]) -> None:
    copier = Copier(STDERR)
    with capfd.disabled():
        nowhere, console = os.open(os.devnull, os.O_WRONLY), os.dup(2)
        os.dup2(nowhere, 2)
        try:
            process, source = start(copier, "\nwhile True: os.write(2, b'x' * 65536)")
            wait_for(lambda: source.copied >= IN_FLIGHT, "what it writes")
            assert catch_up(copier, source)
            assert len(source.ends[0].read()) <= 2 * KEPT + CHUNK
        finally:
            process.kill()
            process.wait()
            catch_up(copier, source)  # or the next test would see the rest
            os.dup2(console, 2)
            os.close(nowhere)
            os.close(console)


def test_one_that_runs_on_in_silence_holds_nobody_up(capfd: pytest.CaptureFixture[str]) -> None:
    copier = Copier(STDERR)
    source = copier.open([End()])
    assert source is not None
    for _ in range(20):
        os.write(source.writer, b"y" * 4000)
        assert catch_up(copier, source)
        assert capfd.readouterr().err == "y" * 4000
    source.close_writer()


def test_a_console_that_nobody_reads_holds_up_the_worker_and_not_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console, "WAIT_S", 0.2)
    reader, writer = os.pipe()
    copier = Copier(writer)
    process, source = start(copier, "os.write(2, b'x' * 1_000_000); os.write(2, b'end')")
    held = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)
    wait_for(lambda: len(source.ends[0].read()) > held, "more than the console holds")
    assert not catch_up(copier, source)
    assert process.poll() is None
    seen = b""
    while not seen.endswith(b"end"):
        seen += os.read(reader, 65_536)
    assert process.wait() == 0
    assert catch_up(copier, source)
    os.close(reader)


def test_one_that_stays_behind_writes_on_when_the_agent_has_ended(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys; from hetagent.workers.copier import Copier; c = Copier(2); s = c.open([]);"
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
        "import subprocess; from hetagent.workers.copier import Copier; c = Copier(2); s = c.open([]);"
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


def test_a_disk_that_was_full_for_a_while_gets_what_comes_later(tmp_path: Path) -> None:
    with (tmp_path / "err").open("ab", buffering=0) as file:
        copier = Copier(file.fileno())
        source = copier.open([End()])
        assert source is not None
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # Python ignores SIGXFSZ
        try:
            os.write(source.writer, b"x" * 4000)
            assert catch_up(copier, source)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        os.write(source.writer, b"later")
        assert catch_up(copier, source)
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
    made = rig("echo usage: x >&2; exit 2", max_restarts=0, report_output=False)
    assert made.run() == 2
    assert "usage: x\n" in capfd.readouterr().err
    cause = made.agent.outcome and made.agent.outcome.root_cause
    assert cause
    assert cause.failure
    assert cause.failure.message == "exit code 2"


def test_what_comes_through_both_is_kept_in_its_order_and_stderr_by_itself(
    capfd: pytest.CaptureFixture[str],
) -> None:
    consoles = Consoles()
    kept = consoles.open(STDOUT, STDERR)
    for writer, text in ((STDOUT, b"loss 3\n"), (STDERR, b"warning\n"), (STDOUT, b"loss 2\n")):
        os.write(kept.writer(writer, -1), text)
        assert consoles.catch_up([kept])
    kept.close_writers()
    assert kept.ends.read() == b"loss 3\nwarning\nloss 2\n"
    assert kept.stderr.read() == b"warning\n"
    assert capfd.readouterr() == ("loss 3\nloss 2\n", "warning\n")


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")  # what is left behind is not waited for
def test_nothing_stays_open_when_it_has_ended() -> None:
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    consoles = Consoles()
    kept = consoles.open(STDOUT, STDERR)
    other = os.dup(kept.writer(STDOUT, -1))  # something that a worker has left behind
    kept.close_writers()
    consoles.hand_over()
    consoles.hand_over()
    os.close(other)
    assert not set(os.listdir("/proc/self/fd")) - before


def test_what_goes_into_a_file_is_left_alone(tmp_path: Path) -> None:
    consoles = Consoles()
    with (tmp_path / "out").open("w") as out, Path(os.devnull).open("w") as nowhere:
        kept = consoles.open(out.fileno(), nowhere.fileno())
        assert kept.writer(STDOUT, out.fileno()) == out.fileno()
        os.write(kept.writer(STDERR, -1), b"of a rank that is not shown\n")
        assert consoles.catch_up([kept])
        kept.close_writers()
    assert kept.stderr.read() == kept.ends.read() == b"of a rank that is not shown\n"


def test_who_reads_late_gets_every_byte_though_the_agent_has_ended() -> None:
    """A person looks at the first page, while the job ends."""
    written = b"".join(b"%7d\n" % number for number in range(50_000))
    code = (
        "import subprocess, time; from hetagent.workers.copier import Copier, caught_up;"
        "c = Copier(1); s = c.open([]);"
        "subprocess.Popen(['seq', '-f', '%7.0f', '0', '49999'], stdout=s.writer); c.await_all([s]);"
        "caught_up([s], time.monotonic() + 0.5); c.hand_over()"
    )
    agent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert agent.wait() == 0
    assert agent.stdout is not None
    with agent.stdout as reader:
        assert reader.read() == written
