"""Shares: how much of the work each rank of a round gets, decided with the round and whenever its workers ask.

A round keeps the decision of its beginning and the last few others; all who ask for one get the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import fsum, inf
from typing import Any

from hetrdzv.core.commands import OfRoom
from hetrdzv.core.model import Group, Member, Node, Round
from hetrdzv.core.rooms.room import Room
from hetrdzv.core.rooms.shares.decisions import Worked, at_forming, by_pace
from hetrdzv.core.rooms.shares.slow_slots import slow_slots, unlike_speeds
from hetrdzv.core.rounds.transitions import Work, require_speaker
from hetrdzv.protocol.errors import StaleRound
from hetrdzv.protocol.facts.warnings import RoundWarning
from hetrdzv.protocol.facts.who import Place
from hetrdzv.protocol.rooms.shares import Moved, NoSuchShares, Shares, SharesChanged

KEPT = 2
"""How many decisions of a round are kept beside that of its beginning: a rank may still ask for the last but one."""

MOST_TOLD = 8
"""How many nodes the event names whose shares have changed."""

MOST_SHOWN = 5
"""How many runs of impossible shares are shown."""


class SharesRoom(Room):
    """Shares in a round: `Round.shares`, and `shares` of a start where they are not equal."""

    said_anew = ("speeds", "measured")

    def forming(self, number: int, nodes: Sequence[Node]) -> Mapping[str, Any]:
        return {"shares": (at_forming(number, nodes),)}

    def starting(self, group: Group, current: Round, member: Member) -> Mapping[str, Any]:
        first = decisions(current)[0]
        return {"shares": first if first.weights else None}

    def warnings(self, nodes: Sequence[Node]) -> Sequence[RoundWarning]:
        return (*slow_slots(nodes), *unlike_speeds(nodes))

    def violations(self, current: Round) -> Iterator[str]:
        numbers = [decision.number for decision in decisions(current)]
        first = numbers[1] if len(numbers) > 1 else 1
        if numbers[0] != 0 or first < 1 or numbers[1:] != list(range(first, first + len(numbers) - 1)):
            yield f"round {current.number} has decisions on shares with the numbers {numbers}"
        for decision in decisions(current):
            where = f"decision {decision.number} on the shares of round {current.number}"
            ranks = sum(count for count, _ in decision.weights)
            if decision.weights and (
                ranks != current.world_size or any(count < 1 for count, _ in decision.weights)
            ):
                yield f"{where} is about {ranks} ranks of {current.world_size}"
            if not all(0 < weight < inf for _, weight in decision.weights):
                yield f"{where} has a weight that is none: {decision.weights[:MOST_SHOWN]}"
            if len(decision.weights) == 1 or any(
                here[1] == after[1] for here, after in pairwise(decision.weights)
            ):
                yield f"{where} is not in its smallest form: {decision.weights[:MOST_SHOWN]}"


def decisions(current: Round) -> tuple[Shares, ...]:
    """The decisions on a round's shares that are kept: that of its beginning, then the last few others."""
    return current.shares or (Shares(round=current.number),)


def decided(current: Round, number: int) -> Shares | None:
    """One of the decisions; None: there is none of that number yet, or no longer."""
    return next((shares for shares in decisions(current) if shares.number == number), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh(OfRoom):
    """The workers of a node ask for a decision on the shares of their round; the first who asks for it brings it about.

    Attributes:
        number: of the decision, counted from 1 in each round.
        worked: what is known of the round's workers by now, by global rank.
    """

    node_id: str
    incarnation: str
    round: int
    number: int
    worked: Mapping[int, Worked] = field(default_factory=dict)

    def apply(self, work: Work) -> None:
        """Decide, unless that decision was made before: all who ask get the same.

        Raises:
            StaleRound: the round is over.
            NoSuchShares: it is not the next decision, nor one that is still kept.
        """
        group = work.group
        node = require_speaker(group, self.node_id, self.incarnation)
        current = group.active_round
        if (
            current is None
            or group.state.terminal
            or not group.in_round(node)
            or self.round != current.number
        ):
            raise StaleRound(
                f"round {self.round} of group '{group.group_id}' is over for node '{node.node_id}'"
            )
        first, *others = decisions(current)
        before = others[-1] if others else first
        if decided(current, self.number) is not None:
            return
        if self.number != before.number + 1:
            raise NoSuchShares(
                f"node '{self.node_id}' asks for decision {self.number} on the shares of round {current.number}, but "
                f"the last one is {before.number}: all workers have to call shares.refresh() equally often"
            )
        after = by_pace(before, self.number, self.worked, current.world_size)
        work.change(round=replace(current, shares=(first, *[*others, after][-KEPT:])))
        if after.weights != before.weights:
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
    weights = shares.of_ranks(current.world_size)
    whole = fsum(weights)
    return {
        member.node_id: round(
            fsum(weights[member.rank_offset : member.rank_offset + member.slots]) / whole, 3
        )
        for member in current.members
    }
