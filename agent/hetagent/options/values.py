"""Argument types: each turns the text of a flag into a value, or says what is wrong with it."""

import re
import signal
from pathlib import Path

from hetrdzv.protocol.texts.parsing import parse_seconds

ON_OFF = ("on", "off")

NONE, AUTO = "none", "auto"
"""Words of `--preload`."""

GRACE_S = 25.0
"""How long a node has from SIGTERM to its agent if nobody says (seconds): Slurm and Kubernetes kill after 30 s."""

MOST_GRACE_S = 86_400.0
"""Nobody is given more than a day (seconds)."""

UNHANDLED = (signal.SIGKILL, signal.SIGSTOP)
"""Signals that no program can handle."""


Streams = int | dict[int, int]
"""Output streams of all workers, or by local rank: 0 none, 1 stdout, 2 stderr, 3 both."""


def parse_switch(text: str) -> bool:
    """What the variable of a switch says."""
    if text not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return text == "1"


def parse_grace(text: str) -> float:
    """How long a node has that has to go (seconds)."""
    if (value := parse_seconds(text)) > MOST_GRACE_S:
        raise ValueError(f"{text} s are more than a day: give at most {MOST_GRACE_S:g}")
    return value


def parse_signal(text: str) -> signal.Signals:
    """The signal of that name, which a program can handle."""
    known = signal.Signals.__members__.get(text.upper())
    if known is None or known in UNHANDLED:
        why = "there is no such signal" if known is None else "no program can handle it"
        raise ValueError(f"{text!r}: {why}; give SIGUSR1, for example")
    return known


def parse_signals(text: str) -> tuple[signal.Signals, ...]:
    """The signals of a list with commas between them."""
    return tuple(parse_signal(name) for part in text.split(",") if (name := part.strip()))


def parse_filters(text: str) -> tuple[str, ...]:
    """The texts of a list with commas between them; two commas stand for one within a text."""
    return tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))


def parse_streams(text: str) -> Streams:
    """Which output streams torchrun's `0` to `3` or `0:1,1:3` name, for all workers or by local rank."""
    if re.fullmatch(r"[0-3]", text):
        return int(text)
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        pairs = (pair.split(":") for pair in text.split(","))
        return {int(rank): int(value) for rank, value in pairs}
    raise ValueError(
        f"{text!r} does not name streams: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank 0:1,1:3"
    )


def parse_ranks(text: str) -> frozenset[int] | None:
    """Local ranks; None for none at all, which stands for all of them."""
    try:
        return frozenset(int(rank) for rank in text.split(",")) if text else None
    except ValueError:
        raise ValueError(f"{text!r} must be local ranks, for example 0,1") from None


def parse_modules(text: str) -> tuple[str, ...]:
    """What standbys import; empty: there are to be none."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names if names != (NONE,) else ():
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is no module: give names with commas between them, {AUTO}, or {NONE}")
    return names if names != (NONE,) else ()


def parse_positive(text: str) -> int:
    """A whole number above zero."""
    if not re.fullmatch(r"0*[1-9]\d{0,8}", text, re.ASCII):
        raise ValueError("give a whole number, 1 or more")
    return int(text)


def parse_size(text: str) -> int:
    """A number of bytes such as 64G, 500M or 1.5T; `off` is 0."""
    if text.strip().lower() == "off":
        return 0
    match = re.fullmatch(
        r"(\d{1,15}(?:\.\d{1,3})?) ?([KMGT]?)(?:i?B)?", text.strip(), re.ASCII | re.IGNORECASE
    )
    if match is None:
        raise ValueError("not a size such as 64G or 500M, nor off")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def parse_nonempty(text: str) -> str:
    """A path as it was given."""
    if not text:
        raise ValueError("give a path: this one is empty")
    return text


def parse_absolute(text: str) -> Path:
    """A path that does not depend on the directory of whoever uses it."""
    return Path(parse_nonempty(text)).absolute()


def parse_directory(text: str) -> Path:
    """A directory that all nodes share."""
    if "://" in text:
        raise ValueError("a URL is no directory: mount the bucket, and give the directory where it is")
    return parse_absolute(text)
