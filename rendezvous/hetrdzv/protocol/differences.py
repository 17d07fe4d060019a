"""Differences between the settings that a group has and those that somebody gave."""

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
