"""Values as people type them, in flags and settings. What is wrong with a text is told as a ValueError."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

from hetrdzv.protocol.bounds import MAX_WEIGHT, MIN_WEIGHT
from hetrdzv.protocol.settings import Setting

LONGEST = 256
"""Characters of the name and of the value of a label."""


def _number(text: str) -> float:
    """A number; nan if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def seconds(text: str) -> float:
    """A duration in seconds, zero or more."""
    value = _number(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{text!r} is not a number of seconds, such as 5 or 0.5, without a unit")
    return value


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def weight(text: str) -> float:
    """How fast a node is, compared with others."""
    value = _number(text)
    if not MIN_WEIGHT <= value <= MAX_WEIGHT:
        raise ValueError(f"{text!r} is not a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    return value


def label(text: str) -> tuple[str, str]:
    """Name and value of `LABEL=VALUE`."""
    name, equals, value = text.partition("=")
    if not (name and equals) or max(len(name), len(value)) > LONGEST:
        raise ValueError(f"{text!r} must be LABEL=VALUE, for example rack=r1")
    return name, value


def nodes(text: str) -> tuple[int, int]:
    """The fewest and most nodes of `N` or `MIN:MAX`."""
    if not re.fullmatch(r"\d{1,9}(:\d{1,9})?", text, re.ASCII):
        raise ValueError(f"{text!r} must be N or MIN:MAX, for example 2 or 2:4")
    low, _, high = text.partition(":")
    fewest, most = int(low), int(high or low)
    _require_order(text, fewest, most)
    return fewest, most


def world_size(text: str) -> tuple[int | None, int | None]:
    """The smallest and largest world size of `N`, `MIN:MAX`, `MIN:` or `:MAX`, in slots."""
    if not re.fullmatch(r"\d{1,9}|\d{0,9}:\d{1,9}|\d{1,9}:", text, re.ASCII):
        raise ValueError(
            f"{text!r} must be N or MIN:MAX in slots, for example 8 or 8:16, or 8: for 8 or more"
        )
    low, colon, high = text.partition(":")
    least, most = (int(number) if number else None for number in (low, high if colon else low))
    _require_order(text, least, most)
    return least, most


def _require_order(text: str, least: int | None, most: int | None) -> None:
    if 0 in (least, most) or (least is not None and most is not None and most < least):
        raise ValueError(f"{text}: MIN must be at least 1, and MAX not below MIN")


def setting(of: Setting, text: str) -> object:
    """The value of a group's setting."""
    if of.kind is str:
        of.reads(text)
        return text
    if of.kind is tuple:
        return tuple(setting(replace(of, kind=int), number) for number in text.split(","))
    kinds: dict[type, Callable[[str], object]] = {float: seconds, int: whole}
    value = kinds.get(of.kind, str)(text)
    if of.least is not None and not of.least <= value <= (of.most or 0):  # type: ignore[operator]
        raise ValueError(f"{text} is not between {of.least} and {of.most}")
    return value
