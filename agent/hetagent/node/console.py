"""Writes what the agent says to stderr, without depending on anybody to read it."""

import contextlib
import functools
import os
import queue
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from typing import TextIO

from hetrdzv.protocol.texts.phrasing import strip_control_characters

PATIENCE_S = 2.0
"""How long to wait for a reader that stalls (seconds)."""


class _ConsoleWriter:
    """Writes in a thread of its own, since a reader that stalls (a pager, a pipe) would block the writer."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[TextIO | None, str, threading.Event]] = queue.SimpleQueue()
        self._is_stalled = False
        threading.Thread(target=self._run, name="hetagent-console", daemon=True).start()

    def write(self, stream: TextIO | None, text: str) -> bool:
        """Whether it has been written; if not, it will be, as soon as somebody reads."""
        written = threading.Event()
        self._jobs.put((stream, text, written))
        if not written.wait(0.0 if self._is_stalled else PATIENCE_S):
            self._is_stalled = True
        return written.is_set()

    def _run(self) -> None:
        while True:
            stream, text, written = self._jobs.get()
            if stream is not None:  # it was open when this process was started
                _write(stream, text)
            self._is_stalled = False
            written.set()


_writer = functools.cache(_ConsoleWriter)
os.register_at_fork(after_in_child=_writer.cache_clear)  # a fork has no threads


def print_to_stderr(text: str) -> None:
    """Write one or more lines to stderr in one go.

    A job must not end or hang because nobody reads its output any more (`hetagent ... 2>&1 | head`, a closed ssh, a
    pager). What cannot be written is dropped, and so is what the workers of later rounds write there.
    """
    _writer().write(sys.stderr, f"{strip_control_characters(text)}\n")


def log(who: str, text: str) -> None:
    """Log lines, each with its source, and with the time unless stderr is a terminal."""
    at = "" if _is_terminal(sys.stderr) else f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S.%f}"[:23] + " "
    print_to_stderr("\n".join(f"{at}{who}: {line}" for line in text.splitlines()))


class WarnOnce:
    """Shows each line once."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._shown: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            self._log(text)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def flush() -> None:
    """Have nothing left to be written, unless a reader stalls."""
    if _writer().write(sys.stderr, ""):
        _writer().write(sys.stdout, "")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
