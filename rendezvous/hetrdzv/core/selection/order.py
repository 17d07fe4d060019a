"""The order of the nodes of a round, and their rank offsets.

Ranks are sticky (docs/design.md, rule 4): survivors keep their order, a replacement takes the place of the node it
replaces, a returning node gets its old place back, and new nodes go last in natural order. With another `rank_order`
the nodes of a round are sorted by that, and those that it puts on a par stay sticky.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hetrdzv.core.memo import kept
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key
from hetrdzv.protocol.texts.rank_order import REST, OrderKind, RankOrder, master_rule, rank_order


@dataclass(frozen=True, slots=True)
class Placement:
    """A membership that could become a round.

    Attributes:
        members: in rank order.
        seats: the node ids of all places in rank order, vacant ones included, for the next time.
    """

    members: tuple[Member, ...]
    seats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Former:
    """The last round, as far as its gaps are filled with nodes of their kind.

    Attributes:
        slots: its node ids, with the slots that each had.
        nodes: the nodes of the group, gone ones included, for the labels.
    """

    slots: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)


NO_ROUND = Former()


@dataclass(frozen=True, slots=True)
class Likeness:
    """What the node that fills a gap should have in common with the one that left it.

    Attributes:
        labels: the values of the labels that `rank_order` names, the widest first; if it names none, all labels.
    """

    slots: int
    labels: tuple[object, ...]


def former_round(group: Group) -> Former:
    """The last round of a group, or none."""
    return NO_ROUND if group.round is None else Former(_slots(group.round), group.nodes)


@kept
def _slots(current: Round) -> Mapping[str, int]:
    return {member.node_id: member.slots for member in current.members}


def _likeness(order: RankOrder, slots: int, labels: Mapping[str, str]) -> Likeness:
    if order.kind is OrderKind.TOPOLOGY:
        return Likeness(slots, tuple(labels.get(name) for name in order.labels))
    return Likeness(slots, (frozenset(labels.items()),))


def fill(gaps: Mapping[str, Likeness], newcomers: Mapping[str, Likeness]) -> dict[str, str]:
    """Which newcomer fills which gap, by gap.

    First those with the slots and labels of the node that left it, then with its slots and some of its labels, the
    widest the longest, then with other slots, in the same way. Of equals the first comes first.

    Args:
        gaps: node ids that are no longer there, each with the kind of that node.
        newcomers: node ids in the order in which they are taken, each with its kind.
    """
    fillers: dict[str, str] = {}
    depth = max((len(kind.labels) for kind in newcomers.values()), default=0)
    for slots_count, labels in product((True, False), range(depth, -1, -1)):
        if len(fillers) == min(len(gaps), len(newcomers)):
            break
        free: dict[object, deque[str]] = {}
        taken = set(fillers.values())
        for node_id, kind in newcomers.items():
            if node_id not in taken:
                free.setdefault((slots_count and kind.slots, kind.labels[:labels]), deque()).append(node_id)
        for gap, kind in gaps.items():
            alike = free.get((slots_count and kind.slots, kind.labels[:labels]))
            if gap not in fillers and alike:
                fillers[gap] = alike.popleft()
    return fillers


def by_gaps(
    spec: GroupSpec,
    nodes: Mapping[str, Node],
    seats: Sequence[str],
    last: Former,
    used_last: AbstractSet[str] = frozenset(),
) -> Mapping[str, int]:
    """The nodes that would fill the gaps of the last round, numbered by how well they fit.

    Args:
        nodes: all that could be taken, by node id.
        seats: places of the past, in rank order.
        used_last: node ids that fill no gap that another can fill.
    """
    places = frozenset(seats)
    newcomers = [node_id for node_id in nodes if node_id not in places]
    newcomers.sort(key=lambda node_id: (node_id in used_last, natural_key(node_id)))
    taken = _fill(rank_order(spec.rank_order), nodes, seats, last, newcomers)
    return {node_id: number for number, node_id in enumerate(taken.values())}


def _fill(
    order: RankOrder,
    chosen: Mapping[str, Node],
    seats: Sequence[str],
    last: Former,
    newcomers: Sequence[str],
) -> Mapping[str, str]:
    """Which newcomer fills which gap, by gap, the best fit first."""
    gaps = [node_id for node_id in seats if node_id in last.slots and node_id not in chosen]
    if not (gaps and newcomers):
        return {}
    return fill(
        {gap: _likeness(order, last.slots[gap], _labels(last.nodes.get(gap))) for gap in gaps},
        {node_id: _likeness(order, chosen[node_id].slots, chosen[node_id].labels) for node_id in newcomers},
    )


def _labels(node: Node | None) -> Mapping[str, str]:
    return node.labels if node is not None else {}


def seat(order: RankOrder, chosen: Mapping[str, Node], seats: Sequence[str], last: Former) -> tuple[str, ...]:
    """Give every chosen node a place.

    Args:
        chosen: who is in the next round, by node id.
        seats: places of the past, in rank order.
        last: the last round; newcomers take the places of those of its nodes that are not in the next one.

    Returns:
        the new places, with those of absent nodes kept for their return.
    """
    newcomers = sorted(chosen.keys() - set(seats), key=natural_key)
    taken = _fill(order, chosen, seats, last, newcomers)
    placed = frozenset(taken.values())
    return (
        *(taken.get(node_id, node_id) for node_id in seats),
        *(node_id for node_id in newcomers if node_id not in placed),
    )


def in_order(
    spec: GroupSpec, nodes: Iterable[Node], seats: Sequence[str], last: Former, master: str | None = None
) -> tuple[list[Node], tuple[str, ...]]:
    """The nodes of a round in rank order, and the places for the next time.

    Args:
        seats: places of the past, in rank order.
        master: the node id that must come first; None: the first that may be master.
    """
    order = rank_order(spec.rank_order)
    chosen = {node.node_id: node for node in nodes}
    places = seat(order, chosen, seats, last)
    ordered = [chosen[node_id] for node_id in places if node_id in chosen]
    match order.kind:
        case OrderKind.TOPOLOGY:
            ordered.sort(key=lambda node: _topology_key(order.labels, node, None))
        case OrderKind.SPEED:
            ordered.sort(key=lambda node: -node.weight)
        case OrderKind.LISTED:
            rest = order.places[REST]
            ordered.sort(key=lambda node: order.places.get(node.node_id, rest))
    if master is not None:
        first: Node | None = chosen[master]
    else:
        first = next((node for node in ordered if may_be_master(spec, node)), None)
    if first is None or first is ordered[0]:
        return ordered, places
    if order.kind is OrderKind.TOPOLOGY:
        ordered.sort(key=lambda node: _topology_key(order.labels, node, first))
        return ordered, places
    return [first, *(node for node in ordered if node is not first)], places


def _topology_key(labels: Sequence[str], node: Node, master: Node | None) -> tuple[Any, ...]:
    """Sorts nodes with the same label value side by side: the master's first, nodes without the label last."""
    key: list[Any] = []
    with_master = master is not None
    for name in labels:
        value = node.labels.get(name)
        with_master = with_master and master is not None and master.labels.get(name) == value
        key += [not with_master, value is None, natural_key(value or "")]
    return (*key, master is None or node.node_id != master.node_id, natural_key(node.node_id))


def may_be_master(spec: GroupSpec, node: Node) -> bool:
    """Whether the settings allow a node to be master."""
    return spec.master is None or master_rule(spec.master).allows(node.node_id, node.labels)


def place(
    spec: GroupSpec, nodes: Iterable[Node], seats: Sequence[str], last: Former, master: str | None = None
) -> Placement:
    """Put the nodes of a round in order and give them their ranks; the arguments are those of `in_order`."""
    ordered, places = in_order(spec, nodes, seats, last, master)
    return Placement(_rank(ordered), places)


def _rank(nodes: Sequence[Node]) -> tuple[Member, ...]:
    """Members with offsets: the prefix sums of the slots, overall and per role."""
    role_sizes: dict[str, int] = {}
    for node in nodes:
        role_sizes[node.role] = role_sizes.get(node.role, 0) + node.slots
    members: list[Member] = []
    offset = 0
    role_offsets = dict.fromkeys(role_sizes, 0)
    for group_rank, node in enumerate(nodes):
        members.append(
            Member(
                node_id=node.node_id,
                incarnation=node.incarnation,
                group_rank=group_rank,
                rank_offset=offset,
                slots=node.slots,
                address=node.address,
                port=node.port,
                script_port=node.script_port,
                role=node.role,
                role_offset=role_offsets[node.role],
                role_world_size=role_sizes[node.role],
            )
        )
        offset += node.slots
        role_offsets[node.role] += node.slots
    return tuple(members)
