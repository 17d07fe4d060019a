"""What to say of a worker that failed: changes when there is another trace of the reason."""

import json
import os
import signal
from pathlib import Path

MAX_CHARACTERS = 4000
"""How much of a traceback travels; the server keeps it and every agent prints it."""

_TAIL_BYTES = 4 * MAX_CHARACTERS


def failure_message(error_file: str | None, stderr_file: str | None, exitcode: int) -> str:
    """Why a worker failed, in its own words where there are any.

    Args:
        error_file: what the runner or torch's `@record` wrote, if anything; it may be missing or broken.
        stderr_file: what the worker wrote to stderr, where that was kept.
        exitcode: its exit status, negative for a signal as in `subprocess`.

    Returns:
        The end of the traceback, else of stderr, in whole lines and at most `MAX_CHARACTERS`; else what the
        exit status says, and that the disk is full where that is why nothing else is known. All is `sendable`.
    """
    said = _recorded(error_file) or _end(_tail(stderr_file))
    return said or sendable(describe_exit(exitcode) + _lost_words(error_file, stderr_file))


def sendable(text: str) -> str:
    """The text with an escape for each lone surrogate (a byte of a file's name that is not UTF-8)."""
    return text.encode("utf-8", "backslashreplace").decode()


def describe_exit(exitcode: int) -> str:
    """`exit code 3`, `killed by SIGKILL`."""
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        return f"killed by {signal.Signals(-exitcode).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-exitcode}"


def _lost_words(*paths: str | None) -> str:
    """Why a worker's last words are missing, where the disk explains it."""
    for folder in {os.path.dirname(path) for path in paths if path}:
        try:
            disk = os.statvfs(folder)
        except OSError:
            continue
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < MAX_CHARACTERS:
            return f"; what it said is lost: No space left on device, under {folder}"
    return ""


def _recorded(error_file: str | None) -> str:
    if not error_file:
        return ""
    try:
        record = json.loads(Path(error_file).read_text(encoding="utf-8"))["message"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""  # none, or the worker was killed while it wrote
    if not isinstance(record, dict):
        return _end(str(record))
    extra = record.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return _end(str(stack or record.get("message") or ""))


def _tail(path: str | None) -> str:
    if not path:
        return ""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _end(text: str) -> str:
    """The last whole lines that fit; of a last line that does not fit, its end."""
    text = sendable(text).rstrip()
    if len(text) <= MAX_CHARACTERS:
        return text if text.strip() else ""
    end = text[-MAX_CHARACTERS:]
    cut_in_line = text[-MAX_CHARACTERS - 1] != "\n"
    return end.partition("\n")[2] or end if cut_in_line else end
