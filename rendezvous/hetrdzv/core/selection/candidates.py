"""Which nodes of a group are ready, the round that they would form, and why others are spares."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hetrdzv.core.memo import cached
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.selection.best_set import WorldSizes
from hetrdzv.core.selection.order import round_history
from hetrdzv.core.selection.select import Selection, Shortfall, in_units, select, unit_of
from hetrdzv.protocol.reasons import waiting
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.settings import OnJoin
from hetrdzv.protocol.states import NodePhase
from hetrdzv.protocol.texts.ids import is_loopback


@cached
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


@cached
def not_ready_nodes(group: Group) -> Sequence[Node]:
    """The live nodes whose agents say that they cannot take part in a round."""
    return [
        node
        for node in group.nodes.values()
        if node.not_ready and node.phase is NodePhase.READY and node.job == group.job and node.leaving is None
    ]


def loopback_only_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Nodes that offer a loopback address although other nodes are on other hosts, which cannot reach them."""
    nodes = list(nodes)
    loopback = [node for node in nodes if is_loopback(node.address)]
    return loopback if len(loopback) < len(nodes) else []


@cached
def next_round(group: Group) -> Selection | Shortfall:
    """What `select` answers for the ready nodes of a group that runs no round."""
    return select(group.spec, ready_nodes(group), round_history(group), group.failed_masters)


# -- while a round runs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Growth:
    """Nodes worth ending a running round for (rule 3c).

    Attributes:
        joiners: the ready nodes that a larger round would take in, by node id.
        full: that round would have no room for another node.
    """

    joiners: Mapping[str, Node] = field(default_factory=dict)
    full: bool = False

    @property
    def has_suspects(self) -> bool:
        """Whether a joiner's connection broke and it has not been heard since."""
        return any(node.disconnected_at is not None for node in self.joiners.values())


@cached
def growth(group: Group) -> Growth:
    """Who would join if the running round ended now; nobody if no round runs."""
    active, spec = group.active_round, group.spec
    if active is None or _nobody_joins(group) is not None:
        return Growth()
    local = is_loopback(active.master.address)
    spares = [node for node in ready_nodes(group) if is_loopback(node.address) is local]
    slots = active.world_size + sum(node.slots for node in spares)
    if not spares or (spec.sized and WorldSizes.of(spec).largest_up_to(slots) <= active.world_size):
        return Growth()
    there = [*(group.nodes[member.node_id] for member in active.members), *spares]
    answer = select(spec, there, round_history(group))
    if isinstance(answer, Shortfall):
        return Growth()
    if answer.world_size <= active.world_size if spec.sized else len(answer.nodes) <= len(active.members):
        return Growth()
    joiners = {node.node_id: node for node in answer.nodes if active.member(node.node_id) is None}
    return Growth(joiners, answer.full)


def spare_reason(group: Group, node: Node, active: Round) -> Reason:
    """Why a ready node that is not a joiner is kept as a spare."""
    code, most, node_id = _nobody_joins(group), group.spec.max_nodes, node.node_id
    match code:
        case ReasonCode.MAX_NODES if node_id in group.last_resort_nodes:
            failures = group.failed_rounds[node_id]
            return ReasonCode.NODE_USED_LAST.reason(node_id, group=group.group_id, failures=failures)
        case ReasonCode.MAX_NODES:
            return ReasonCode.MAX_NODES.reason(node_id, max_nodes=most)
        case ReasonCode.ON_JOIN_SPARE | ReasonCode.OTHERS_SUCCEEDED:
            return code.reason(node_id)
    master, worlds = active.master, WorldSizes.of(group.spec)
    loopback = is_loopback(master.address) and not is_loopback(node.address)
    if loopback or (node_id, master.node_id) in group.unreachable:
        return waiting.out_of_reach(node_id, master.node_id, master.address, loopback=loopback)
    unit = _ready_units(group).get(unit_of(group.spec, node), [node])
    size = active.world_size + sum(each.slots for each in unit)
    if not worlds.allows(size):
        return waiting.world_size(node_id, size, group.spec, alone=unit_of(group.spec, node) is None)
    if most is not None and len(active.members) + len(unit) > most:
        return ReasonCode.MAX_NODES.reason(node_id, max_nodes=most)
    return ReasonCode.WORLD_NOT_LARGER.reason(node_id)


@cached
def _ready_units(group: Group) -> Mapping[str | None, Sequence[Node]]:
    """The ready nodes by unit; kept, since many spares ask for theirs."""
    units = in_units(group.spec, ready_nodes(group)) if group.spec.unit is not None else []
    return {value: unit for unit in units if (value := unit_of(group.spec, unit[0])) is not None}


@cached
def _nobody_joins(group: Group) -> ReasonCode | None:
    """Why a running round takes in nobody at all; None: it would."""
    active = group.active_round
    assert active is not None
    if group.spec.on_join is not OnJoin.RESTART:
        return ReasonCode.ON_JOIN_SPARE
    most = group.spec.max_nodes
    if most is not None and len(active.members) >= most and not group.spec.sized:
        return ReasonCode.MAX_NODES
    if active.finished or any(group.phase_of(member) is NodePhase.SUCCEEDED for member in active.members):
        return ReasonCode.OTHERS_SUCCEEDED
    return None
