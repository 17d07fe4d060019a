"""Argument types: each turns the text of a flag into a value, or says what is wrong with it."""

import re
import signal
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hetagent.errors import UsageError
from hetrdzv.protocol.texts.typed import seconds

T = TypeVar("T")

Flags = Mapping[str, Mapping[str, Any]]
"""Flags by name, each with the arguments of argparse's `add_argument`."""

ON_OFF = (ON, OFF) = ("on", "off")

GRACE_S = 25.0
"""How long a node has from SIGTERM to its agent if nobody says (seconds): Slurm and Kubernetes kill after 30 s."""

MOST_GRACE_S = 86_400.0
"""Nobody is given more than a day (seconds)."""

UNHANDLED = (signal.SIGKILL, signal.SIGSTOP)
"""Signals that no program can handle."""


Streams = int | dict[int, int]
"""Output streams of all workers, or by local rank: 0 none, 1 stdout, 2 stderr, 3 both."""


def argument(reads: Callable[[str], T]) -> Callable[[str], T]:
    """A reader of texts as argparse takes it: its errors are shown as they are."""

    def read(text: str) -> T:
        try:
            return reads(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def is_on(given: str | None, variable: str, environ: Mapping[str, str]) -> bool:
    """Whether something is on, which it is unless somebody says otherwise."""
    value = given or environ.get(variable) or ON
    if value not in ON_OFF:
        raise UsageError(f"{variable}={value} in the environment: give {ON} or {OFF}")
    return value == ON


def grace(text: str) -> float:
    """How long a node has that has to go (seconds)."""
    if (value := seconds(text)) > MOST_GRACE_S:
        raise ValueError(f"{text} s are more than a day: give at most {MOST_GRACE_S:g}")
    return value


def notice_signal(text: str) -> signal.Signals:
    """The signal of that name, which a program can handle."""
    known = next((each for each in signal.Signals if each.name == text.upper()), None)
    if known is None or known in UNHANDLED:
        why = "there is no such signal" if known is None else "no program can handle it"
        raise ValueError(f"{text!r}: {why}; give SIGUSR1, for example")
    return known


def filters(text: str) -> tuple[str, ...]:
    """The texts of a list with commas between them; two commas stand for one within a text."""
    return tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))


def streams(text: str) -> Streams:
    """Which output streams torchrun's `0` to `3` or `0:1,1:3` name, for all workers or by local rank."""
    if re.fullmatch(r"[0-3]", text):
        return int(text)
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        pairs = (pair.split(":") for pair in text.split(","))
        return {int(rank): int(value) for rank, value in pairs}
    raise ValueError("0 none, 1 stdout, 2 stderr, 3 both, or by local rank 0:1,1:3")


def positive(text: str) -> int:
    """A whole number above zero."""
    if not re.fullmatch(r"0*[1-9]\d{0,8}", text, re.ASCII):
        raise ValueError("give a whole number, 1 or more")
    return int(text)


def size(text: str) -> int:
    """A number of bytes such as 64G, 500M or 1.5T; `off` is 0."""
    if text.strip().lower() == "off":
        return 0
    match = re.fullmatch(
        r"(\d{1,15}(?:\.\d{1,3})?) ?([KMGT]?)(?:i?B)?", text.strip(), re.ASCII | re.IGNORECASE
    )
    if match is None:
        raise ValueError("not a size such as 64G or 500M, nor off")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
