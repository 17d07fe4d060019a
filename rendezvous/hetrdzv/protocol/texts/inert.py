"""Text that came from another machine, for a terminal: nothing in it moves the cursor, colours or reorders anything."""

import re

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def inert(text: str) -> str:
    """A text without control sequences and control characters, except ends of lines and tabs."""
    return _CONTROL.sub("", text)
