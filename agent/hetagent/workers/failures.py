"""Describes failures: reads what a worker left behind, writes the root cause for what started this agent."""

import contextlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hetagent.errors import CommandError, OutOfResourcesError, PermanentStartError
from hetagent.launch.command import explain_start_error
from hetagent.node.console import print_to_stderr
from hetagent.node.processes.signals import signal_number
from hetrdzv.protocol.rounds import RootCause, WorkerFailure
from hetrdzv.protocol.worker_output import text_tail

MAX_CHARACTERS = 4000
"""How much of a traceback is sent; the server keeps it and every agent prints it."""

MAX_RECORD_BYTES = 64 << 20
"""Of a larger error file nothing is known; torch's `@record` writes a message twice, however long it is."""

_TAIL_BYTES = 64 << 10

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""In the environment of a worker, and of an agent whose scheduler wants to know the root cause: a file's name."""


# -- a worker's failure ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What the runner or torch's `@record` has written of the exception that ended a worker's script."""

    message: str = ""  # with the traceback
    permanent: bool = False  # the runner has found that a restart would end the same way
    ended_at: float | None = None  # the script, by the worker's clock (seconds); None: nobody knows
    raised_at: float | None = None  # the same, or when the file was written; None: there is none


def read_record(path: str) -> ErrorRecord:
    """What an error file says, which may be missing, broken or hostile; an empty name is none."""
    try:
        written_at = os.stat(path).st_mtime
        record = json.loads(_read_file(path, MAX_RECORD_BYTES))
    except OSError:
        return ErrorRecord()
    except (ValueError, RecursionError):  # e.g. the worker was killed while it wrote, or it nests too deeply
        record = None
    if not isinstance(record, dict):
        return ErrorRecord(raised_at=written_at)
    message, ended_at = record.get("message"), record.get("raised_at")
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack") if isinstance(extra, dict) else None
        message = stack or message.get("message")
    is_known = isinstance(ended_at, float) and math.isfinite(ended_at)
    return ErrorRecord(
        message=message if isinstance(message, str) else "",
        permanent=record.get("permanent") is True,
        ended_at=ended_at if is_known else None,
        raised_at=ended_at if is_known else written_at,
    )


def format_failure_message(record: ErrorRecord, stderr: bytes = b"", secrets: Collection[str] = ()) -> str:
    """Why a worker failed, in its own words; empty: it has left none.

    That is the traceback without its middle, else the end of stderr, in whole lines and at most `MAX_CHARACTERS`. All
    of it went through `escape_surrogates`.
    """
    output = _shorten_text(redact(record.message, secrets), begin=MAX_CHARACTERS // 4)
    return output or _shorten_stderr(redact(to_plain_text(stderr), secrets))


def describe_start_failure(error: Exception) -> WorkerFailure:
    """Why workers could not be started."""
    error = explain_start_error(error)
    text = str(error) if isinstance(error, CommandError) else f"{type(error).__name__}: {error}"
    return WorkerFailure(
        local_rank=-1,
        rank=-1,
        message=escape_surrogates(text)[:MAX_CHARACTERS],
        permanent=isinstance(error, PermanentStartError),
        final=isinstance(error, OutOfResourcesError),
    )


def redact(text: str, secrets: Collection[str]) -> str:
    """The text without some words."""
    for secret in secrets:
        text = text.replace(secret, "[token]")
    return text


def escape_surrogates(text: str) -> str:
    """The text with an escape for each lone surrogate (a byte of a file name that is not UTF-8)."""
    return text.encode("utf-8", "backslashreplace").decode()


def read_tail(path: str) -> bytes:
    """The end of a file; empty if there is none."""
    with contextlib.suppress(OSError):
        return _read_file(path, _TAIL_BYTES, from_end=True)
    return b""


def _read_file(path: str, most: int, *, from_end: bool = False) -> bytes:
    """At most `most` bytes of a regular file; an OSError: it is none."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no file")
        if from_end:
            file.seek(max(0, status.st_size - most))
        return file.read(most)


_CRASH = re.compile(r"^Fatal Python error: ", re.MULTILINE)
_CRASH_CHARACTERS = 1500


def _shorten_stderr(text: str) -> str:
    """The end of what a worker wrote to stderr; before a crash, what Python then says of its threads counts less."""
    crash = next(reversed(list(_CRASH.finditer(text))), None)
    if crash is None:
        return _shorten_text(text)
    dump = text[crash.start() :].partition("\n\nExtension modules:")[0].rstrip()
    if len(dump) > _CRASH_CHARACTERS:
        dump = dump[:_CRASH_CHARACTERS].rpartition("\n")[0] + "\n…"
    before = _shorten_text(text[: crash.start()], MAX_CHARACTERS - len(dump) - 1)
    return escape_surrogates(f"{before}\n{dump}" if before else dump)


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[]PX^_].*?(?:\x07|\x1b\\|$)|[ -/]*[0-~]?)", re.MULTILINE)
"""What terminals take for colours, titles and movements of the cursor (ECMA-48)."""

_CONTROLS = dict.fromkeys(code for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n")


def to_plain_text(written: bytes) -> str:
    """What a terminal would show of what was written, as plain text.

    A line that was written over and over (a progress bar) is there as it was last; bytes that are not UTF-8, or half a
    character at the beginning, are replaced.
    """
    text = _ESCAPES.sub("", written.decode(errors="replace").lstrip("\ufffd"))
    lines = (
        next(filter(str.strip, reversed(line.split("\r"))), "") if "\r" in line else line
        for line in text.split("\n")
    )
    return "\n".join(lines).translate(_CONTROLS)


_BEGINNING, _ENDING = 500, 300
"""How much of a longer line is kept where all of it is too long to be sent (characters)."""


def _shorten_text(text: str, most: int = MAX_CHARACTERS, begin: int = 0) -> str:
    """The last lines that fit, each whole or without its middle; before them the first `begin` characters."""
    text = escape_surrogates(text).rstrip()
    if len(text) <= most:
        return text if text.strip() else ""
    text = "\n".join(map(_shorten_line, text.split("\n")))
    if len(text) <= most:
        return text
    first = text[:begin].rpartition("\n")[0] + "\n  …\n" if begin else ""
    return first + text_tail(text, most - len(first))


def _shorten_line(line: str) -> str:
    fits = len(line) <= _BEGINNING + _ENDING
    return line if fits else f"{line[:_BEGINNING]} … {line[-_ENDING:]}"


# -- the agent's own error file --------------------------------------------------------------------------------


def write_root_cause(cause: RootCause) -> None:
    """Write a job's root cause where this agent's own `TORCHELASTIC_ERROR_FILE` says, if it says so."""
    failure = cause.failure
    if failure is None:
        write_error(cause.reason.message, cause.reason.message)
        return
    number = signal_number(failure.signal or "")
    exitcode = failure.exit_code if number is None else -number
    write_error(cause.reason.message, failure.message.strip() or cause.reason.message, exitcode)


def write_error(message: str, stack: str, exitcode: int | None = None) -> None:
    """Write an error where this agent's own `TORCHELASTIC_ERROR_FILE` says, if it says so, in torch's format."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    record: dict[str, Any] = {"message": message, "extraInfo": extra}
    if exitcode is not None:
        record["errorCode"] = exitcode
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o666)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump({"message": record}, file)
    except OSError as failure:
        print_to_stderr(f"hetagent: cannot write {ERROR_FILE}: {failure}")
