"""Copies what workers write to the console as it comes, unchanged, and remembers the end of it, in a thread.

What a worker writes to is a pipe, or a terminal of its own where ours is one, so that colours and progress bars stay.
It is never read ahead of the console: a worker that writes faster than that takes it is slowed down, as if it wrote
there itself.
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import termios
import threading
from collections.abc import Iterable, Sequence
from types import FrameType

from hetagent.node import scratch
from hetagent.node.waker import Waker
from hetagent.workers.console import shown

KEPT = 64 << 10
"""How much of the end of what a worker writes is kept, in memory (bytes)."""

CHUNK = 64 << 10
"""How much is copied at a time (bytes); no pipe holds much more unless somebody enlarges it."""

IN_FLIGHT = 1 << 20
"""A worker that goes on writing is caught up with once so much was copied (bytes): the most that a pipe holds."""

END_S = 0.05
"""How long the end of the agent waits for the thread that copies (seconds)."""

PIECE = select.PIPE_BUF
"""A console that takes something takes so much at once without a pause (bytes), as pipes do."""

LINE_MS = 2
"""How long the rest of a line is waited for before its beginning is shown (milliseconds)."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Why a file takes nothing for the moment: it may again once somebody has made room."""


class End:
    """The end of what was written; from any thread."""

    def __init__(self) -> None:
        self._end = bytearray()
        self._lock = threading.Lock()

    def add(self, data: bytes) -> None:
        """This was written."""
        with self._lock:
            self._end += data
            if len(self._end) > 2 * KEPT:
                del self._end[:-KEPT]

    def read(self) -> bytes:
        """The last `KEPT` bytes of it, or a little more."""
        with self._lock:
            return bytes(self._end)


class Source:
    """What one worker writes to stdout, or to stderr.

    Args:
        shown: whether it goes to the console.
        ends: remember it.

    Attributes:
        writer: the worker's end, to be closed once the worker has it.
        copied: how much of it has reached the console (bytes).
        rest: what was read, and the console has not taken yet.
    """

    def __init__(self, reader: int, writer: int, *, shown: bool, ends: Sequence[End]) -> None:
        self.shown = shown
        self.reader = reader
        self.writer = writer
        self.copied = 0
        self.rest = memoryview(b"")
        self.ends = ends
        self._ended = False
        self._awaited: int | None = None  # caught up once `copied` is here, or nothing is left to copy
        self._lock = threading.Lock()

    def close_writer(self) -> None:
        """Give up our copy of the worker's end; the last one to do so ends this source."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def await_all(self) -> None:
        """From now on, `caught_up` says whether all that has been written by now was copied."""
        with self._lock:
            self._awaited = None if self._ended else self.copied + IN_FLIGHT

    @property
    def caught_up(self) -> bool:
        """Whether that is so."""
        with self._lock:
            return self._awaited is None

    # -- for the thread ----------------------------------------------------------------------------------------

    def took(self, count: int) -> None:
        """The console has taken so many bytes of the rest."""
        self.rest = self.rest[count:]
        self.wrote(count)

    def wrote(self, count: int) -> None:
        """So many bytes have reached the console."""
        with self._lock:
            self.copied += count
            if self._awaited is not None and self.copied >= self._awaited:
                self._awaited = None

    def has_ended(self) -> None:
        """Nobody has the worker's end any more."""
        with self._lock:
            self._ended, self._awaited = True, None

    def is_empty(self) -> None:
        """Nothing was left to copy at a moment after `await_all`."""
        with self._lock:
            self._awaited = None


class Copier:
    """Copies what workers write to our stdout, or to our stderr. Used by one thread beside its own.

    Args:
        console: the descriptor of ours.
    """

    def __init__(self, console: int) -> None:
        self._console = console
        self._sources: dict[int, Source] = {}  # by descriptor, until they have ended
        self._waker = Waker()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._over = False
        self._lost = False  # nothing can be written to the console any more
        self._terminal = _is_terminal(console)
        if self._terminal and threading.current_thread() is threading.main_thread():
            self._follow_size()

    # -- what the run loop asks --------------------------------------------------------------------------------

    def open(self, ends: Sequence[End], *, shown: bool = True) -> Source | None:
        """What a worker writes to; None if there is none to be had, so that it has to do with what it would have.

        Args:
            ends: remember what is written there.
            shown: whether it goes to the console.
        """
        try:
            os.fstat(self._console)
            reader, writer = _terminal(self._console) if shown and self._terminal else os.pipe()
        except OSError:
            return None
        source = Source(reader, writer, shown=shown, ends=ends)
        with self._lock:
            self._sources[reader] = source
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="output", daemon=True)
                self._thread.start()
        self._waker.wake()
        return source

    def await_all(self, sources: Iterable[Source]) -> None:
        """From now on, `caught_up` says of these whether all that has been written by now was copied."""
        for source in sources:
            source.await_all()
        self._waker.wake()

    def hand_over(self) -> None:
        """This process ends: what workers have left behind and still runs writes on, through processes of their own."""
        if self._over:
            return
        with self._lock:
            self._over = True
            thread, self._thread = self._thread, None
        self._waker.wake()
        if thread is not None:
            thread.join(END_S)
        for source in self._sources.values():
            source.close_writer()
        if thread is not None and thread.is_alive():
            return
        for source in self._sources.values():
            with contextlib.suppress(OSError):  # no `cat`: it gets SIGPIPE, as behind any pipe
                self._leave(source)
            os.close(source.reader)
        self._sources.clear()
        self._waker.close()

    def _leave(self, source: Source) -> None:
        rest = scratch.nameless()
        try:
            os.write(rest, source.rest)
            os.lseek(rest, 0, os.SEEK_SET)
            # a terminal ends with EIO, of which nobody needs to hear
            subprocess.Popen(
                ["cat", f"/dev/fd/{rest}", "-"],
                stdin=source.reader,
                stdout=self._console if source.shown else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[rest],
                start_new_session=True,
            )
        finally:
            os.close(rest)

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over:
            with self._lock:
                sources = dict(self._sources)
            poller = select.poll()
            for descriptor in (self._waker.fileno(), *sources):
                poller.register(descriptor, select.POLLIN)
            awaited = [descriptor for descriptor, source in sources.items() if not source.caught_up]
            # after the look at who is awaited: what is not ready then, has nothing left
            ready = {descriptor for descriptor, _ in poller.poll(0 if awaited else None)}
            if self._waker.fileno() in ready:
                self._waker.clear()
            for descriptor, source in sources.items():
                if descriptor in ready:
                    self._copy(descriptor, source)
                elif descriptor in awaited:
                    source.is_empty()

    def _copy(self, descriptor: int, source: Source) -> None:
        try:
            data = os.read(descriptor, CHUNK)
        except OSError:  # a terminal that nobody has open any more says EIO
            data = b""
        if not data:
            self._show(source, 0)
            if source.rest:  # it is left to another process
                return
            with self._lock:
                del self._sources[descriptor]
            os.close(descriptor)
            source.has_ended()
            return
        for end in source.ends:
            end.add(data)
        if not source.shown:
            source.wrote(len(data))
            return
        data = bytes(source.rest) + data
        source.rest = memoryview(data)
        # Others write to the console as well, so a line of which more comes at once is not cut.
        unfinished = len(data) - data.rfind(b"\n") - 1
        goes_on = 0 < unfinished < CHUNK and _is_ready(descriptor, LINE_MS)
        self._show(source, unfinished if goes_on else 0)

    def _show(self, source: Source, kept: int) -> None:
        """Write to the console; what it does not take is dropped, and all that comes once nobody can read it.

        Where nobody reads it for now, the end of this process is waited for as well: then a rest is left.

        Args:
            kept: how much of the rest waits for more (bytes).
        """
        writable = select.poll()
        writable.register(self._console, select.POLLOUT)
        writable.register(self._waker, select.POLLIN)
        while len(source.rest) > kept and not self._lost:
            ready = dict(writable.poll())
            if self._waker.fileno() in ready:
                self._waker.clear()
            if self._over:
                return
            if self._console not in ready:
                continue
            try:
                source.took(os.write(self._console, _piece(source.rest[: len(source.rest) - kept])))
            except BlockingIOError:  # somebody has made it non-blocking
                continue
            except OSError as error:
                self._lost = error.errno not in FULL
                source.took(len(source.rest))
                return
        if self._lost:
            source.took(len(source.rest))

    # -- the size of the terminal ------------------------------------------------------------------------------

    def _follow_size(self) -> None:
        """Pass the size of our terminal on when it changes."""
        before = signal.getsignal(signal.SIGWINCH)

        def changed(signum: int, frame: FrameType | None) -> None:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(self._console, termios.TIOCGWINSZ, b"\0" * 8)
                for descriptor in list(self._sources):
                    with contextlib.suppress(OSError):
                        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size)
            if callable(before):
                before(signum, frame)

        signal.signal(signal.SIGWINCH, changed)


def _is_ready(descriptor: int, within_ms: int) -> bool:
    """Whether there is more to read within so many milliseconds."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(within_ms))


def _piece(data: memoryview) -> memoryview:
    """The beginning of what is to be written: as much as goes at once, in whole lines if there are any."""
    piece = data[:PIECE]
    if len(piece) == len(data):
        return piece
    return piece[: bytes(piece).rfind(b"\n") + 1] or piece


def caught_up(sources: Sequence[Source], until: float | None = None) -> bool:
    """Wait for what is awaited of some workers; False if nobody reads the console.

    Args:
        until: when to stop waiting in any case (monotonic seconds).
    """
    return shown(lambda: all(source.caught_up for source in sources), until)


def _is_terminal(console: int) -> bool:
    try:
        return os.isatty(console)
    except OSError:
        return False


def _terminal(console: int) -> tuple[int, int]:
    """A terminal like ours, which passes on unchanged what is written to it: both ends, the worker's last.

    Raises:
        OSError: the system has none left.
    """
    outer, inner = os.openpty()
    try:
        mode = termios.tcgetattr(console)
        mode[1] &= ~termios.OPOST  # ours does what is to be done
        mode[3] &= ~(termios.ECHO | termios.ECHONL)
        termios.tcsetattr(inner, termios.TCSANOW, mode)
        fcntl.ioctl(inner, termios.TIOCSWINSZ, fcntl.ioctl(console, termios.TIOCGWINSZ, b"\0" * 8))
    except termios.error as error:
        os.close(outer)
        os.close(inner)
        raise OSError(*error.args) from None
    return outer, inner
