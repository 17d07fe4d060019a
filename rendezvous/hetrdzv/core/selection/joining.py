"""Nodes worth ending a running round for, and why other ready nodes are spares."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from hetrdzv.core.memo import kept, kept_for
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.selection.order import former_round
from hetrdzv.core.selection.ready import READ, ready_nodes
from hetrdzv.core.selection.select import Shortfall, select
from hetrdzv.core.selection.units import broken_units, value_of, whole
from hetrdzv.core.selection.worlds import Worlds
from hetrdzv.protocol.settings import GroupSpec, OnJoin
from hetrdzv.protocol.states import NodePhase
from hetrdzv.protocol.texts.addresses import is_loopback


@dataclass(frozen=True)
class Growth:
    """Nodes worth ending a running round for (rule 3c).

    Attributes:
        joiners: the ready nodes that a larger round would take in; empty where it would not be larger.
        full: whether that round would have no room for another node.
    """

    joiners: tuple[Node, ...] = ()
    full: bool = False

    @cached_property
    def node_ids(self) -> AbstractSet[str]:
        """The joiners' node ids."""
        return frozenset(node.node_id for node in self.joiners)

    @cached_property
    def has_suspects(self) -> bool:
        """Whether a joiner's connection broke and it has not been heard since."""
        return any(node.cut_at is not None for node in self.joiners)


class Spare(StrEnum):
    """Why a ready node is not in the running round."""

    ON_JOIN = "on_join"
    FULL = "full"
    SUCCEEDED = "succeeded"
    OUT_OF_REACH = "out_of_reach"
    LOOPBACK_MASTER = "loopback_master"
    BROKEN_UNIT = "broken_unit"
    WORLD_SIZE = "world_size"
    NOT_LARGER = "not_larger"
    USED_LAST = "used_last"


@kept_for(*READ)
def growth(group: Group) -> Growth:
    """Who would join if the running round ended now; nobody if no round runs."""
    active = group.active_round
    if active is None or _nobody_joins(group) is not None:
        return Growth()
    local = is_loopback(active.master.address)
    waiting = [node for node in ready_nodes(group) if is_loopback(node.address) is local]
    if not waiting:
        return Growth()
    members = [group.nodes[member.node_id] for member in active.members]
    last = frozenset(member.node_id for member in active.members)
    sized = group.spec.sized
    if sized and not _may_grow(group.spec, active, waiting):
        return Growth()
    there = _all_or_none(group, [*members, *waiting])
    answer = select(
        group.spec,
        there,
        group.seats,
        former_round(group),
        group.unreachable,
        used_last=group.used_last,
    )
    if isinstance(answer, Shortfall):
        return Growth()
    if answer.world_size <= active.world_size if sized else len(answer.nodes) <= len(members):
        return Growth()
    joiners = tuple(node for node in answer.nodes if node.node_id not in last)
    return Growth(joiners, answer.full)


@kept
def lost_members(group: Group) -> Sequence[Node]:
    """Lost nodes of the job that its running round would take in if they came back, in the order in which they went.

    Other nodes that have come since stand for as many of them, the first ones.
    """
    if group.active_round is None:
        return ()
    lost = sorted(
        (node for node in group.nodes.values() if _is_missed(group, node)),
        key=lambda node: (node.gone_at or 0.0, node.node_id),
    )
    if not lost:
        return ()
    first_at = lost[0].gone_at or 0.0
    came = sum(1 for node in group.live if node.joined_at > first_at and not node.former)
    if not (missed := lost[came:]):
        return ()
    back = {node.node_id: _as_ready(node) for node in missed}
    joiners = growth(replace(group, nodes={**group.nodes, **back})).node_ids
    return [node for node in missed if node.node_id in joiners]


def _is_missed(group: Group, node: Node) -> bool:
    """Whether a node is lost that has worked for this job, and that nobody meant to go."""
    return (
        node.phase is NodePhase.LOST
        and node.job == group.job
        and node.member_of > 0
        and node.leaving is None
        and node.heir is None
        and node.node_id not in group.drained
    )


def _as_ready(node: Node) -> Node:
    """A node as if its agent had been started again."""
    return replace(
        node, phase=NodePhase.READY, acked_round=node.member_of, gone_at=None, gone_why=None, rejected=None
    )


def _all_or_none(group: Group, nodes: Sequence[Node]) -> Sequence[Node]:
    """The nodes whose units are whole, if all ready nodes of the unit are among them."""
    if group.spec.unit is None:
        return nodes
    there = frozenset(node.node_id for node in nodes)
    left = {value_of(group.spec, node) for node in ready_nodes(group) if node.node_id not in there} - {None}
    return [node for node in whole(group, nodes) if value_of(group.spec, node) not in left]


def _may_grow(spec: GroupSpec, active: Round, waiting: Iterable[Node]) -> bool:
    """Whether there are enough slots for a larger world, on whichever nodes."""
    slots = active.world_size + sum(node.slots for node in waiting)
    return (Worlds.of(spec).up_to(slots) or 0) > active.world_size


def spare_reason(group: Group, node: Node, active: Round) -> Spare:
    """Why a ready node that is not a joiner is kept as a spare."""
    reason = _nobody_joins(group)
    if reason is Spare.FULL and node.node_id in group.used_last:
        return Spare.USED_LAST
    if reason is not None:
        return reason
    if (node.node_id, active.master.node_id) in group.unreachable:
        return Spare.OUT_OF_REACH
    if is_loopback(active.master.address) and not is_loopback(node.address):
        return Spare.LOOPBACK_MASTER
    if value_of(group.spec, node) in broken_units(group):
        return Spare.BROKEN_UNIT
    unit, most = spare_unit(group, node), group.spec.max_nodes
    if not Worlds.of(group.spec).allows(active.world_size + spare_slots(group, node)):
        return Spare.WORLD_SIZE
    return Spare.FULL if most is not None and len(active.members) + len(unit) > most else Spare.NOT_LARGER


def spare_unit(group: Group, node: Node) -> Sequence[Node]:
    """The ready nodes that would join together with a spare, including the spare."""
    value = value_of(group.spec, node)
    return (node,) if value is None else _ready_units(group).get(value, (node,))


def spare_slots(group: Group, node: Node) -> int:
    """How many slots these nodes have in all."""
    value = value_of(group.spec, node)
    return node.slots if value is None else _unit_slots(group).get(value, node.slots)


@kept
def _unit_slots(group: Group) -> Mapping[str, int]:
    return {value: sum(node.slots for node in unit) for value, unit in _ready_units(group).items()}


@kept
def _ready_units(group: Group) -> Mapping[str, Sequence[Node]]:
    """The ready nodes by unit; kept, since many spares ask for theirs."""
    units: dict[str, list[Node]] = {}
    for node in ready_nodes(group):
        value = value_of(group.spec, node)
        if value is not None:
            units.setdefault(value, []).append(node)
    return units


@kept
def _nobody_joins(group: Group) -> Spare | None:
    """Why a running round takes in nobody at all; None: it would."""
    active = group.active_round
    assert active is not None
    if group.spec.on_join is not OnJoin.RESTART:
        return Spare.ON_JOIN
    most = group.spec.max_nodes
    if most is not None and len(active.members) >= most and not group.spec.sized:
        return Spare.FULL
    if active.finished or any(group.phase_of(member) is NodePhase.SUCCEEDED for member in active.members):
        return Spare.SUCCEEDED
    return None
