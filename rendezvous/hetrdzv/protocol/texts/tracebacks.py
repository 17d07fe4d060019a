"""The exception that ended a Python program, as its traceback shows it."""

import re
from typing import NamedTuple

_TRACEBACK_FRAME = re.compile(
    r'^(?P<margin>.*?)  File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?:, in .*)?$', re.MULTILINE
)
"""A line of a traceback that names code; before it, what a launcher or an exception group puts there."""

_LIBRARY_PATH = re.compile(r"^<|/(?:site|dist)-packages/|/lib/python\d")
"""Files that are not the script's own."""


class RaisedException(NamedTuple):
    """An exception."""

    headline: str
    where: str
    end: int


def find_exception(text: str) -> RaisedException | None:
    """The last exception of a text that ends with a traceback; None: it has none.

    It comes from the innermost line of the script's own code in the last traceback, else from the innermost of all.
    """
    frames = list(_TRACEBACK_FRAME.finditer(text))
    if not frames:
        return None
    last = frames[-1]
    headline = re.compile(rf"^{re.escape(last['margin'])}(\S.*)$", re.MULTILINE).search(text, last.end())
    if headline is None:
        return None
    begins = text.rfind("Traceback (most recent call last):", 0, last.start())
    of_last = (frame for frame in reversed(frames) if frame.start() > begins)
    own = next((frame for frame in of_last if not _LIBRARY_PATH.search(frame["path"])), last)
    where = f"{own['path'].rpartition('/')[2]}:{own['line']}"
    return RaisedException(headline[1].strip(), where, headline.end())
