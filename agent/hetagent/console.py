"""What the agent says to the person at the terminal: changes when where it says it does."""

import contextlib
import os
import sys
from typing import TextIO


def say(text: str) -> None:
    """Write a line, or several, to stderr at once.

    A job must not end because nobody reads along any more (`hetagent ... 2>&1 | head`, a closed ssh): what
    cannot be said any more is dropped, also what the workers of later rounds say there.
    """
    _write(sys.stderr, f"{text}\n")


def flush() -> None:
    """Have nothing left to be written at the end, which would make the exit status 120 where nobody reads."""
    for stream in (sys.stdout, sys.stderr):
        _write(stream, "")


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
