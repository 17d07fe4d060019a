"""How hetserver logs: one line per record on stderr, as text or JSON, without waiting for whoever reads them."""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

LINES_KEPT = 10_000
"""How many lines may wait for a reader that stalls; further ones are dropped and counted."""

PATIENCE_S = 2.0
"""How long the end of the program waits for such a reader (seconds)."""

LONGEST = 2_000
"""Characters of a message; some texts come from clients."""

QUIET = ("asyncio", "httpcore", "httpx", "uvicorn")
"""Libraries whose own chatter is logged from warnings on only."""


@contextmanager
def logging_to_stderr(level: str, style: str) -> Iterator[None]:
    """Log to stderr for the length of a block.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        style: `text` or `json`.
    """
    handler = _Handler()
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    before = root.level
    root.setLevel(level.upper())
    root.addHandler(handler)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.close()


class TextFormatter(logging.Formatter):
    """`2026-11-22 14:03:10.123 INFO hetserver: group 'g': a joined ...`; a traceback follows on indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        at = _at(record).isoformat(" ", "milliseconds")[:23]
        line = f"{at} {record.levelname} hetserver: {message_of(record)}"
        if not record.exc_info:
            return line
        trace = (f"    {_printable(row)}" for row in self.formatException(record.exc_info).splitlines())
        return "\n".join([line, *trace])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, and what the record says of a group."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        fields = {
            "time": _at(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def message_of(record: logging.LogRecord) -> str:
    """The message of a record as one line of bounded length: what a client has sent must not look like another line."""
    text = record.getMessage()
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return _printable(text)


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _at(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created).astimezone()


class _Handler(logging.Handler):
    """Writes in a thread of its own: a reader that stalls (a pager, a full pipe) must not stop the server."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_KEPT)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_forever, name="hetserver-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=PATIENCE_S)
        self._thread.join(PATIENCE_S)
        super().close()

    def _write_forever(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line = f"{self.format(_dropped(dropped))}\n{line}"
            _write(f"{line}\n")


def _dropped(count: int) -> logging.LogRecord:
    about = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
    return logging.makeLogRecord(
        {**about, "msg": f"{count} lines of the log were dropped, since nobody read them"}
    )


def _write(text: str) -> None:
    if sys.stderr is None:  # closed when this process was started
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody will ever read it
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stderr.fileno())
            os.close(nowhere)
