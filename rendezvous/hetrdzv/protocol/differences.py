"""Differences between the settings that a group has and those that somebody gave, also in the words of flags."""

from collections.abc import Iterable
from dataclasses import dataclass

NO_VALUE = "none"
"""How a setting without a value is written."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that a group has, and the other value that somebody gave; both as people write them."""

    name: str
    group: str
    given: str


def as_flags(found: Iterable[Difference], nnodes: tuple[int, int] | None) -> list[tuple[str, str, str]]:
    """Differences in the words of the command line: flag, the group's value, the given value.

    Args:
        nnodes: the bounds of nodes that were given, for the half of `--nnodes` that does not differ; None: neither was.
    """
    by_name = {one.name: one for one in found}
    rows = []
    if bounds := [by_name.pop(name) for name in ("min_nodes", "max_nodes") if name in by_name]:
        least, most = (str(one) for one in nnodes or (1, NO_VALUE))
        theirs, ours = {"min_nodes": least, "max_nodes": most}, {"min_nodes": least, "max_nodes": most}
        for one in bounds:
            theirs[one.name], ours[one.name] = one.group, one.given
        is_range = any(side["min_nodes"] != side["max_nodes"] for side in (theirs, ours))
        rows.append(("--nnodes", _bounds(theirs, is_range), _bounds(ours, is_range)))
    rows += [(_flag(one.name), one.group, one.given) for one in by_name.values()]
    return rows


def _bounds(side: dict[str, str], is_range: bool) -> str:
    least, most = side["min_nodes"], side["max_nodes"]
    if most == NO_VALUE:
        return f"{least} or more" if least != "1" else "not given"
    return f"{least}:{most}" if is_range else least


def _flag(name: str) -> str:
    return "the command" if name == "command" else f"--{name.replace('_', '-')}"
