"""Announced stops: before a round ends that nothing has happened to, its workers may save. Who is waited for, how long.

A joiner, a drain, a restart or a cancellation ends a round, but not at once: its members are told, and it ends as soon
as each has said that its workers are ready to stop, or after `notice_s`. So does a node that has to go and says when
(SIGTERM to its agent, an evicted pod). Whatever else ends a round does so at once.
"""

from collections.abc import Sequence

from hetrdzv.core.memo import cached
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.states import GroupState, NodePhase


def notice_until(group: Group, now: float, gone_at: float | None) -> float | None:
    """When a round ends at the latest whose workers get a notice now; None: they get none, and it ends at once.

    In a round that is still starting there is nothing to save.

    Args:
        now: the server's clock (seconds).
        gone_at: when the node that it ends for has to stop its workers (seconds); None: it ends for another reason.
    """
    if group.state is not GroupState.RUNNING or not waited_for(group):
        return None
    allowed = [now + group.spec.notice_s] if group.spec.notice_s > 0 else []
    until = min([*allowed, *([gone_at] if gone_at is not None else [])], default=now)
    return until if until > now else None


@cached
def waited_for(group: Group) -> Sequence[str]:
    """The members of the running round whose workers are not ready to stop, by node id."""
    active = group.active_round
    if active is None:
        return []
    return [member.node_id for member in active.members if not _is_ready(group, active, member)]


def in_grace_period(group: Group, node: Node) -> bool:
    """Whether a node's workers may keep running although their round is about to end, or the node about to leave."""
    active = group.active_round
    if active is None or active.notice is None or not group.in_round(node) or node.gone or node.stopped:
        return False
    return node.leaving is None or not group.part_done(node)


def _is_ready(group: Group, active: Round, member: Member) -> bool:
    if member.node_id in active.finished:
        return True
    node = group.speaker(member)
    if node is None:
        return False
    return not node.takes_notice or node.phase is NodePhase.SUCCEEDED or node.ready_to_stop == active.number
