"""Which nodes form a round, or what is short of one: the answer that everything else reads.

`select` alone compares nodes with the bounds of a group. Forming rounds, timers, the sentence `why` and the reasons
of spares follow from what it answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from hetrdzv.core.health.conduct import set_aside, taken_last
from hetrdzv.core.memo import kept
from hetrdzv.core.model import Group, Node, NodePhase, Round
from hetrdzv.core.order import NO_ROUND, Former, by_gaps, former_round, in_order, may_be_master, natural_key
from hetrdzv.core.spec import GroupSpec, OnJoin
from hetrdzv.protocol.addresses import is_loopback

Pairs = AbstractSet[tuple[str, str]]
"""(node, master) pairs of node ids: the first could not reach the second's port."""

MASTERS_TRIED = 3
"""After this many masters in a row that nobody reached, a group gives up: a firewall keeps all of them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Nodes that can form a round.

    Attributes:
        nodes: who is in it, in no particular order (order.py has that).
        master: the node id that must be master, since not everybody reaches the first in order; None: the first.
        suspects: ready nodes that were cut off and not heard since: nothing forms before that is settled.
        full: whether no further node could be taken.
        smaller: whether the round has fewer nodes than the last one had.
    """

    nodes: tuple[Node, ...]
    master: str | None
    suspects: tuple[Node, ...]
    full: bool
    smaller: bool


class Lack(StrEnum):
    """What a round is short of."""

    NODES = "nodes"
    MASTER = "master"
    ALLOWED_MASTER = "allowed_master"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why no round can form now.

    Attributes:
        lack: what is missing.
        missing: how many nodes more are needed; 0 where it is a master that all reach, or that the settings allow.
        final: whether more nodes would not help: nobody who is missing could serve as master.
        suspects, full, smaller: as `Selection` has them.
    """

    lack: Lack
    missing: int = 0
    final: bool = False
    suspects: tuple[Node, ...] = ()
    full: bool = False
    smaller: bool = False


def select(
    spec: GroupSpec,
    ready: Sequence[Node],
    seats: Sequence[str] = (),
    last: Former = NO_ROUND,
    unreachable: Pairs = frozenset(),
    failed_masters: int = 0,
    taken_last: AbstractSet[str] = frozenset(),
) -> Selection | Shortfall:
    """Choose the nodes of the next round.

    Survivors of the last round come first, then nodes that have a place, then those that best fill its gaps, then
    natural order. One that may be master is always among them. Where no master serves all of those who would be
    taken, the largest part of all that one serves is taken, if it is large enough.

    Args:
        ready: the nodes to choose from.
        seats: places of the past, in rank order.
        last: the last round, or none.
        unreachable: pairs among all nodes of the group.
        failed_masters: how many masters in a row no node could reach.
        taken_last: node ids before which all others are taken.
    """
    found, most = len(ready), spec.max_nodes
    if found < spec.min_nodes:
        return Shortfall(lack=Lack.NODES, missing=spec.min_nodes - found)
    suspects = tuple(node for node in ready if node.cut_at is not None)
    full = most is not None and found >= most
    smaller = found < len(last.slots)
    enough = most is None or found <= most
    if not unreachable and enough and spec.master is None:
        return Selection(nodes=tuple(ready), master=None, suspects=suspects, full=full, smaller=smaller)
    by_id = {node.node_id: node for node in ready}
    allowed = {node.node_id for node in ready if may_be_master(spec, node)}
    if not allowed:
        return Shortfall(lack=Lack.ALLOWED_MASTER, suspects=suspects, full=full, smaller=smaller)
    if failed_masters >= MASTERS_TRIED and not (enough and not unreachable):
        return Shortfall(lack=Lack.MASTER, final=True, suspects=suspects, full=full, smaller=smaller)
    preferred = _by_preference(spec, by_id, seats, last, taken_last)
    chosen = _with_one_of(allowed, preferred, most)
    master: str | None = None
    if unreachable or spec.master is not None:
        ordered, _ = in_order(spec, [by_id[node_id] for node_id in chosen], seats, last)
        masters = [node.node_id for node in ordered if node.node_id in allowed]
        chosen, master = _served(chosen, preferred, masters, allowed, unreachable, most)
        if len(chosen) < spec.min_nodes:
            final = by_id.keys() >= last.slots.keys()
            return Shortfall(lack=Lack.MASTER, final=final, suspects=suspects, full=full, smaller=smaller)
    nodes = tuple(by_id[node_id] for node_id in chosen)
    return Selection(nodes=nodes, master=master, suspects=suspects, full=full, smaller=smaller)


def _by_preference(
    spec: GroupSpec,
    nodes: Mapping[str, Node],
    seats: Sequence[str],
    last: Former,
    taken_last: AbstractSet[str],
) -> list[str]:
    """Whom a round takes first: of those not to be taken last survivors, those with a place, those who fill gaps."""
    seated = frozenset(seats)
    gaps = by_gaps(spec, nodes, seats, last, taken_last)
    none = len(gaps)
    return sorted(
        nodes,
        key=lambda one: (
            one in taken_last,
            one not in last.slots,
            one not in seated,
            gaps.get(one, none),
            natural_key(one),
        ),
    )


def _with_one_of(allowed: AbstractSet[str], preferred: Sequence[str], most: int | None) -> list[str]:
    """The first nodes, but one of those that may be master among them, if need be in place of the last of them."""
    chosen = list(preferred[:most])
    if allowed.isdisjoint(chosen):
        chosen[-1] = next(one for one in preferred if one in allowed)
    return chosen


def _served(
    chosen: Sequence[str],
    preferred: Sequence[str],
    masters: Sequence[str],
    allowed: AbstractSet[str],
    unreachable: Pairs,
    most: int | None,
) -> tuple[list[str], str]:
    """Nodes that can all reach their master, and that master: all who were chosen, or the largest part there is.

    Args:
        masters: those of the chosen nodes that may be master, in order.
        allowed: all that may be master.
    """
    taken = frozenset(chosen)
    shunned = {master for node_id, master in unreachable if node_id in taken}
    master = next((node_id for node_id in masters if node_id not in shunned), None)
    if master is not None:
        return list(chosen), master
    everybody = frozenset(preferred)
    cut_off: dict[str, set[str]] = {}
    for node_id, one in unreachable:
        if node_id in everybody:
            cut_off.setdefault(one, set()).add(node_id)
    limit = len(preferred) if most is None else most
    others = (one for one in preferred if one in allowed and one not in taken)
    # of equals the earlier master
    master = max([*masters, *others], key=lambda one: min(limit, len(preferred) - len(cut_off.get(one, ()))))
    without = cut_off.get(master, set())
    return [master, *(each for each in preferred if each != master and each not in without)][:most], master


# -- the same of a group -------------------------------------------------------------------------------------


@kept
def ready_nodes(group: Group) -> Sequence[Node]:
    """The nodes that are ready for the next round. A suspect counts until it is lost, but is waited for."""
    job, drained, no_command = group.job, group.drained, group.spec.command is None
    return [
        node
        for node in group.nodes.values()
        if node.phase is NodePhase.READY
        and node.job == job
        and node.leaving is None
        and node.rejected is None
        and not node.not_ready
        and not (no_command and node.wants_command)
        and node.node_id not in drained
    ]


@kept
def not_ready_nodes(group: Group) -> Sequence[Node]:
    """The nodes that are here, but have said that they cannot take part in a round."""
    return [
        node
        for node in group.nodes.values()
        if node.not_ready and node.phase is NodePhase.READY and node.job == group.job and node.leaving is None
    ]


@kept
def next_round(group: Group) -> Selection | Shortfall:
    """What `select` answers for the ready nodes of a group that runs no round."""
    return select(
        group.spec,
        _needed(group, ready_nodes(group)),
        group.seats,
        former_round(group),
        group.unreachable,
        group.failed_masters,
        taken_last(group),
    )


def _needed(group: Group, ready: Sequence[Node]) -> Sequence[Node]:
    """The ready nodes without those set aside, as far as the bounds allow that."""
    aside = set_aside(group)
    if not aside:
        return ready
    free = [node for node in ready if node.node_id not in aside]
    others = sorted(
        (node for node in ready if node.node_id in aside),
        key=lambda node: group.conduct[node.node_id].free_at,
    )
    if not any(may_be_master(group.spec, node) for node in free):
        masters = [node for node in others if may_be_master(group.spec, node)][:1]
        free, others = [*free, *masters], [node for node in others if node not in masters]
    return [*free, *others[: max(0, group.spec.min_nodes - len(free))]]


@dataclass(frozen=True)
class Growth:
    """Nodes for whose sake a running round would end (rule 3c).

    Attributes:
        joiners: the ready nodes that a larger round would take in; empty where it would not be larger.
        full: whether that round could take no further node.
    """

    joiners: tuple[Node, ...] = ()
    full: bool = False

    @cached_property
    def node_ids(self) -> AbstractSet[str]:
        """The joiners' node ids."""
        return frozenset(node.node_id for node in self.joiners)

    @cached_property
    def has_suspects(self) -> bool:
        """Whether a joiner was cut off and not heard since."""
        return any(node.cut_at is not None for node in self.joiners)


class Spare(StrEnum):
    """Why a ready node is not in the running round."""

    ON_JOIN = "on_join"
    FULL = "full"
    SUCCEEDED = "succeeded"
    OUT_OF_REACH = "out_of_reach"
    LOOPBACK_MASTER = "loopback_master"
    NOT_LARGER = "not_larger"
    SET_ASIDE = "set_aside"
    TAKEN_LAST = "taken_last"


@kept
def growth(group: Group) -> Growth:
    """Who would be taken in if the running round ended now; nobody where none runs."""
    active = group.active_round
    if active is None or _nobody_joins(group) is not None:
        return Growth()
    local = is_loopback(active.master.address)
    aside = set_aside(group)
    waiting = [
        node
        for node in ready_nodes(group)
        if node.node_id not in aside and is_loopback(node.address) is local
    ]
    if not waiting:
        return Growth()
    members = [group.nodes[member.node_id] for member in active.members]
    last = frozenset(member.node_id for member in active.members)
    answer = select(group.spec, [*members, *waiting], group.seats, former_round(group), group.unreachable)
    if isinstance(answer, Shortfall) or len(answer.nodes) <= len(members):
        return Growth()
    joiners = tuple(node for node in answer.nodes if node.node_id not in last)
    return Growth(joiners, answer.full)


def spare_reason(group: Group, node: Node, active: Round) -> Spare:
    """Why a ready node, which is no joiner, is kept as a spare."""
    if node.node_id in set_aside(group):
        return Spare.SET_ASIDE
    reason = _nobody_joins(group)
    if reason is Spare.FULL and node.node_id in taken_last(group):
        return Spare.TAKEN_LAST
    if reason is not None:
        return reason
    if (node.node_id, active.master.node_id) in group.unreachable:
        return Spare.OUT_OF_REACH
    if is_loopback(active.master.address) and not is_loopback(node.address):
        return Spare.LOOPBACK_MASTER
    return Spare.NOT_LARGER


@kept
def _nobody_joins(group: Group) -> Spare | None:
    """Why nobody at all is taken into a running round, or None."""
    active = group.active_round
    assert active is not None
    if group.spec.on_join is not OnJoin.RESTART:
        return Spare.ON_JOIN
    if group.spec.max_nodes is not None and len(active.members) >= group.spec.max_nodes:
        return Spare.FULL
    if active.finished or any(group.phase_of(one) is NodePhase.SUCCEEDED for one in active.members):
        return Spare.SUCCEEDED
    return None


def out_of_reach(group: Group, active: Round) -> list[Node]:
    """Ready nodes that could not reach the master of a round; most rounds have none."""
    cut_off = {node_id for node_id, master in group.unreachable if master == active.master.node_id}
    return [node for node in ready_nodes(group) if node.node_id in cut_off] if cut_off else []


def stranded(nodes: Iterable[Node]) -> list[Node]:
    """Nodes that offer a loopback address although others are on other hosts: nobody there can reach them."""
    nodes = list(nodes)
    loopback = [node for node in nodes if is_loopback(node.address)]
    return loopback if len(loopback) < len(nodes) else []
