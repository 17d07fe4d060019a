"""Shares: how much of the work each rank of a round gets, decided with the round and whenever its workers ask.

As a round forms: by the weights that people gave, if anybody gave one; else by the speeds that were measured, if all
nodes have theirs; else all ranks get the same. When workers ask for new shares: by how much of the time each has
worked, and not waited for others. A rank that worked half of the time with its share could have done twice as much.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import accumulate, groupby
from math import fsum, sqrt
from statistics import median

from hetrdzv.core.commands import Refresh, Worked
from hetrdzv.core.health.slow_slots import are_few
from hetrdzv.core.model import EQUAL_SHARES, Node, Round, Shares
from hetrdzv.core.rounds.transitions import Work, require_speaker
from hetrdzv.protocol.errors import NoSuchShares, StaleRound
from hetrdzv.protocol.events import Moved, Place, SharesChanged
from hetrdzv.protocol.states import ShareSource

KEPT = 2
"""How many decisions of a round are kept beside that of its beginning: a rank may still ask for the last but one."""

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

MOST_TOLD = 8
"""How many nodes the event names whose shares have changed."""


# -- reading -------------------------------------------------------------------------------------------------


def weights_of(shares: Shares, world_size: int) -> list[float]:
    """The weight of each rank."""
    if not shares.runs:
        return [1.0] * world_size
    return [weight for count, weight in shares.runs for _ in range(count)]


def by_member(current: Round, shares: Shares) -> dict[str, tuple[float, ...]]:
    """The weights of each member's slots, by node id."""
    weights = weights_of(shares, current.world_size)
    return {
        member.node_id: tuple(weights[member.rank_offset : member.rank_offset + member.slots])
        for member in current.members
    }


def runs_of(weights: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Weights in the smallest form; see `Shares.runs`."""
    runs = tuple((len(list(alike)), weight) for weight, alike in groupby(weights))
    return runs if len(runs) > 1 else ()


# -- deciding ------------------------------------------------------------------------------------------------


def at_forming(nodes: Sequence[Node]) -> Shares:
    """The shares of a round that forms.

    Args:
        nodes: its members in rank order.
    """
    if any(node.weighed for node in nodes):
        each = groupby(nodes, key=lambda node: node.weight)
        runs = tuple((sum(node.slots for node in alike), weight) for weight, alike in each)
        return Shares(runs=runs if len(runs) > 1 else (), source=ShareSource.BY_HAND)
    if are_few(nodes) and all(len(node.speeds) == node.slots for node in nodes):
        speeds = [speed for node in nodes for speed in node.speeds]
        return Shares(runs=_few_runs(_levelled(speeds, SAME)), source=ShareSource.MEASURED)
    return EQUAL_SHARES


def by_pace(before: Shares, number: int, worked: Mapping[int, Worked], world_size: int) -> Shares:
    """The shares after a decision that the workers of a round asked for; as before where not enough is known.

    Args:
        before: those by which they have worked until now.
        worked: by global rank.
    """
    paces = paces_of(before, worked, world_size)
    if paces is None:
        return replace(before, number=number)
    old = weights_of(before, world_size)
    usual = median(pace / weight for pace, weight in zip(paces, old, strict=True))
    new = [
        weight if abs(pace / weight / usual - 1) < max(SAME, _chance(worked[rank])) else pace / usual
        for rank, (weight, pace) in enumerate(zip(old, paces, strict=True))
    ]
    if new == old:
        return replace(before, number=number)
    top = max(new)
    runs = _few_runs([max(weight, LEAST * top) for weight in new])
    return Shares(number=number, runs=runs, source=ShareSource.PACE)


def paces_of(shares: Shares, worked: Mapping[int, Worked], world_size: int) -> list[float] | None:
    """How fast each rank has been, compared with the others, in the unit of the weights; None: not enough is known."""
    if len(worked) < world_size:
        return None
    known = [one for rank in range(world_size) if (one := worked.get(rank)) is not None]
    if len(known) < world_size or any(one.looks < ENOUGH_LOOKS for one in known):
        return None
    return [
        # one more look of either kind: of few, all may have been of one kind by chance
        weight * (one.looks + 2) / (one.share * one.looks + 1)
        for weight, one in zip(weights_of(shares, world_size), known, strict=True)
    ]


def _chance(worked: Worked) -> float:
    """By which share a pace may differ from the true one by chance: twice the standard deviation of so many looks.

    Whoever followed differences that are not there would make equal ranks unequal, the more so the more often they ask.
    """
    busy = worked.share * worked.looks + 1
    waited = (1 - worked.share) * worked.looks + 1
    return CERTAIN * sqrt(waited / (busy * worked.looks))


def _few_runs(weights: Sequence[float]) -> tuple[tuple[int, float], ...]:
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


# -- the command ---------------------------------------------------------------------------------------------


def refresh(work: Work, command: Refresh) -> None:
    """Decide on the shares of the running round, unless that decision was made before: all who ask get the same.

    Raises:
        StaleRound: the round is over.
        NoSuchShares: it is not the next decision, nor one that is still kept.
    """
    group = work.group
    node = require_speaker(group, command.node_id, command.incarnation)
    current = group.active_round
    if current is None or group.state.terminal or not group.in_round(node) or command.round != current.number:
        raise StaleRound(
            f"round {command.round} of group '{group.group_id}' is over for node '{node.node_id}'"
        )
    before = current.newest_shares
    if current.decided(command.number) is not None:
        return
    if command.number != before.number + 1:
        raise NoSuchShares(
            f"node '{node.node_id}' asks for decision {command.number} on the shares of round {current.number}, but "
            f"the last one is {before.number}: all workers have to call shares.refresh() equally often"
        )
    after = by_pace(before, command.number, command.worked, current.world_size)
    work.change(round=replace(current, refreshed=(*current.refreshed, after)[-KEPT:]))
    if after.runs != before.runs:
        work.say(_change(current, before, after))


def _change(current: Round, before: Shares, after: Shares) -> SharesChanged:
    """Whose part of the work has changed."""
    old, new = _parts(current, before), _parts(current, after)
    moved = [member for member in current.members if old[member.node_id] != new[member.node_id]]
    return SharesChanged(
        moved=tuple(
            Moved(
                place=Place(member.node_id, member.rank_offset, member.slots),
                before=old[member.node_id],
                after=new[member.node_id],
            )
            for member in moved[:MOST_TOLD]
        ),
        more=max(0, len(moved) - MOST_TOLD),
    )


def _parts(current: Round, shares: Shares) -> dict[str, float]:
    """How much of the work each member gets, by node id (0 to 1, with three digits)."""
    weights = by_member(current, shares)
    whole = fsum(weight for several in weights.values() for weight in several)
    return {node_id: round(fsum(several) / whole, 3) for node_id, several in weights.items()}
