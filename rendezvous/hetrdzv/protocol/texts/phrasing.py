"""Parts of sentences: numbers with their nouns, durations, lists of names, ranks."""

import re

from hetrdzv.protocol.states import HANGS_STATE
from hetrdzv.protocol.texts.node_rank_lists import NodeList, RankList


def count_text(number: int, noun: str) -> str:
    """A number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent_text(share: float) -> str:
    """A share, rounded down, so that 100 % means all of it: `99.9 %`."""
    return f"{int(share * 1000) / 10:g} %"


def number_text(value: float) -> str:
    """A number to about three digits, whole from 100 on: `1,234`, `4.57`."""
    return f"{value:,.0f}" if value >= 99.95 or value == int(value) else f"{value:.3g}"


def state_predicate(state: str) -> str:
    """The state of a group or a node as a predicate: `is running`, `hangs`, `has failed`."""
    known = {
        HANGS_STATE: HANGS_STATE,
        "failed": "has failed",
        "succeeded": "has succeeded",
        "left": "has left",
    }
    return known.get(state, f"is {state}")


def singular_or_plural(who: NodeList | RankList, one: str, more: str) -> str:
    """The word for one of them, or for several: `is`, `are`."""
    return one if len(who) == 1 else more


def nodes_are(nodes: NodeList) -> str:
    """`gpu1 is`, or `gpu1, gpu2 are`."""
    return f"{nodes} {singular_or_plural(nodes, 'is', 'are')}"


def nodes_have(nodes: NodeList) -> str:
    """`gpu1 has`, or `gpu1, gpu2 have`."""
    return f"{nodes} {singular_or_plural(nodes, 'has', 'have')}"


MAX_QUOTED_CHARACTERS = 200
"""How much of somebody else's text a message quotes (characters)."""


def clip_text(text: str, most: int = MAX_QUOTED_CHARACTERS) -> str:
    """Somebody else's text, no longer than that."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


_CONTROL_CHARACTERS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def strip_control_characters(text: str) -> str:
    """Text of another machine without what moves a terminal's cursor, colours or reorders anything."""
    return _CONTROL_CHARACTERS.sub("", text)


def ago_text(seconds: float) -> str:
    """How long ago something was, in the largest fitting unit: `40 s ago`, `3 min ago`, `5 h ago`, `2 d ago`."""
    return f"{duration_text(seconds, roughly=True)} ago"


MIN_SHOWN_S = 0.05
"""What took less would be 0.0 s (seconds)."""


def duration_text(seconds: float, *, roughly: bool = False) -> str:
    """A length of time, to about three digits: `< 0.1 s`, `0.3 s`, `42 s`, `12 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds < MIN_SHOWN_S:
        return "< 0.1 s" if seconds > 0 else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, part in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            largest = f"{whole // size} {unit}"
            return largest if roughly else f"{largest} {whole % size // smaller} {part}"
    return f"{whole} s"
