"""Describes failures: reads what a worker left behind, writes the root cause for whoever started this agent."""

import json
import os
import stat
import time
from typing import Any

from hetagent.node.signals import signal_name, signal_number
from hetrdzv.protocol.wire import FailureReply, RootCauseReply

MAX_CHARACTERS = 4000
"""How much of a traceback is sent; the server keeps it and every agent prints it."""

MAX_RECORD_BYTES = 8 << 20
"""A larger error file is not read."""

_TAIL_BYTES = 4 * MAX_CHARACTERS

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""In the environment of a worker, and of an agent whose scheduler wants to know the root cause: a file's name."""


# -- a worker's failure ----------------------------------------------------------------------------------------


def failure_message(error_file: str | None, stderr_file: str | None, exitcode: int) -> str:
    """Why a worker failed, in its own words if there are any.

    Args:
        error_file: what the runner or torch's `@record` wrote, if anything; it may be missing, broken or hostile.
        stderr_file: what the worker wrote to stderr, if that was kept.
        exitcode: its exit status, negative for a signal as in `subprocess`.

    Returns:
        The end of the traceback, else of stderr, in whole lines and at most `MAX_CHARACTERS`; else what the exit status
        says, and that the disk is full if that is why nothing else is known. All of it is `sendable`.
    """
    said = _recorded(error_file) or _end(_tail(stderr_file))
    return said or sendable(describe_exit(exitcode) + _lost_words(error_file, stderr_file))


def sendable(text: str) -> str:
    """The text with an escape for each lone surrogate (a byte of a file name that is not UTF-8)."""
    return text.encode("utf-8", "backslashreplace").decode()


def describe_exit(exitcode: int) -> str:
    """`exit code 3`, `killed by SIGKILL`."""
    return f"exit code {exitcode}" if exitcode >= 0 else f"killed by {signal_name(-exitcode)}"


def read_record(error_file: str) -> dict[str, Any] | None:
    """The content of an error file; None if it is not a regular file of reasonable size with a JSON object."""
    content = _read(error_file, MAX_RECORD_BYTES + 1)
    if content is None or len(content) > MAX_RECORD_BYTES:
        return None
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):  # e.g. the worker was killed while it wrote, or it nests too deeply
        return None
    return record if isinstance(record, dict) else None


def _recorded(error_file: str | None) -> str:
    record = read_record(error_file) if error_file else None
    if record is None or "message" not in record:
        return ""
    message = record["message"]
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack") if isinstance(extra, dict) else None
        message = stack or message.get("message") or ""
    return _end(message) if isinstance(message, str) else ""


def _tail(path: str | None) -> str:
    return (_read(path, _TAIL_BYTES, from_end=True) or b"").decode(errors="replace") if path else ""


def _read(path: str, most: int, *, from_end: bool = False) -> bytes | None:
    """At most `most` bytes of a regular file; None if it is anything else, or unreadable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return None
            if from_end:
                file.seek(max(0, found.st_size - most))
            return file.read(most)
    except OSError:
        return None


def _lost_words(*paths: str | None) -> str:
    """Why a worker's last words are missing, if a full disk explains it."""
    for folder in {os.path.dirname(path) for path in paths if path}:
        try:
            disk = os.statvfs(folder)
        except OSError:
            continue
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < MAX_CHARACTERS:
            return f"; its error output is lost: No space left on device ({folder})"
    return ""


def _end(text: str) -> str:
    """The last whole lines that fit; of a last line that does not fit, its end."""
    text = sendable(text).rstrip()
    if len(text) <= MAX_CHARACTERS:
        return text if text.strip() else ""
    end = text[-MAX_CHARACTERS:]
    cut_in_line = text[-MAX_CHARACTERS - 1] != "\n"
    return end.partition("\n")[2] or end if cut_in_line else end


# -- the agent's own error file --------------------------------------------------------------------------------


def write_root_cause(cause: RootCauseReply) -> None:
    """Write a job's root cause where this agent's own `TORCHELASTIC_ERROR_FILE` says, if it says so.

    Raises:
        OSError: it cannot be written.
    """
    failure = cause.failure
    words = failure.message.strip() if failure is not None else ""
    last = words.rpartition("\n")[2]
    message = cause.message if not last or last in cause.message else f"{cause.message}: {last}"
    write_error(message, words or cause.message, _exit_status(failure))


def write_error(message: str, stack: str, exitcode: int | None = None) -> None:
    """Write an error where this agent's own `TORCHELASTIC_ERROR_FILE` says, if it says so, in torch's format.

    Args:
        message: in a line.
        stack: the traceback, or whatever else explains it.
        exitcode: of the worker that caused it, negative for a signal.

    Raises:
        OSError: it cannot be written.
    """
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    record: dict[str, Any] = {"message": message, "extraInfo": extra}
    if exitcode is not None:
        record["errorCode"] = exitcode
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    with open(fd, "w", encoding="utf-8") as file:
        json.dump({"message": record}, file)


def _exit_status(failure: FailureReply | None) -> int | None:
    """Its exit status, negative for a signal; None if it is not known."""
    if failure is None or failure.signal is None:
        return failure.exit_code if failure is not None else None
    number = signal_number(failure.signal)
    return -number if number is not None else None
