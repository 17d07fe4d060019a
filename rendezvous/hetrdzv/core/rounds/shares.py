"""Shares: how much of the work each rank of a round gets, decided with the round and whenever its workers ask.

As a round forms: by the weights that people gave, if anybody gave one; else by the speeds that were measured, if all
nodes have theirs; else all ranks get the same. When workers ask for new shares: by how much of the time each has
worked, and not waited for others. A rank that worked half of the time with its share could have done twice as much.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import fsum
from statistics import median

from hetrdzv.core.commands import Refresh, Worked
from hetrdzv.core.model import EQUAL_SHARES, Member, Node, Round, Shares, ShareSource
from hetrdzv.core.phrasing import ranks
from hetrdzv.core.rounds.transitions import Work, require_speaker
from hetrdzv.protocol.errors import NoSuchShares, StaleRound

KEPT = 2
"""How many decisions of a round are kept beside that of its beginning: a rank may still ask for the last but one."""

SAME = 0.05
"""Speeds that differ by less (as a share) count as the same: no measurement is better, and equal ranks stay equal."""

ENOUGH_LOOKS = 10
"""So often must every worker have been looked at since the last decision for its pace to count."""

LEAST = 0.02
"""The smallest weight that follows from a pace; the largest is 1."""

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
    if any(node.weighed_by_hand for node in nodes):
        by_hand = [node.weight for node in nodes for _ in range(node.slots)]
        return Shares(runs=runs_of(by_hand), source=ShareSource.BY_HAND)
    if all(len(node.speeds) == node.slots for node in nodes):
        speeds = _levelled([speed for node in nodes for speed in node.speeds])
        return Shares(runs=runs_of(_scaled(speeds)), source=ShareSource.MEASURED)
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
        weight if abs(pace / weight / usual - 1) < SAME else pace / usual
        for weight, pace in zip(old, paces, strict=True)
    ]
    if new == old:
        return replace(before, number=number)
    top = max(new)
    runs = runs_of(_scaled([max(weight, LEAST * top) for weight in new]))
    return Shares(number=number, runs=runs, source=ShareSource.PACE)


def paces_of(shares: Shares, worked: Mapping[int, Worked], world_size: int) -> list[float] | None:
    """How fast each rank has been, compared with the others, in the unit of the weights; None: not enough is known."""
    known = [one for rank in range(world_size) if (one := worked.get(rank)) is not None]
    if len(known) < world_size or any(one.looks < ENOUGH_LOOKS for one in known):
        return None
    return [
        # one more look of either kind: of few, all may have been of one kind by chance
        weight * (one.looks + 2) / (one.share * one.looks + 1)
        for weight, one in zip(weights_of(shares, world_size), known, strict=True)
    ]


def _levelled(speeds: Sequence[float]) -> list[float]:
    """Speeds that count as the same made the same."""
    level: dict[float, float] = {}
    rest = sorted(set(speeds), reverse=True)
    while rest:
        alike = frozenset(speed for speed in rest if speed > rest[0] * (1 - SAME))
        level |= dict.fromkeys(alike, median(speed for speed in speeds if speed in alike))
        rest = rest[len(alike) :]
    return [level[speed] for speed in speeds]


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
        work.say("shares_changed", _change(current, before, after))


def _change(current: Round, before: Shares, after: Shares) -> str:
    """What has changed, in a line."""
    old, new = by_member(current, before), by_member(current, after)
    moved = [member for member in current.members if _part(old, member) != _part(new, member)]
    shown = ", ".join(
        f"{member.node_id} ({ranks(member)}) gets {_part(new, member)} instead of {_part(old, member)}"
        for member in moved[:MOST_TOLD]
    )
    more = f" and {len(moved) - MOST_TOLD} more nodes" if len(moved) > MOST_TOLD else ""
    text = f"round {current.number} shares its work anew, by the pace of its workers"
    return f"{text}: {shown}{more}" if moved else text


def _part(weights: Mapping[str, Sequence[float]], member: Member) -> str:
    """How much of the work a member gets: `25.0 %`."""
    whole = fsum(weight for several in weights.values() for weight in several)
    return f"{fsum(weights[member.node_id]) / whole:.1%}"
