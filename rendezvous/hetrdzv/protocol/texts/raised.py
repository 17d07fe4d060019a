"""The exception that ended a Python program, as its traceback shows it."""

import re
from typing import NamedTuple

_FRAME = re.compile(
    r'^(?P<margin>.*?)  File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?:, in .*)?$', re.MULTILINE
)
"""A line of a traceback that names code; before it, what a launcher or an exception group puts there."""

_LIBRARY = re.compile(r"^<|/(?:site|dist)-packages/|/lib/python\d")
"""Files that are not the script's own."""


class RaisedException(NamedTuple):
    """An exception."""

    headline: str
    where: str
    end: int


def find_exception(text: str) -> RaisedException | None:
    """The last exception of a text that ends with a traceback; None: it has none."""
    frames = list(_FRAME.finditer(text))
    if not frames:
        return None
    last = frames[-1]
    margin, at = last["margin"], last.end() + 1
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end]
        said = line[len(margin) :] if line.startswith(margin) else ""
        if said and not said[0].isspace():
            own = _own(text, frames)
            where = f"{own['path'].rpartition('/')[2]}:{own['line']}"
            return RaisedException(said.strip(), where, end)
        at = end + 1
    return None


def _own(text: str, frames: list[re.Match[str]]) -> re.Match[str]:
    """The innermost line of the script's own code in the last traceback, else the innermost of all."""
    begins = text.rfind("Traceback (most recent call last):", 0, frames[-1].start())
    inner = (
        frame for frame in reversed(frames) if frame.start() > begins and not _LIBRARY.search(frame["path"])
    )
    return next(inner, frames[-1])
