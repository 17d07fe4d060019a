"""Copies what workers write to the console as it comes, unchanged, and keeps the end of it.

A worker writes to a pipe, or where our console is a terminal to one of its own, so that colours and progress bars stay.
A console that is slow slows the workers down, as if they wrote to it themselves.
"""

import contextlib
import fcntl
import os
import select
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from hetagent.node.self_pipe import SelfPipe

STDOUT, STDERR = 1, 2

TAIL_BYTES = 64 << 10
"""How much of the end of a worker's output is kept, in memory (bytes)."""

CHUNK = 64 << 10
"""How much is copied at a time (bytes); no pipe holds more unless somebody enlarges it."""

PASSES = 16
"""A worker that goes on writing is caught up with after so many chunks: a terminal gives few bytes at a time."""

LINE_MS, LINE_BYTES = 2, 4096
"""How long each byte of the rest of a line is waited for, so that lines of several workers are not mixed
(milliseconds), and how many bytes that are."""

WAIT_S = 10.0
"""How long output may take to reach the console; after that it is blocked (seconds)."""

END_S = 0.05
"""How long the end of the agent waits for the thread that copies (seconds)."""


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """The end of one worker's output: of all that is captured, and of what came through stderr.

    One thread adds to them, any reads. The worker gets `writers` in place of our stdout and stderr; one that is missing
    goes elsewhere.
    """

    writers: Mapping[int, int]
    both: bytearray
    stderr: bytearray

    def close_writers(self) -> None:
        """The worker has them."""
        for writer in self.writers.values():
            os.close(writer)


Stream = tuple[int | None, Sequence[bytearray]]
"""One worker's stdout or stderr: where it is copied to (None: nowhere), and what remembers its end."""


class OutputCapture:
    """Copies the output of workers to our stdout and stderr, in a thread."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}  # by the descriptor to read from, until they have ended
        self._waker = SelfPipe()
        self._thread: threading.Thread | None = None
        self._caught_up = threading.Event()  # to be set by the thread
        self._caught_up.set()
        self._closed = False

    def open(self, stdout: int, stderr: int) -> CapturedOutput:
        """Capture the output of a worker that would have these descriptors as stdout and stderr."""
        both, own = bytearray(), bytearray()
        writers = {}
        for console, given, tails in ((STDOUT, stdout, [both]), (STDERR, stderr, [both, own])):
            shown = given == console
            if not shown and os.fstat(given).st_rdev != os.stat(os.devnull).st_rdev:
                continue  # a file; ranks that --local-ranks-filter leaves out write to /dev/null
            with contextlib.suppress(OSError, termios.error):  # there is none to be had: the worker gets ours
                os.fstat(console)
                reader, writers[console] = (
                    _open_terminal(console) if shown and os.isatty(console) else os.pipe()
                )
                self._streams[reader] = console if shown else None, tails
        if writers and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="output", daemon=True)
            self._thread.start()
        self._waker.wake()
        return CapturedOutput(writers, both, own)

    def wait_for_output(self, until: float | None = None) -> bool:
        """Wait until all that has been written by now is on the console; False: the console is blocked."""
        if self._thread is None:
            return True
        self._caught_up = threading.Event()
        self._waker.wake()
        return self._caught_up.wait(_remaining_s(until))

    def hand_over(self) -> None:
        """This process ends: what workers have detached writes on through a `cat`."""
        if self._closed:
            return
        self._closed = True
        self._waker.wake()
        if self._thread is not None:
            self._thread.join(END_S)
        for reader, (console, _) in self._streams.items():
            with contextlib.suppress(OSError):
                subprocess.Popen(
                    ["cat"],
                    stdin=reader,
                    stdout=subprocess.DEVNULL if console is None else console,
                    stderr=subprocess.DEVNULL,  # a terminal ends with EIO
                    start_new_session=True,
                )
            os.close(reader)
        self._streams.clear()
        self._waker.close()

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        passes = 0
        while not self._closed:
            streams, caught_up = dict(self._streams), self._caught_up
            is_awaited = not caught_up.is_set()
            ready = _readable([self._waker.fileno(), *streams], 0 if is_awaited else None)
            if self._waker.fileno() in ready:
                self._waker.clear()
            ready &= streams.keys()
            for reader in ready:
                if not self._closed:
                    self._copy(reader, *streams[reader])
            passes = passes + 1 if is_awaited and ready else 0
            if passes in (0, PASSES):
                caught_up.set()

    def _copy(self, reader: int, console: int | None, tails: Sequence[bytearray]) -> None:
        data = _read(reader)
        if not data:
            del self._streams[reader]
            os.close(reader)
            return
        for _ in range(LINE_BYTES if console is not None else 0):
            if data.endswith(b"\n") or not _readable([reader], LINE_MS) or not (byte := _read(reader, 1)):
                break
            data += byte
        for tail in tails:
            tail.extend(data)
            del tail[:-TAIL_BYTES]
        if console is not None:
            _write(console, data)


def wait_for_log_copies(stops: Collection[Callable[[], None]], until: float | None = None) -> bool:
    """Wait until torch has copied what is left in the workers' log files; False: the console is blocked.

    torch's ways to stop copying return when everything has been copied.
    """
    threads = [threading.Thread(target=stop, daemon=True) for stop in stops]
    for thread in threads:
        thread.start()
    until = time.monotonic() + _remaining_s(until)
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(map(threading.Thread.is_alive, threads))


def _remaining_s(until: float | None) -> float:
    return WAIT_S if until is None else min(WAIT_S, max(0.0, until - time.monotonic()))


def _readable(descriptors: Sequence[int], within_ms: int | None) -> set[int]:
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(within_ms)}


def _read(reader: int, most: int = CHUNK) -> bytes:
    try:
        return os.read(reader, most)
    except OSError:  # a terminal that nobody has open any more says EIO
        return b""


def _write(console: int, data: bytes) -> None:
    """Write all of it; what the console refuses (nobody reads it, the disk is full) is dropped."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(console, rest) :]
        except BlockingIOError:  # somebody has made it non-blocking
            select.select([], [console], [])
        except OSError:
            return


def _open_terminal(console: int) -> tuple[int, int]:
    """A terminal like ours, which passes on unchanged what is written to it: both ends, the worker's last."""
    mode = termios.tcgetattr(console)
    mode[1] &= ~termios.OPOST  # ours does what is to be done
    mode[3] &= ~(termios.ECHO | termios.ECHONL)
    outer, inner = os.openpty()
    termios.tcsetattr(inner, termios.TCSANOW, mode)
    fcntl.ioctl(inner, termios.TIOCSWINSZ, fcntl.ioctl(console, termios.TIOCGWINSZ, b"\0" * 8))
    return outer, inner
