"""Invariants of a group: checked before a change of it is committed, when it is loaded, and by the tests."""

from collections.abc import Iterator

from hetrdzv.core.model import Group, Round
from hetrdzv.core.selection.best_set import WorldSizes
from hetrdzv.protocol.states import GroupState, NodePhase


class InvariantError(AssertionError):
    """A group is in an impossible state.

    Attributes:
        wrong: its first violations, in a clause.
    """

    def __init__(self, group_id: str, wrong: str) -> None:
        super().__init__(f"group '{group_id}': {wrong}")
        self.wrong = wrong


def check_invariants(group: Group) -> None:
    """Raise InvariantError if a group violates an invariant."""
    wrong = list(list_violations(group))
    if wrong:
        raise InvariantError(group.group_id, "; ".join(wrong[:5]))


def list_violations(group: Group) -> Iterator[str]:
    """The violations of a group, one sentence each."""
    if group.restarts > group.spec.max_restarts:
        yield f"{group.restarts} restarts were spent of {group.spec.max_restarts}"
    active = group.active_round
    if active is not None and group.backoff_until is not None:
        yield f"round {active.number} runs, but its restart waits until {group.backoff_until}"
    if group.state in (GroupState.STARTING, GroupState.RUNNING) and active is None:
        yield f"the state is {group.state}, but no round is active"
    if group.state is GroupState.WAITING and active is not None:
        yield f"the state is waiting, but round {active.number} is active"
    if group.state is GroupState.FAILED and group.root_cause is None:
        yield "the group failed without a root cause"
    if group.round is not None:
        if not group.round.members:
            yield f"round {group.round.number} has no members"
            return
        yield from _list_round_violations(group, group.round)
        yield from _list_member_violations(group, group.round)
    yield from _list_node_violations(group)


def _list_node_violations(group: Group) -> Iterator[str]:
    for node_id, node in group.nodes.items():
        phase, gone = node.phase, node.is_gone
        if node.node_id != node_id:
            yield f"node '{node.node_id}' is filed under '{node_id}'"
        if node.member_of > group.last_round:
            yield f"{node_id} is a member of round {node.member_of}, but the last round is {group.last_round}"
        if gone != (node.departed_at is not None):
            yield f"{node_id} is {phase}, but departed_at is {node.departed_at}"
        if (
            group.round is not None
            and group.is_in_newest_round(node)
            and node_id not in group.round.members_by_id
        ):
            yield f"{node_id} claims to be a member of the newest round, which does not name it"
        if phase in _PHASES_WITH_WORKERS and node.has_no_workers:
            yield f"{node_id} is {phase}, but has no workers"
        if phase in _PHASES_WITH_WORKERS and node.not_ready:
            yield f"{node_id} is {phase}, but not ready: {node.not_ready}"
        if phase is NodePhase.READY and not node.has_no_workers:
            yield f"{node_id} is ready, but has not stopped its workers of round {node.member_of}"
        if gone and node.disconnected_at is not None:
            yield f"{node_id} is suspect and {phase}"
        if node.incarnation in node.former_incarnations:
            yield f"{node_id} belongs to '{node.incarnation}', which was replaced before"


_PHASES_WITH_WORKERS = frozenset(
    {NodePhase.STARTING, NodePhase.RUNNING, NodePhase.SUCCEEDED, NodePhase.FAILED}
)


def _list_round_violations(group: Group, current: Round) -> Iterator[str]:
    if current.number > group.last_round:
        yield f"round {current.number} is newer than the last round {group.last_round}"
    if not 0 <= current.restart_count <= group.restarts:
        yield f"round {current.number} has restart count {current.restart_count}, the group {group.restarts}"
    if current.end is None and current.restart_count != group.restarts:
        yield f"round {current.number} runs with restart count {current.restart_count}, not {group.restarts}"
    if current.notice is not None:
        if current.end is not None or group.state is not GroupState.RUNNING:
            yield f"round {current.number} is about to end, but the group is {group.state}"
        if current.notice.until <= current.notice.at:
            yield f"round {current.number} is about to end, but its workers have no time for it"
    if current.end is not None and current.stall is not None:
        yield f"round {current.number} has ended, but is said to stall"
    if not current.finished <= current.members_by_id.keys():
        yield f"round {current.number} has finished nodes that are no members: {sorted(current.finished)}"


def _list_member_violations(group: Group, current: Round) -> Iterator[str]:
    """What is wrong with who is in a round, and in which order."""
    offset = 0
    for group_rank, member in enumerate(current.members):
        if member.group_rank != group_rank:
            yield f"{member.node_id} has group rank {member.group_rank} at place {group_rank}"
        if member.rank_offset != offset:
            yield f"{member.node_id} has rank offset {member.rank_offset}, not {offset}"
        offset += member.slots
    names = [member.node_id for member in current.members]
    if len(set(names)) != len(names):
        yield f"round {current.number} names a node twice"
    if group.spec.max_nodes is not None and len(names) > group.spec.max_nodes:
        yield f"round {current.number} has {len(names)} nodes of at most {group.spec.max_nodes}"
    if len(names) < group.spec.min_nodes:
        yield f"round {current.number} has {len(names)} nodes of at least {group.spec.min_nodes}"
    if not (worlds := WorldSizes.of(group.spec)).allows(offset):
        yield f"round {current.number} has world size {offset}, which is none of {worlds}"

    number, runs = current.number, current.end is None and not group.state.is_terminal
    for member in current.members if runs else ():
        node = group.nodes.get(member.node_id)
        if node is None or node.incarnation != member.incarnation or node.is_gone:
            if member.node_id not in current.finished:
                yield f"round {number} runs, but its member {member.node_id} is gone"
        elif node.member_of != number and member.node_id not in current.finished:
            yield f"round {number} runs, but its member {member.node_id} is in round {node.member_of}"
