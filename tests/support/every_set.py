"""The best set of nodes, found by trying every set: what the core's selection is held against."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hetrdzv.core.model import FAILED_ROUNDS_UNTIL_LAST_RESORT, Group, Node, Round
from hetrdzv.core.selection.rank_order import find_gap_fillers, may_be_master
from hetrdzv.core.selection.select import Selection, Shortfall, ready_nodes, select_nodes
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key


@dataclass(frozen=True)
class Case:
    """What `select_nodes` is asked."""

    group: Group
    ready: Sequence[Node]

    def answer(self) -> Selection | Shortfall:
        """What it answers."""
        return select_nodes(self.group, self.ready)


def group_of(
    spec: GroupSpec,
    last: Mapping[str, int] = {},
    *,
    nodes: Mapping[str, Node] = {},
    sticky_order: Sequence[str] = (),
    unreachable: Collection[tuple[str, str]] = (),
    used_last: Iterable[str] = (),
) -> Group:
    """A group whose last round had nodes with so many slots, by node id."""
    members = tuple(
        Member(node_id=name, incarnation="", group_rank=rank, rank_offset=0, slots=slots, address="")
        for rank, (name, slots) in enumerate(last.items())
    )
    return Group(
        group_id="g",
        spec=spec,
        nodes=nodes,
        sticky_order=tuple(sticky_order),
        unreachable=frozenset(unreachable),
        failed_rounds=dict.fromkeys(used_last, FAILED_ROUNDS_UNTIL_LAST_RESORT),
        round=Round(number=1, members=members, restart_count=0, formed_at=0.0) if last else None,
    )


def fits(spec: GroupSpec, found: Sequence[Node]) -> bool:
    """Whether a set of nodes keeps all bounds, and has one that may be master."""
    if not any(may_be_master(spec, one) for one in found):
        return False
    world = sum(one.slots for one in found)
    if world % spec.world_size_multiple or not (spec.min_world_size or 1) <= world:
        return False
    if spec.max_world_size is not None and world > spec.max_world_size:
        return False
    return spec.min_nodes <= len(found) and (spec.max_nodes is None or len(found) <= spec.max_nodes)


def best_of_all(case: Case) -> list[str] | None:
    """The best set, in natural order; None where none keeps the bounds.

    The largest world is best; of equals the set that has the first item in the order of preference, then the second.
    """
    spec, last, used_last = case.group.spec, case.group.last_members_by_id, case.group.last_resort_nodes
    units: dict[str, list[Node]] = {}
    for one in sorted(case.ready, key=lambda one: natural_key(one.node_id)):
        value = one.labels.get(spec.unit) if spec.unit is not None else None
        units.setdefault(f"node {one.node_id}" if value is None else f"unit {value}", []).append(one)
    by_id = {one.node_id: one for one in case.ready}
    gaps = {name: number for number, name in enumerate(find_gap_fillers(case.group, by_id).values())}

    def preference(unit: list[Node]) -> tuple[object, ...]:
        names = [one.node_id for one in unit]
        return (
            any(name in used_last for name in names),
            not all(name in last for name in names),
            not all(name in case.group.sticky_order for name in names),
            min(gaps.get(name, len(gaps)) for name in names),
            -sum(one.slots for one in unit) / len(unit),
            natural_key(names[0]),
        )

    items = sorted(units.values(), key=preference)
    best: tuple[int, tuple[bool, ...], list[str]] | None = None
    for left_out in product((False, True), repeat=len(items)):
        found = [one for unit, without in zip(items, left_out, strict=True) if not without for one in unit]
        if not found or not fits(spec, found):
            continue
        key = (-sum(one.slots for one in found), left_out, [one.node_id for one in found])
        if best is None or key < best:
            best = key
    return None if best is None else sorted(best[-1], key=natural_key)


def not_best(old: Group, new: Group) -> str:
    """What is wrong with the round that a step formed, where world sizes are bounded; empty if nothing is."""
    formed = new.round
    if formed is None or new.last_round == old.last_round or formed.number != new.last_round:
        return ""
    if not new.spec.counts_slots or new.spec != old.spec or new.job != old.job:
        return ""
    members = [new.nodes[member.node_id] for member in formed.members]
    ready = [*members, *ready_nodes(new)]
    expected = best_of_all(Case(replace(old, nodes=new.nodes, failed_rounds=new.failed_rounds), ready))
    names = sorted((member.node_id for member in formed.members), key=natural_key)
    if expected == names or (new.unreachable and fits(new.spec, members)):
        return ""
    # of equal worlds another may be taken for the sake of its master
    known = expected if expected is not None and new.spec.master is not None else ()
    if known and sum(new.nodes[name].slots for name in known) == formed.world_size:
        return ""
    return f"round {formed.number} has {names}, but {expected} is best"


def left_behind(group: Group) -> list[str]:
    """The nodes that are ready, but not in the round, though another node of their unit is."""
    label, current = group.spec.unit, group.round
    if label is None or current is None:
        return []
    taken = {group.nodes[member.node_id].labels.get(label) for member in current.members} - {None}
    return [node.node_id for node in ready_nodes(group) if node.labels.get(label) in taken]
