"""What can be read off a group: which nodes count, what it waits for and until when. Changes nothing."""

from collections.abc import Iterable, Iterator
from math import inf

from hetrdzv.core.model import End, Group, Member, Node, NodePhase, OnJoin, Round
from hetrdzv.core.placement import Placement, is_loopback, place

SUSPECT_GRACE_S = 1.0
"""How long a node whose poll was cut may take to be heard again (seconds)."""

STOP_GRACE_S = 5.0
"""How long past `stop_timeout_s` a member may take to say that its workers are gone (seconds)."""

DRAINED = "drained"
"""Why a node leaves that a person took out."""


# -- which nodes count ---------------------------------------------------------------------------------------


def candidates(group: Group) -> list[Node]:
    """The nodes that are ready for the next round. A suspect counts until it is lost, but is waited for."""
    job, drained, no_command = group.job, group.drained, group.spec.command is None
    return [
        node
        for node in group.nodes.values()
        if node.phase is NodePhase.READY
        and node.job == job
        and node.leaving is None
        and node.rejected is None
        and not (no_command and node.wants_command)
        and node.node_id not in drained
    ]


def suspects(nodes: Iterable[Node]) -> list[Node]:
    """Those of which an open poll was cut and that were not heard since."""
    return [node for node in nodes if node.cut_at is not None]


def expired(group: Group, now: float) -> list[tuple[Node, str]]:
    """Live nodes to be taken for lost, and why: at the lease a node still lives, past it it does not."""
    lease_s = group.lease_s
    gone = []
    for node in group.nodes.values():
        if node.gone_at is not None:
            continue
        if node.cut_at is not None and now > node.cut_at + SUSPECT_GRACE_S:
            gone.append((node, "its connection was cut"))
        elif now > node.heard_at + lease_s:
            gone.append((node, f"not heard for {lease_s:g} s"))
    return gone


def still_stopping(group: Group) -> bool:
    """Whether live nodes of this job have workers of a round that is over."""
    return any(
        node.gone_at is None and node.job == group.job and not node.stopped for node in group.nodes.values()
    )


# -- where a round stands ------------------------------------------------------------------------------------


def phase_of(group: Group, member: Member) -> NodePhase:
    """How far a member has come; a member whose agent was replaced is lost."""
    node = group.speaker(member)
    return node.phase if node is not None else NodePhase.LOST


def all_succeeded(group: Group, current: Round, ignoring: str | None = None) -> bool:
    """Whether all workers of a round succeeded, those of one node not counted."""
    return all(
        member.node_id == ignoring
        or member.node_id in current.finished
        or phase_of(group, member) is NodePhase.SUCCEEDED
        for member in current.members
    )


def hosts_others(group: Group, current: Round, node: Node) -> bool:
    """Whether the node is the master of workers elsewhere that have not all succeeded."""
    return current.master.node_id == node.node_id and not all_succeeded(group, current, ignoring=node.node_id)


def part_done(group: Group, node: Node) -> bool:
    """Whether a member can go without a loss: its workers succeeded, and it hosts nobody else's (rule 7)."""
    current = group.round
    if current is None or not group.in_round(node) or node.phase is not NodePhase.SUCCEEDED:
        return False
    return not hosts_others(group, current, node)


def unresolved(group: Group, now: float) -> list[Node]:
    """Members of an ended round that may still have workers, or may turn out to be lost."""
    return [node for node in _open(group) if now < overdue_at(group, node)]


def _open(group: Group) -> list[Node]:
    """Members of an ended round that have not stopped, or are suspects."""
    ended = group.round
    if ended is None or ended.end is None:
        return []
    return [
        node
        for member in ended.members
        if (node := group.speaker(member)) is not None
        and not node.gone
        and (node.cut_at is not None or node.acked_round < ended.number)
    ]


def hears_stop(group: Group, node: Node) -> bool:
    """Whether the node, were it heard now, would be told for the first time that its round has ended."""
    ended = group.round
    return ended is not None and ended.end is not None and group.in_round(node) and node.stop_told_at is None


# -- until when it waits -------------------------------------------------------------------------------------


def overdue_at(group: Group, node: Node) -> float:
    """Past when a member of an ended round is not waited for any more (seconds).

    One that was not told to stop yet has no such moment: its workers may run until its lease ends (rule 8).
    """
    if node.stop_told_at is None:
        return inf
    return node.stop_told_at + group.spec.stop_timeout_s + STOP_GRACE_S


def resolved_at(group: Group, end: End) -> float:
    """When all members of an ended round will have stopped, be lost or be overdue, as far as is known (seconds)."""
    told_all = end.at + group.spec.stop_timeout_s + STOP_GRACE_S
    silent = (node.heard_at + group.lease_s for node in _open(group) if node.stop_told_at is None)
    told = (at for node in _open(group) if (at := overdue_at(group, node)) < inf)
    return max([told_all, *silent, *told])


def placed(group: Group, ready: list[Node]) -> Placement:
    """The round that these nodes would form; one without members where no master serves enough of them."""
    last = tuple(member.node_id for member in group.round.members) if group.round is not None else ()
    return place(group.spec, ready, group.seats, last, group.unreachable)


def enough(group: Group, ready: list[Node]) -> bool:
    """Whether the bounds hold. Nodes that no master serves do not count while a member of the last round is missing,
    who might serve them."""
    if len(ready) < group.spec.min_nodes or not group.unreachable or group.round is None:
        return len(ready) >= group.spec.min_nodes
    missing = {member.node_id for member in group.round.members} - {node.node_id for node in ready}
    return not missing or bool(placed(group, ready).members)


def forms_at(group: Group, ready: list[Node]) -> float:
    """When the round forms if nothing else happens (seconds); the bounds hold."""
    since = group.bounds_since or 0.0
    if group.spec.max_nodes is not None and len(ready) >= group.spec.max_nodes:
        return since
    if group.last_call:
        return since + group.spec.last_call_s
    ended = group.round
    if ended is not None and ended.end is not None and len(ready) < len(ended.members):
        return max(since, ended.end.at + group.spec.replace_wait_s)
    return since


def gives_up_at(group: Group) -> float | None:
    """When the group fails for want of nodes, or None while it waits for nobody (seconds)."""
    if group.waiting_since is None or group.bounds_since is not None:
        return None
    return group.waiting_since + group.spec.join_timeout_s


def out_of_reach(group: Group, active: Round) -> list[Node]:
    """Ready nodes that could not reach the master of a round; most rounds have none."""
    cut_off = {node_id for node_id, master in group.unreachable if master == active.master.node_id}
    return [node for node in candidates(group) if node.node_id in cut_off] if cut_off else []


def joiners_of(group: Group, active: Round) -> list[Node]:
    """Nodes for whose sake a running round ends (rule 3c)."""
    if group.spec.on_join is not OnJoin.RESTART or active.finished:
        return []
    if group.spec.max_nodes is not None and len(active.members) >= group.spec.max_nodes:
        return []
    joiners = candidates(group)
    if not joiners or any(phase_of(group, member) is NodePhase.SUCCEEDED for member in active.members):
        return []
    local = is_loopback(active.master.address)
    joiners = [node for node in joiners if is_loopback(node.address) is local]
    return _as_placed(group, active, joiners) if out_of_reach(group, active) else joiners


def _as_placed(group: Group, active: Round, joiners: list[Node]) -> list[Node]:
    """Of joiners of whom some cannot reach the master, those that a larger round takes in, if need be under another."""
    members = [group.nodes[member.node_id] for member in active.members]
    taken = {member.node_id for member in placed(group, [*members, *joiners]).members}
    return [node for node in joiners if node.node_id in taken] if len(taken) > len(members) else []


def admits_at(group: Group, active: Round, joiners: list[Node]) -> float:
    """When a running round ends for its joiners if nothing else happens (seconds)."""
    since = group.joiners_since or 0.0
    full = group.spec.max_nodes is not None and len(active.members) + len(joiners) >= group.spec.max_nodes
    return since if full else since + group.spec.last_call_s


def deadline(group: Group) -> float | None:
    """The moment past which a `Tick` changes the group, or None (seconds on the server's clock).

    Before it nothing happens by itself. A `Tick` at any later moment changes the group.
    """
    return min(_timers(group), default=None)


def _timers(group: Group) -> Iterator[float]:
    lease_s = group.lease_s
    for node in group.nodes.values():
        if node.gone_at is None:
            yield node.heard_at + lease_s
            if node.cut_at is not None:
                yield node.cut_at + SUSPECT_GRACE_S
    if group.state.terminal:
        return
    active = group.active_round
    if active is not None:
        if group.joiners_since is not None and not suspects(joiners := joiners_of(group, active)):
            yield admits_at(group, active, joiners)
        return
    if group.round is not None and group.round.end is not None and not group.round.end.judged:
        judged_at = max((overdue_at(group, node) for node in _open(group)), default=group.round.end.at)
        if judged_at < inf:  # else it is a lease that comes next
            yield judged_at
        return
    if group.bounds_since is not None and not suspects(ready := candidates(group)):
        yield forms_at(group, ready)
    give_up_at = gives_up_at(group)
    if give_up_at is not None:
        yield give_up_at
