"""How hetserver logs: one line per record on stderr, as text or JSON."""

import json
import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from logging.handlers import QueueHandler, QueueListener
from typing import cast

MAX_QUEUED_LINES = 10_000
"""How many lines may wait for a reader that stalls; further ones are dropped."""

STALLED_READER_TIMEOUT_S = 2.0
"""How long the end of the program waits for such a reader (seconds)."""

MAX_MESSAGE_CHARACTERS = 2_000
"""Characters of a message; some texts come from clients."""


class LogWriter(QueueListener):
    """Writes what is queued, from a thread of its own."""

    def enqueue_sentinel(self) -> None:
        """Ask for the end, behind the lines that wait; a reader that stalls may make room."""
        with suppress(queue.Full):
            cast("queue.Queue[object]", self.queue).put(None, timeout=STALLED_READER_TIMEOUT_S)


@contextmanager
def logging_to_stderr(level: str, style: str) -> Iterator[None]:
    """Log to stderr for the length of a block; `style`: `text` or `json`.

    A thread writes: a reader that stalls (a pager, a full pipe) must not stop the server.
    """
    logging.raiseExceptions = False  # a full queue or a closed stderr are nobody's to hear of
    lines: queue.Queue[object] = queue.Queue(MAX_QUEUED_LINES)
    handler, writer = QueueHandler(lines), LogWriter(lines, logging.StreamHandler())
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    writer.start()
    root = logging.getLogger()
    before = root.level
    root.setLevel(level.upper())
    root.addHandler(handler)
    for name in ("asyncio", "httpcore", "httpx", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        stopping = threading.Thread(target=writer.stop, daemon=True)
        stopping.start()
        stopping.join(STALLED_READER_TIMEOUT_S)


class TextFormatter(logging.Formatter):
    """`2026-11-22 14:03:10.123 INFO hetserver: group 'g': a joined ...`; a traceback follows on indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        at = _record_time(record).isoformat(" ", "milliseconds")[:23]
        lines = [f"{at} {record.levelname} hetserver: {format_message(record)}"]
        if record.exc_info:
            lines += [
                f"    {_escape_unprintable(row)}"
                for row in self.formatException(record.exc_info).splitlines()
            ]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, and what the record says of a group."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        fields = {
            "time": _record_time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": format_message(record),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def format_message(record: logging.LogRecord) -> str:
    """The message of a record as one line of bounded length: what a client has sent must not look like another line."""
    text = record.getMessage()
    return _escape_unprintable(
        text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[:MAX_MESSAGE_CHARACTERS]}..."
    )


def _escape_unprintable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _record_time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created).astimezone()
