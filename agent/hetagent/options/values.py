"""Argument types: each turns the text of a flag into a value, or says what is wrong with it."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable

from hetagent.node.network import parse_port_range
from hetrdzv.protocol.wire import Setting


def seconds(text: str) -> float:
    """A duration in seconds, zero or more.

    Raises:
        ArgumentTypeError: it is negative, infinite or not a number.
    """
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentTypeError(f"{text} is not a number of seconds")
    return value


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


def label(text: str) -> tuple[str, str]:
    """Key and value of `KEY=VALUE`.

    Raises:
        ArgumentTypeError: the key or the equals sign is missing.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"{text!r} must be KEY=VALUE")
    return key, value


def setting(of: Setting, text: str) -> object:
    """The value of a group's setting; the server checks its bounds.

    Raises:
        ValueError, ArgumentTypeError: it is not a number of the right kind.
    """
    kinds: dict[type, Callable[[str], object]] = {float: seconds, int: int}
    return kinds.get(of.kind, str)(text)
