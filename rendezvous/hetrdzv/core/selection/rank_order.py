"""The order of the nodes of a round, and their rank offsets.

Ranks are sticky (docs/design.md, rule 4): survivors keep their order, a replacement takes the place of the node it
replaces, a returning node gets its old place back, and new nodes go last in natural order. With `topology:` the nodes
of a round are sorted by labels.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hetrdzv.core.model import Group, Node
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.settings import GroupSpec, allows_master, parse_rank_order
from hetrdzv.protocol.texts.ids import natural_key

ReplacementKey = tuple[int, object]
"""What the node that fills a gap should have in common with the one that left it: its slots, and the values of the
labels that `rank_order` names; if it names none, all labels."""


def _make_replacement_key(spec: GroupSpec, slots: int, node: Node | None) -> ReplacementKey:
    known = node.labels if node is not None else {}
    names = parse_rank_order(spec.rank_order)
    return slots, tuple(map(known.get, names)) if names else frozenset(known.items())


def match_replacements(
    gaps: Mapping[str, ReplacementKey], newcomers: Mapping[str, ReplacementKey]
) -> dict[str, str]:
    """Which newcomer fills which gap, by gap: the best fit first, and of equals the first that came.

    That is one with the slots and labels of the node that left the gap, else with its slots, else with its labels.
    """
    fillers: dict[str, str] = {}
    for start, end in ((0, 2), (0, 1), (1, 2), (2, 2)):
        free: dict[tuple[object, ...], deque[str]] = {}
        taken = set(fillers.values())
        for node_id, kind in newcomers.items():
            if node_id not in taken:
                free.setdefault(kind[start:end], deque()).append(node_id)
        for gap, kind in gaps.items():
            if gap not in fillers and (alike := free.get(kind[start:end])):
                fillers[gap] = alike.popleft()
    return fillers


def find_gap_fillers(group: Group, nodes: Mapping[str, Node]) -> Mapping[str, str]:
    """Which of these nodes fills which gap of the last round, by gap, the best fit first.

    Those that are used last fill no gap that another can fill.
    """
    spec, last, used_last = group.spec, group.last_members_by_id, group.last_resort_nodes
    gaps = [node_id for node_id in group.sticky_order if node_id in last and node_id not in nodes]
    newcomers = nodes.keys() - set(group.sticky_order) if gaps else set[str]()
    in_order = sorted(newcomers, key=lambda node_id: (node_id in used_last, natural_key(node_id)))
    return match_replacements(
        {gap: _make_replacement_key(spec, last[gap].slots, group.nodes.get(gap)) for gap in gaps},
        {node_id: _make_replacement_key(spec, nodes[node_id].slots, nodes[node_id]) for node_id in in_order},
    )


def order_nodes(
    group: Group, nodes: Iterable[Node], master: str | None = None
) -> tuple[list[Node], tuple[str, ...]]:
    """The nodes of a round in rank order, and the places for the next time, those of absent nodes included.

    Newcomers take the places of nodes of the last round that are not in the next one. `master` comes first if given,
    else the first that may be master.
    """
    labels = parse_rank_order(group.spec.rank_order)
    chosen = {node.node_id: node for node in nodes}
    taken = find_gap_fillers(group, chosen)
    others = chosen.keys() - {*group.sticky_order, *taken.values()}
    places = (
        *(taken.get(node_id, node_id) for node_id in group.sticky_order),
        *sorted(others, key=natural_key),
    )
    ordered = [chosen[node_id] for node_id in places if node_id in chosen]
    if labels:
        ordered.sort(key=lambda node: _rank_order_key(labels, node, None))
    allowed = (node for node in ordered if may_be_master(group.spec, node))
    first = chosen[master] if master is not None else next(allowed, None)
    if first is not None and first is not ordered[0]:
        ordered.sort(key=lambda node: _rank_order_key(labels, node, first))
    return ordered, places


def _rank_order_key(labels: Sequence[str], node: Node, master: Node | None) -> tuple[Any, ...]:
    """Sorts nodes with the same label value side by side: the master's first, nodes without the label last."""
    key: list[Any] = []
    with_master = master is not None
    for name in labels:
        value = node.labels.get(name)
        with_master = with_master and master is not None and master.labels.get(name) == value
        key += [not with_master, value is None, natural_key(value or "")]
    return (*key, node is not master, natural_key(node.node_id) if labels else ())


def may_be_master(spec: GroupSpec, node: Node) -> bool:
    """Whether the settings allow a node to be master."""
    return spec.master is None or allows_master(spec.master, node.node_id, node.labels)


def assign_ranks(
    group: Group, nodes: Iterable[Node], master: str | None = None
) -> tuple[tuple[Member, ...], tuple[str, ...]]:
    """The members of a round in order (`order_nodes`) with their ranks, overall and per role; and the next places."""
    ordered, places = order_nodes(group, nodes, master)
    role_sizes: Counter[str] = Counter()
    for node in ordered:
        role_sizes[node.role] += node.slots
    members: list[Member] = []
    offset = 0
    role_offsets: Counter[str] = Counter()
    for group_rank, node in enumerate(ordered):
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
    return tuple(members), places
