"""Keeps the end of what each worker writes to stderr, while all of it goes to the console as it comes.

A worker's stderr is a pipe, or a terminal of its own where ours is one, so that colours and progress bars stay. A
thread copies what arrives there to our stderr, unchanged, and remembers the last `KEPT` bytes. It never reads ahead of
the console: a worker that writes faster than the console takes it is slowed down, as if it wrote there itself.
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
from collections.abc import Collection
from types import FrameType

from hetagent.job.output.console import shown

KEPT = 64 << 10
"""How much of the end of a worker's stderr is kept, in memory (bytes)."""

CHUNK = 64 << 10
"""How much is copied at a time (bytes); no pipe holds much more unless somebody enlarges it."""

IN_FLIGHT = 1 << 20
"""A worker that goes on writing is caught up with once so much was copied (bytes): the most that a pipe holds."""

END_S = 0.05
"""How long the end of the agent waits for the thread that copies (seconds)."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Why a file takes nothing for the moment: it may again once somebody has made room."""

CONSOLE = 2


class Source:
    """The stderr of one worker.

    Args:
        shown: whether it goes to the console.

    Attributes:
        writer: the worker's end, to be closed once the worker has it.
        copied: how much of it has reached the console (bytes).
    """

    def __init__(self, reader: int, writer: int, *, shown: bool) -> None:
        self.shown = shown
        self.reader = reader
        self.writer = writer
        self.copied = 0
        self._end = bytearray()
        self._ended = False
        self._awaited: int | None = None  # caught up once `copied` is here, or nothing is left to copy
        self._lock = threading.Lock()

    def end(self) -> bytes:
        """The last `KEPT` bytes of what the worker has written, or a little more."""
        with self._lock:
            return bytes(self._end)

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

    def remember(self, data: bytes) -> None:
        """Keep the end of this."""
        with self._lock:
            self._end += data
            if len(self._end) > 2 * KEPT:
                del self._end[:-KEPT]

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
    """Copies the workers' stderr to ours. Used by one thread beside its own; a process needs one."""

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}  # by descriptor, until they have ended
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._over = False
        self._lost = False  # nothing can be written to our stderr any more
        self._terminal = _is_terminal()
        if self._terminal and threading.current_thread() is threading.main_thread():
            self._follow_size()

    # -- what the run loop asks --------------------------------------------------------------------------------

    def open(self, *, shown: bool = True) -> Source | None:
        """A stderr for a worker; None if there is none to be had, so that the worker has to do with what it would have.

        Args:
            shown: whether what is written there goes to the console.
        """
        try:
            os.fstat(CONSOLE)
            reader, writer = _terminal() if shown and self._terminal else os.pipe()
        except OSError:
            return None
        source = Source(reader, writer, shown=shown)
        with self._lock:
            self._sources[reader] = source
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
                self._thread.start()
        self._nudge()
        return source

    def catch_up(self, sources: Collection[Source], until: float | None = None) -> bool:
        """Wait until all that has been written by now is on the console.

        Args:
            until: when to stop waiting in any case (monotonic seconds).

        Returns:
            False if nobody reads the console.
        """
        for source in sources:
            source.await_all()
        self._nudge()
        return shown(
            lambda: all(source.caught_up for source in sources),
            lambda: sum(source.copied for source in sources),
            until,
        )

    def hand_over(self) -> None:
        """This process ends: what workers have left behind and still runs writes on, through processes of their own."""
        with self._lock:
            self._over = True
            thread, self._thread = self._thread, None
        self._nudge()
        if thread is not None:
            thread.join(END_S)
        for source in list(self._sources.values()):
            source.close_writer()
            if thread is None or not thread.is_alive():
                with contextlib.suppress(OSError):  # no `cat`: it gets SIGPIPE, as behind any pipe
                    stdout = CONSOLE if source.shown else subprocess.DEVNULL
                    # a terminal ends with EIO, of which nobody needs to hear
                    subprocess.Popen(
                        ["cat"],
                        stdin=source.reader,
                        stdout=stdout,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    )

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over:
            with self._lock:
                sources = dict(self._sources)
            poller = select.poll()
            for descriptor in (self._woken, *sources):
                poller.register(descriptor, select.POLLIN)
            awaited = [descriptor for descriptor, source in sources.items() if not source.caught_up]
            # after the look at who is awaited: what is not ready then, has nothing left
            ready = {descriptor for descriptor, _ in poller.poll(0 if awaited else None)}
            if self._woken in ready:
                os.read(self._woken, 4096)
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
            with self._lock:
                del self._sources[descriptor]
            os.close(descriptor)
            source.has_ended()
            return
        source.remember(data)
        if source.shown:
            self._show(data)
        source.wrote(len(data))

    def _show(self, data: bytes) -> None:
        """Write to the console; what it does not take is dropped, and all that comes once nobody can read it."""
        rest = memoryview(data)
        while rest and not self._lost:
            try:
                rest = rest[os.write(CONSOLE, rest) :]
            except BlockingIOError:  # somebody has made it non-blocking
                select.select([], [CONSOLE], [])
            except OSError as error:
                self._lost = error.errno not in FULL
                return

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"x")

    # -- the size of the terminal ------------------------------------------------------------------------------

    def _follow_size(self) -> None:
        """Pass the size of our terminal on when it changes."""
        before = signal.getsignal(signal.SIGWINCH)

        def changed(signum: int, frame: FrameType | None) -> None:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(CONSOLE, termios.TIOCGWINSZ, b"\0" * 8)
                for descriptor in list(self._sources):
                    with contextlib.suppress(OSError):
                        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size)
            if callable(before):
                before(signum, frame)

        signal.signal(signal.SIGWINCH, changed)


def _is_terminal() -> bool:
    try:
        return os.isatty(CONSOLE)
    except OSError:
        return False


def _terminal() -> tuple[int, int]:
    """A terminal like ours, which passes on unchanged what is written to it: both ends, the worker's last.

    Raises:
        OSError: the system has none left.
    """
    outer, inner = os.openpty()
    try:
        mode = termios.tcgetattr(CONSOLE)
        mode[1] &= ~termios.OPOST  # ours does what is to be done
        mode[3] &= ~(termios.ECHO | termios.ECHONL)
        termios.tcsetattr(inner, termios.TCSANOW, mode)
        fcntl.ioctl(inner, termios.TIOCSWINSZ, fcntl.ioctl(CONSOLE, termios.TIOCGWINSZ, b"\0" * 8))
    except termios.error as error:
        os.close(outer)
        os.close(inner)
        raise OSError(*error.args) from None
    return outer, inner
