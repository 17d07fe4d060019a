"""Writes what the agent says to stderr, without depending on anybody to read it."""

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from typing import TextIO

from hetrdzv.protocol.texts.inert import inert

ERASE = "\r\x1b[K"
"""To the beginning of a terminal's line, and nothing is left of it."""

PATIENCE_S = 2.0
"""How long to wait for a reader that stalls (seconds)."""


class _Writer:
    """Writes in a thread of its own, since a reader that stalls (a pager, a pipe) would block the writer.

    Below what has been written stands the live line, if there is one.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[TextIO | None, str, str, threading.Event]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_started = self._is_stalled = False
        self._live = ""  # what is to stand there

    def write(self, stream: TextIO | None, text: str) -> bool:
        """Whether it has been written; if not, it will be, as soon as somebody reads."""
        written = self._put(stream, text)
        if not written.wait(0.0 if self._is_stalled else PATIENCE_S):
            self._is_stalled = True
        return written.is_set()

    def live(self, stream: TextIO | None, line: str) -> None:
        """Show another live line, without waiting for it; if a reader stalls, it skips some."""
        if line != self._live and (not line or self._jobs.empty()):
            self._live = line
            self._put(stream, "")

    def _put(self, stream: TextIO | None, text: str) -> threading.Event:
        with self._lock:
            if not self._is_started:
                threading.Thread(target=self._run, name="hetagent-console", daemon=True).start()
            self._is_started = True
        written = threading.Event()
        self._jobs.put((stream, text, self._live, written))
        return written

    def _run(self) -> None:
        below = ""  # what stands there
        while True:
            stream, text, live, written = self._jobs.get()
            if text or live != below:
                text = f"{ERASE if below else ''}{text}{live}"
                below = live
            if stream is not None:  # it was open when this process was started
                _write(stream, text)
            self._is_stalled = False
            written.set()


_writer = _Writer()


def say(text: str) -> None:
    """Write one or more lines to stderr in one go.

    A job must not end or hang because nobody reads its output any more (`hetagent ... 2>&1 | head`, a closed ssh, a
    pager). What cannot be written is dropped, and so is what the workers of later rounds write there.
    """
    _writer.write(sys.stderr, f"{inert(text)}\n")


def log(who: str, text: str) -> None:
    """Log lines, each with its source, and with the time unless stderr is a terminal."""
    at = "" if _is_terminal(sys.stderr) else f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S.%f}"[:23] + " "
    say("\n".join(f"{at}{who}: {line}" for line in text.splitlines()))


class WarnOnce:
    """Shows each line once."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._shown: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            self._log(text)


def show_live(line: str, left: str = "") -> bool:
    """Show a line below everything else, in place of the one before; an empty line removes it.

    `left` says how much time is left, which is shown even where the rest does not fit. Returns whether it is shown: on
    a terminal only, and not by a background job (`hetagent ... &`), which would write over what is typed there.
    """
    if sys.stderr is None or not _is_terminal(sys.stderr) or not _in_foreground(sys.stderr):
        return False
    width = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
    line = inert(" ".join(line.split()))
    if len(line) > width:  # it begins with what is missing and until when, and ends with what happened before
        end = "..." if left in line[: max(0, width - 3)] else f"... ({left} left)"
        line = line[: max(0, width - len(end))] + end
    _writer.live(sys.stderr, line)
    return True


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def is_attended() -> bool:
    """Whether stdin or stderr is a terminal."""
    return _is_terminal(sys.stdin) or _is_terminal(sys.stderr)


def _in_foreground(terminal: TextIO) -> bool:
    try:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # it does not control our session: there is no shell that could have put us there
        return True


def flush() -> bool:
    """Have nothing left to be written at the end, which would make the exit status 120 if nobody reads.

    False if a reader stalls: then the interpreter would hang at its end as well.
    """
    return _writer.write(sys.stderr, "") and _writer.write(sys.stdout, "")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
