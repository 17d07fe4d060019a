"""Types of flags that click does not have."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

FILE_TYPE = click.Path(path_type=Path)

MAX_DURATION_S = 3_650 * 86_400
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class ParsedType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A value that `parse` reads from its text, or raises a ValueError, whose message is shown."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_duration(text: str) -> float:
    """A duration such as `90s`, `15m`, `12h` or `7d`, or `0`, in seconds; no unit is guessed."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])|0", text.strip(), re.ASCII)
    seconds = float(match[1] or 0) * _UNITS[match[2] or "s"] if match else math.nan
    if not seconds <= MAX_DURATION_S:
        raise ValueError(f"{text!r} is not a duration such as 90s, 15m, 12h or 7d, at most 3650d")
    return seconds
