"""Argument types: each turns the text of a flag into a value, or says what is wrong with it."""

import math
import re
import signal
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import replace

from hetagent.node.network import parse_port_range
from hetagent.options.model import Std, Streams
from hetrdzv.protocol.bounds import MAX_WEIGHT, MIN_WEIGHT
from hetrdzv.protocol.settings import Setting

UNHANDLED = (signal.SIGKILL, signal.SIGSTOP)
"""Signals that no program can handle."""


def seconds(text: str) -> float:
    """A duration in seconds, zero or more.

    Raises:
        ArgumentTypeError: it is negative, infinite or not a number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds, such as 5 or 0.5, without a unit")
    return value


def whole(text: str) -> int:
    """A whole number.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None


def port_range(text: str) -> tuple[int, int]:
    """The first and last port of `A-B`, at least two ports.

    Raises:
        ArgumentTypeError: it is not a range, or too small.
    """
    try:
        first, last = parse_port_range(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if first == last:
        raise ArgumentTypeError(f"port range '{text}' is too small: a node needs two ports")
    return first, last


def notice_signal(text: str) -> signal.Signals:
    """The signal of that name, which a program can handle.

    Raises:
        ArgumentTypeError: there is none, or none can.
    """
    known = next((each for each in signal.Signals if each.name == text.upper()), None)
    if known is None or known in UNHANDLED:
        why = "there is no such signal" if known is None else "no program can handle it"
        raise ArgumentTypeError(f"{text!r}: {why}; give SIGUSR1, for example")
    return known


def label(text: str) -> tuple[str, str]:
    """Key and value of `KEY=VALUE`.

    Raises:
        ArgumentTypeError: the key or the equals sign is missing.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"{text!r} must be KEY=VALUE")
    return key, value


def weight(text: str) -> float:
    """A number that says how fast a node is.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not MIN_WEIGHT <= value <= MAX_WEIGHT:
        raise ArgumentTypeError(f"{text!r} is not a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    return value


def setting(of: Setting, text: str) -> object:
    """The value of a group's setting.

    Raises:
        ArgumentTypeError: it is not a number of the right kind, out of bounds, or a text that means nothing.
    """
    if of.kind is str:
        try:
            of.reads(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None
        return text
    if of.kind is tuple:
        return tuple(setting(replace(of, kind=int), one) for one in text.split(","))
    kinds: dict[type, Callable[[str], object]] = {float: seconds, int: whole}
    value = kinds.get(of.kind, str)(text)
    if of.least is not None and not of.least <= value <= (of.most or 0):  # type: ignore[operator]
        raise ArgumentTypeError(f"{text} is not between {of.least} and {of.most}")
    return value


def filters(text: str) -> tuple[str, ...]:
    """The texts of a list with commas between them; two commas stand for one within a text."""
    return tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))


def streams(text: str) -> Streams:
    """Which output streams torchrun's `0` to `3` or `0:1,1:3` name, for all workers or by local rank.

    Raises:
        ValueError: it names none.
    """
    if re.fullmatch(r"[0-3]", text):
        return Std(int(text))
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        pairs = (pair.split(":") for pair in text.split(","))
        return {int(rank): Std(int(value)) for rank, value in pairs}
    raise ValueError("0 none, 1 stdout, 2 stderr, 3 both, or by local rank 0:1,1:3")


def world_size(text: str) -> tuple[int | None, int | None]:
    """The smallest and largest world size of `N`, `MIN:MAX`, `MIN:` or `:MAX`.

    Raises:
        ArgumentTypeError: it is none of these, or MAX is below MIN.
    """
    low, colon, high = text.partition(":")
    if not re.fullmatch(r"\d+|\d*:\d+|\d+:", text, re.ASCII):
        raise ArgumentTypeError(
            f"{text!r} must be N or MIN:MAX in slots, for example 8 or 8:16, or 8: for 8 or more"
        )
    least, most = (int(one) if one else None for one in (low, high if colon else low))
    if least == 0 or most == 0 or (least is not None and most is not None and most < least):
        raise ArgumentTypeError(f"{text}: MIN must be at least 1, and MAX not below MIN")
    return least, most


def nodes(text: str) -> tuple[int, int]:
    """The fewest and most nodes of `N` or `MIN:MAX`.

    Raises:
        ValueError: it is neither.
    """
    fewest, _, most = text.partition(":")
    return int(fewest), int(most or fewest)
