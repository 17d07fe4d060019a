"""Values as people type them, in flags and settings. What is wrong with a text is told as a ValueError."""

import re
from contextlib import suppress

from hetrdzv.protocol.bounds import MAX_SECONDS, MAX_WEIGHT, MIN_WEIGHT
from hetrdzv.protocol.settings import MAX_NODES, MAX_WORLD_SIZE

MAX_TEXT_CHARACTERS = 256
"""Characters of the name and of the value of a label."""


def parse_seconds(text: str) -> float:
    """A duration in seconds, zero or more."""
    return _parse_number(text, 0, MAX_SECONDS, "of seconds, such as 5 or 0.5, without a unit")


def parse_weight(text: str) -> float:
    """How fast a node is, compared with others."""
    return _parse_number(text, MIN_WEIGHT, MAX_WEIGHT, f"from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")


def _parse_number(text: str, least: float, most: float, which: str) -> float:
    with suppress(ValueError):
        if least <= (value := float(text)) <= most:
            return value
    raise ValueError(f"{text!r} is not a number {which}")


def parse_label(text: str) -> tuple[str, str]:
    """Name and value of `LABEL=VALUE`."""
    name, equals, value = text.partition("=")
    if not (name and equals) or max(len(name), len(value)) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"{text!r} must be LABEL=VALUE, for example rack=r1")
    return name, value


def parse_nodes(text: str) -> tuple[int, int]:
    """The fewest and most nodes of `N` or `MIN:MAX`."""
    fewest, most = _parse_range(text, r"\d{1,9}(:\d{1,9})?", "N or MIN:MAX, for example 2 or 2:4", MAX_NODES)
    return fewest or 1, most or MAX_NODES


def parse_world_size(text: str) -> tuple[int | None, int | None]:
    """The smallest and largest world size of `N`, `MIN:MAX`, `MIN:` or `:MAX`, in slots."""
    forms = "N or MIN:MAX in slots, for example 8 or 8:16, or 8: for 8 or more"
    return _parse_range(text, r"\d{1,9}|\d{0,9}:\d{1,9}|\d{1,9}:", forms, MAX_WORLD_SIZE)


def _parse_range(text: str, pattern: str, forms: str, limit: int) -> tuple[int | None, int | None]:
    if not re.fullmatch(pattern, text, re.ASCII):
        raise ValueError(f"{text!r} must be {forms}")
    low, colon, high = text.partition(":")
    least, most = (int(number) if number else None for number in (low, high if colon else low))
    if 0 in (least, most) or (least is not None and most is not None and most < least):
        raise ValueError(f"{text}: MIN must be at least 1, and MAX not below MIN")
    if max(least or 0, most or 0) > limit:
        raise ValueError(f"{text} is more than {limit}, the most there may be")
    return least, most
