"""What shares are decided.

As a round forms: by the weights that people gave, if anybody gave one; else by the speeds that were measured, if all
nodes have theirs; else all ranks get the same. When workers ask for new shares: by how much of the time each has
worked, and not waited for others. A rank that worked half of the time with its share could have done twice as much.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate, groupby
from math import sqrt
from statistics import median

from hetrdzv.core.model import Node
from hetrdzv.core.rooms.shares.slow_slots import are_few
from hetrdzv.protocol.rooms.shares import Shares, Source

Runs = tuple[tuple[int, float], ...]
"""See `Shares.weights`."""

SAME = 0.05
"""Speeds that differ by less (as a share) count as the same: no measurement is better, and equal ranks stay equal."""

ENOUGH_LOOKS = 10
"""So often must every worker have been looked at since the last decision for its pace to count."""

CERTAIN = 2.0
"""By how many standard deviations a pace must differ from the usual one to change a weight."""

LEAST = 0.02
"""The smallest weight that follows from a pace; the largest is 1."""

MOST_RUNS = 2_000
"""Into how many runs shares go at most, unless people gave the weights: every node is told all of them."""

COARSER = (0.1, 0.3)
"""By how much more speeds may differ and count as the same where there are more runs than that. If that is not enough,
all ranks get the same."""


@dataclass(frozen=True, slots=True)
class Worked:
    """How much of the time a worker has worked since the last decision on shares, and did not wait for others.

    Attributes:
        share: 0 to 1.
        looks: how often its agent has looked, which is what the share was counted from.
    """

    share: float
    looks: int


def runs_of(weights: Sequence[float]) -> Runs:
    """Weights in the smallest form; see `Shares.weights`."""
    runs = tuple((len(list(alike)), weight) for weight, alike in groupby(weights))
    return runs if len(runs) > 1 else ()


# -- deciding ------------------------------------------------------------------------------------------------


def at_forming(number: int, nodes: Sequence[Node]) -> Shares:
    """The shares of a round that forms.

    Args:
        nodes: its members in rank order.
    """
    if any(node.weighed for node in nodes):
        each = groupby(nodes, key=lambda node: node.weight)
        runs = tuple((sum(node.slots for node in alike), weight) for weight, alike in each)
        return Shares(round=number, weights=runs if len(runs) > 1 else (), source=Source.BY_HAND)
    if are_few(nodes) and all(len(node.speeds) == node.slots for node in nodes):
        speeds = [speed for node in nodes for speed in node.speeds]
        return Shares(round=number, weights=_few_runs(_levelled(speeds, SAME)), source=Source.MEASURED)
    return Shares(round=number)


def by_pace(before: Shares, number: int, worked: Mapping[int, Worked], world_size: int) -> Shares:
    """The shares after a decision that the workers of a round asked for; as before where not enough is known.

    Args:
        before: those by which they have worked until now.
        worked: by global rank.
    """
    paces = paces_of(before, worked, world_size)
    if paces is None:
        return replace(before, number=number)
    old = before.of_ranks(world_size)
    usual = median(pace / weight for pace, weight in zip(paces, old, strict=True))
    new = [
        weight if abs(pace / weight / usual - 1) < max(SAME, _chance(worked[rank])) else pace / usual
        for rank, (weight, pace) in enumerate(zip(old, paces, strict=True))
    ]
    if new == old:
        return replace(before, number=number)
    top = max(new)
    runs = _few_runs([max(weight, LEAST * top) for weight in new])
    return replace(before, number=number, weights=runs, source=Source.PACE)


def paces_of(shares: Shares, worked: Mapping[int, Worked], world_size: int) -> list[float] | None:
    """How fast each rank has been, compared with the others, in the unit of the weights; None: not enough is known."""
    if len(worked) < world_size:
        return None
    known = [record for rank in range(world_size) if (record := worked.get(rank)) is not None]
    if len(known) < world_size or any(record.looks < ENOUGH_LOOKS for record in known):
        return None
    return [
        # one more look of either kind: of few, all may have been of one kind by chance
        weight * (record.looks + 2) / (record.share * record.looks + 1)
        for weight, record in zip(shares.of_ranks(world_size), known, strict=True)
    ]


def _chance(worked: Worked) -> float:
    """By which share a pace may differ from the true one by chance: twice the standard deviation of so many looks.

    Whoever followed differences that are not there would make equal ranks unequal, the more so the more often they ask.
    """
    busy = worked.share * worked.looks + 1
    waited = (1 - worked.share) * worked.looks + 1
    return CERTAIN * sqrt(waited / (busy * worked.looks))


def _few_runs(weights: Sequence[float]) -> Runs:
    """Weights in at most `MOST_RUNS` runs: where there are more, the more unlike ones are made the same."""
    scaled = _scaled(weights)
    runs = runs_of(scaled)
    for same in COARSER:
        if len(runs) > MOST_RUNS:
            runs = runs_of(_scaled(_levelled(scaled, same)))
    return runs if len(runs) <= MOST_RUNS else ()


def _levelled(speeds: Sequence[float], same: float) -> list[float]:
    """Speeds that count as the same made the same, first where most are close together.

    Args:
        same: the share by which these differ at most.
    """
    rounded = [float(f"{speed:.4g}") for speed in speeds]
    counts = Counter(rounded)
    speeds = sorted(counts)
    before = [0, *accumulate(counts[speed] for speed in speeds)]  # how many are slower
    first, windows = 0, []
    for last, speed in enumerate(speeds):
        while speeds[first] <= speed * (1 - same):
            first += 1
        windows.append(
            (before[first] - before[last + 1], -last, first)
        )  # those with most first, then the fastest
    heapify(windows)
    level: dict[float, float] = {}
    starts: list[int] = []  # where those begin that have their level, and where they end
    ends: list[int] = []
    while windows:
        _, last, first = heappop(windows)
        last = -last
        if speeds[last] in level:
            continue
        at = bisect(starts, last)
        behind = ends[at - 1] if at else 0
        if behind > first:  # some of them have theirs already
            heappush(windows, (before[behind] - before[last + 1], -last, behind))
            continue
        alike = speeds[first : last + 1]
        level |= dict.fromkeys(alike, median(speed for speed in alike for _ in range(counts[speed])))
        starts.insert(at, first)
        ends.insert(at, last + 1)
    return [level[speed] for speed in rounded]


def _scaled(weights: Sequence[float]) -> list[float]:
    """Weights of which the largest is 1, with three significant digits."""
    top = max(weights)
    return [float(f"{weight / top:.3g}") for weight in weights]
