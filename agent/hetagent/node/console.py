"""Writes what the agent says to stderr, without depending on anybody to read it."""

import contextlib
import os
import queue
import sys
import threading
from datetime import datetime
from typing import TextIO

PATIENCE_S = 2.0
"""How long to wait for a reader that stalls (seconds)."""


class _Writer:
    """Writes in a thread of its own, since a reader that stalls (a pager, a pipe) would block whoever writes."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[TextIO | None, str, threading.Event]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stalled = False

    def write(self, stream: TextIO | None, text: str) -> bool:
        """Whether it has been written; if not, it will be, as soon as somebody reads."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hetagent-console", daemon=True)
                self._thread.start()
        written = threading.Event()
        self._jobs.put((stream, text, written))
        if not written.wait(0.0 if self._stalled else PATIENCE_S):
            self._stalled = True
        return written.is_set()

    def _run(self) -> None:
        while True:
            stream, text, written = self._jobs.get()
            _write(stream, text)
            self._stalled = False
            written.set()


_writer = _Writer()


def say(text: str) -> None:
    """Write one or more lines to stderr in one go.

    A job must not end or hang because nobody reads its output any more (`hetagent ... 2>&1 | head`, a closed ssh, a
    pager). What cannot be written is dropped, and so is what the workers of later rounds write there.
    """
    _writer.write(sys.stderr, f"{text}\n")


def tell(who: str, text: str) -> None:
    """Write lines about what happens, each with who says so, and with the time unless a person is watching."""
    at = "" if _is_terminal(sys.stderr) else f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S.%f}"[:23] + " "
    say("\n".join(f"{at}{who}: {line}" for line in text.splitlines()))


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def flush() -> bool:
    """Have nothing left to be written at the end, which would make the exit status 120 if nobody reads.

    Returns:
        False if a reader stalls: then the interpreter would hang at its end as well.
    """
    return _writer.write(sys.stderr, "") and _writer.write(sys.stdout, "")


def counted(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed when this process was started
        return
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
