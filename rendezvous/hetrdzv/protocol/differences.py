"""Differences between the settings that a group has and those that somebody gave, also in the words of flags."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NO_VALUE = "none"
"""How a setting without a value is written."""


SCRIPT = "script"
"""The name of a difference in what nodes run, which is no setting."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that a group has, and the other value that somebody gave; both as people write them."""

    name: str
    group: str
    given: str


RANGES: Mapping[str, tuple[str, str, str]] = {
    "--nnodes": ("min_nodes", "max_nodes", "1"),
    "--world-size": ("min_world_size", "max_world_size", NO_VALUE),
}
"""Flags that give two settings at once, with the default of the first."""


def as_flags(differences: Iterable[Difference], given: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """Differences in the words of the command line: flag, the group's value, the given value.

    Args:
        given: the settings that were given, for the half of a range that does not differ.
    """
    by_name = {difference.name: difference for difference in differences}
    rows = []
    for flag, (low, high, default) in RANGES.items():
        if bounds := [by_name.pop(name) for name in (low, high) if name in by_name]:
            theirs = {low: str(given.get(low, default)), high: str(given.get(high, NO_VALUE))}
            ours = dict(theirs)
            for difference in bounds:
                theirs[difference.name], ours[difference.name] = difference.group, difference.given
            is_range = any(side[low] != side[high] for side in (theirs, ours))
            there, here = (_bounds(side[low], side[high], is_range) for side in (theirs, ours))
            rows.append((flag, there, here))
    rows += [(_flag(difference.name), difference.group, difference.given) for difference in by_name.values()]
    return rows


def _bounds(least: str, most: str, is_range: bool) -> str:
    if most == NO_VALUE:
        return f"{least} or more" if least not in ("1", NO_VALUE) else "not given"
    if least == NO_VALUE:
        return f"at most {most}"
    return f"{least}:{most}" if is_range else least


def _flag(name: str) -> str:
    return "the command" if name == "command" else f"--{name.replace('_', '-')}"
