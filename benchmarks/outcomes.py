"""Collects the outcomes of faults by kind, and shows them in tables."""

import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.workload.worklog import World

SPAN = ("noticed", "old workers gone", "new ones started", "torch imported", "all-reduced")
"""The way from a fault to the next world; see `Recovery.parts`."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One fault that was recovered from (times are monotonic seconds).

    Attributes:
        seconds: from the fault until every rank of the next world had all-reduced once.
        over_floor_s: that less the floor for as many processes; None where nothing was started.
        steps_lost: steps that had been made and were made again, since no checkpoint had them.
        parts: seconds of each of `SPAN`, in this order: until the server ended the round, until it formed the
            next (the old workers were gone, all nodes ready), until the last worker ran its first line, had
            imported torch, and had all-reduced. Empty where there is no such way.
    """

    seconds: float
    over_floor_s: float | None = None
    steps_lost: int = 0
    parts: tuple[float, ...] = ()


def started(world: World, since: float) -> tuple[float, ...]:
    """The last three parts of the way to a world: its workers' own, counted from their start."""
    moments = [since, world.last("started"), world.last("imported"), world.at]
    return tuple(after - before for before, after in itertools.pairwise(moments))


@dataclass
class Kind:
    """All faults of one kind.

    Attributes:
        name: what was done.
        goal_s: what the median over the floor may be; None: nothing is promised.
        wrong: what was not as it has to be, apart from orphans and jobs that hung.
    """

    name: str
    goal_s: float | None = None
    tried: int = 0
    recoveries: list[Recovery] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    orphans: int = 0
    hung: int = 0

    @property
    def failed(self) -> bool:
        """Whether anything went otherwise than promised, slowness aside."""
        return bool(self.wrong or self.orphans or self.hung or len(self.recoveries) < self.tried)

    def brief(self) -> str:
        """All of it in one cell."""
        text = f"{len(self.recoveries)} of {self.tried}"
        if self.recoveries:
            overs = [one.over_floor_s for one in self.recoveries if one.over_floor_s is not None]
            text += f", median {self.median_s:.1f} s ({statistics.median(overs):+.1f})"
        return text + (f", {len(self.wrong)} wrong" if self.wrong else "")

    @property
    def median_s(self) -> float:
        """The median time of those that were recovered from."""
        return statistics.median(one.seconds for one in self.recoveries)

    def row(self) -> list[str]:
        """Its line in the table of `HEADING`."""
        times = over = lost = "-"
        if self.recoveries:
            times = f"{self.median_s:.2f} / {max(one.seconds for one in self.recoveries):.2f}"
            overs = [one.over_floor_s for one in self.recoveries if one.over_floor_s is not None]
            if overs:
                over = f"{statistics.median(overs):+.2f} / {max(overs):+.2f}"
            steps = [one.steps_lost for one in self.recoveries]
            lost = f"{statistics.median(steps):.0f} / {max(steps)}"
        goal = "-" if self.goal_s is None else f"{self.goal_s:+.2f}"
        counts = [str(number) for number in (len(self.wrong), self.orphans, self.hung)]
        return [self.name, str(self.tried), str(len(self.recoveries)), times, over, goal, lost, *counts]


HEADING = (
    "fault",
    "tried",
    "recovered",
    "s, median / worst",
    "over the floor",
    "goal",
    "steps lost",
    "wrong",
    "orphans",
    "hung",
)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def parts_table(kinds: Sequence[Kind]) -> str:
    """Where the time goes: the median of each part and, below it, those of the slowest recovery."""
    rows = []
    for kind in kinds:
        timed = [one for one in kind.recoveries if one.parts]
        if timed:
            medians = [
                statistics.median(column) for column in zip(*(one.parts for one in timed), strict=True)
            ]
            worst = max(timed, key=lambda one: one.seconds)
            rows.append([kind.name, "median", *(f"{part:.2f}" for part in medians)])
            rows.append(["", "the slowest", *(f"{part:.2f}" for part in worst.parts)])
    return table(["fault", "", *SPAN], rows)


def say(text: str) -> None:
    """Report progress on stderr, apart from the tables."""
    print(text, file=sys.stderr, flush=True)
