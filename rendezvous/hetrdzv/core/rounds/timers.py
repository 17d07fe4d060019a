"""How long a group waits: leases, stops, last calls, timeouts."""

from collections.abc import Callable, Sequence
from math import inf

from hetrdzv.core.memo import cache_on_value
from hetrdzv.core.model import Group, Node, Round, RoundEnd, Stall
from hetrdzv.core.selection.select import Selection, Shortfall
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.states import GroupState, NodePhase

SUSPECT_GRACE_S = 1.0
"""How long a node whose poll was cut has to send another request (seconds)."""

STALL_REPORTED_AFTER_S = 15.0
"""How long a wait must last for an event and the state to tell of it (seconds), or `hang_timeout_s` if that is less."""

STOP_TIMEOUT_MARGIN_S = 5.0
"""How long after `stop_timeout_s` a member may take to report that its workers are gone (seconds)."""


FindExpiredLeases = Callable[[Group, float], Sequence[tuple[Node, float]]]
"""Says for a group and a time whose lease or grace has ended, each with the length of its lease (seconds)."""


def no_expired_leases(group: Group, now: float) -> Sequence[tuple[Node, float]]:
    """Leases that never end."""
    return ()


# -- a planned stop ------------------------------------------------------------------------------------------
#
# A joiner, a drain, a restart, a cancellation or a node that says when it has to go ends a round to which nothing has
# happened. So its members are told before, and it ends once all workers are ready to stop, or their time is over.


def stop_notice_deadline(group: Group, now: float, leaves_at: float | None) -> float | None:
    """When a round ends at the latest whose workers get a notice now; None: they get none, and it ends at once.

    `leaves_at`: when the node that it ends for has to stop its workers. A round that starts has nothing to save.
    """
    if group.state is not GroupState.RUNNING or not members_not_ready_to_stop(group):
        return None
    until = min(now + (group.spec.notice_s or inf), inf if leaves_at is None else leaves_at)
    return until if now < until < inf else None


@cache_on_value
def members_not_ready_to_stop(group: Group) -> Sequence[str]:
    """The members of the running round whose workers are not ready to stop, by node id."""
    active = group.active_round
    if active is None:
        return []
    return [member.node_id for member in active.members if not _is_ready_to_stop(group, active, member)]


def is_in_stop_grace_period(group: Group, node: Node) -> bool:
    """Whether a node's workers may keep running although their round is about to end, or the node about to leave."""
    active = group.active_round
    if (
        active is None
        or active.notice is None
        or not group.is_in_newest_round(node)
        or node.is_gone
        or node.has_no_workers
    ):
        return False
    return node.leaving is None or not group.can_leave_without_loss(node)


def _is_ready_to_stop(group: Group, active: Round, member: Member) -> bool:
    if member.node_id in active.finished:
        return True
    node = group.nodes[member.node_id]
    return not node.takes_notice or node.phase is NodePhase.SUCCEEDED or node.ready_to_stop == active.number


# -- an ended round ------------------------------------------------------------------------------------------


@cache_on_value
def members_not_stopped(group: Group) -> list[Node]:
    """Members of the newest round, which has ended, that have not stopped, or are suspects."""
    return [
        node
        for node in group.nodes.values()
        if (node.acked_round < node.member_of or node.disconnected_at is not None)
        and group.is_in_newest_round(node)
        and not node.is_gone
    ]


def member_stop_deadline(group: Group, node: Node) -> float:
    """When to stop waiting for a member of an ended round (seconds).

    Infinite for one that has not been told to stop yet: its workers may run until its lease ends (rule 8).
    """
    if node.stop_acked_at is None:
        return inf
    return node.stop_acked_at + group.spec.stop_timeout_s + STOP_TIMEOUT_MARGIN_S + node.ready_within_s


def round_stop_deadline(group: Group, end: RoundEnd) -> float:
    """When all members of an ended round will have stopped or be overdue (seconds).

    Infinite while one has yet to be told to stop: it may take as long as its lease.
    """
    return max((member_stop_deadline(group, node) for node in members_not_stopped(group)), default=end.at)


# -- the next round ------------------------------------------------------------------------------------------


def round_forms_at(group: Group, answer: Selection | Shortfall) -> float:
    """When the round forms, or the group gives up on it, if nothing else happens (seconds); the bounds hold."""
    since = max(group.bounds_since or 0.0, group.backoff_until or 0.0)
    if isinstance(answer, Selection) and answer.full:
        return since
    if group.last_call:
        return max(since, (group.bounds_since or 0.0) + group.spec.last_call_s)
    ended = group.round
    if isinstance(answer, Selection) and answer.smaller and ended is not None and ended.end is not None:
        return max(since, ended.end.at + group.spec.replace_wait_s)
    return since


def group_wait_deadline(group: Group) -> float | None:
    """When the group fails for want of nodes, or None while it waits for nobody (seconds)."""
    if group.waiting_since is None or group.bounds_since is not None:
        return None
    return group.waiting_since + group.spec.join_timeout_s


def joiners_admitted_at(group: Group, larger: Selection) -> float:
    """When a running round ends for its joiners if nothing else happens (seconds)."""
    since, active = group.joiners_since or 0.0, group.active_round
    at = since if larger.full else since + group.spec.last_call_s
    return at if active is None else max(at, active.formed_at + group.spec.growth_pause_s)


# -- a stall -------------------------------------------------------------------------------------------------


def stall_ends_round_at(group: Group, stall: Stall) -> float | None:
    """When a stall ends its round if it is known to last until then, or None if it never does (seconds)."""
    timeout_s = group.spec.hang_timeout_s
    return None if timeout_s is None else stall.since + timeout_s


def is_stall_ignored(group: Group, active: Round) -> bool:
    """Whether a stall of the running round means nothing now.

    A member that is a suspect may be lost, which would explain it; and workers that have got a notice wait for the end.
    """
    return active.notice is not None or any(
        node.disconnected_at is not None and node.member_of == active.number and not node.is_gone
        for node in group.nodes.values()
    )
