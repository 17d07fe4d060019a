"""What one node has to do now. Reads a group, decides nothing."""

from functools import partial
from typing import Any, NamedTuple

from hetrdzv.core.explanations import explain_group, explain_node_waiting, explain_round_end
from hetrdzv.core.memo import cache_on_value
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.rounds.timers import is_in_stop_grace_period
from hetrdzv.core.rounds.transitions import can_begin_new_job
from hetrdzv.core.snapshots import start_snapshot
from hetrdzv.core.snapshots.sources import select_sources
from hetrdzv.protocol.directive import Directive, Start, StopNotice
from hetrdzv.protocol.reasons import advice, ends
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, make_reason
from hetrdzv.protocol.rounds import RootCause, TimeSpent, total_time
from hetrdzv.protocol.states import (
    EXIT_CANCELLED,
    EXIT_DRAINED,
    EXIT_FAILED,
    DirectiveKind,
    GroupState,
    NodePhase,
)


def make_stop_notice(group: Group, now: float) -> StopNotice | None:
    """What the members of the newest round are told if it is about to end; None: it is not."""
    notice = group.round.notice if group.round is not None else None
    if notice is None:
        return None
    cause = notice.cause
    return StopNotice(kind=cause.kind, reason=cause.reason, left_s=max(0.0, notice.until - now))


class DirectiveHead(NamedTuple):
    """What a directive says in its first line: all that its version depends on, and no reason.

    Attributes:
        code: what it says in a word.
        round: the round that it is about; 0 for none.
    """

    job: int
    kind: DirectiveKind
    code: str
    round: int = 0

    @property
    def version(self) -> str:
        """Changes with the directive's kind, round or code."""
        return f"{self.job}.{self.kind}.{self.round}.{self.code}"


def make_directive_head(group: Group, node: Node) -> DirectiveHead:
    """What a node of a group has to do now, without the details; costs the same however large the group is."""
    tell = partial(DirectiveHead, node.job)
    if node.rejected is not None:
        return tell(DirectiveKind.EXIT, "rejected")
    if node.job != group.job:
        return tell(DirectiveKind.EXIT, group.previous_outcome or GroupState.FAILED)
    if group.state.is_terminal:
        return tell(DirectiveKind.EXIT, group.state, group.round.number if group.round is not None else 0)
    if node.phase is NodePhase.LEFT:
        if start_snapshot.is_holder_needed(group, node):
            return tell(DirectiveKind.WAIT, "serves")
        return tell(DirectiveKind.EXIT, "left" if start_snapshot.has_nodes_that_stay(group) else "last")
    if is_in_stop_grace_period(group, node):
        news = "notice" if node.takes_notice else "round_formed"
        return tell(DirectiveKind.START, news, node.member_of)
    if node.is_drained or node.node_id in group.drained:
        return tell(DirectiveKind.EXIT, "drained")
    if node.phase is NodePhase.LOST:
        return tell(DirectiveKind.STOP, "lost", node.member_of)
    if group.is_in_newest_round(node) and not node.has_no_workers and group.round is not None:
        if group.round.end is not None:
            return tell(DirectiveKind.STOP, "round_ended", group.round.number)
        news = "daemon" if node.daemon else "stalled" if group.round.reported_stall else "round_formed"
        return tell(DirectiveKind.START, news, group.round.number)
    if not node.has_no_workers:
        return tell(DirectiveKind.STOP, "round_over", node.member_of)
    return tell(DirectiveKind.WAIT, "not_ready" if node.not_ready else "waiting")


def acknowledges_stop(group: Group, node: Node, holds: str | None) -> bool:
    """Whether a poll, which names the version that its agent holds, is the first to show that it knows of the end."""
    has_ended = group.round is not None and group.round.end is not None and group.is_in_newest_round(node)
    return has_ended and node.stop_acked_at is None and holds == make_directive_head(group, node).version


def make_directive(
    group: Group, node: Node, now: float, *, poll_s: float = 0.0, lease_s: float = 0.0
) -> Directive:
    """What a node of a group has to do now, and how it keeps in touch."""
    head = make_directive_head(group, node)
    spec = group.spec
    return Directive(
        kind=head.kind,
        version=head.version,
        job=head.job,
        round=head.round,
        code=head.code,
        clock=now,
        poll_s=poll_s,
        lease_s=lease_s,
        stop_timeout_s=spec.stop_timeout_s,
        max_disconnect_s=spec.max_disconnect_s,
        hang_timeout_s=spec.hang_timeout_s,
        notice_s=spec.notice_s,
        restarts=group.restarts,
        **_make_details(group, node, head, now),
    )


def _make_details(group: Group, node: Node, head: DirectiveHead, now: float) -> dict[str, Any]:
    """The reason for a directive, and what else comes with it."""
    current, node_id = group.round, node.node_id
    match head.code:
        case "rejected" if node.rejected is not None:
            return {"reason": node.rejected, "exit_code": EXIT_FAILED}
        case outcome if isinstance(outcome, GroupState):
            if node.job != group.job:
                earlier = ReasonCode.EARLIER_JOB.reason(outcome=outcome)
                return {"reason": earlier, "outcome": outcome, "exit_code": _exit_code(outcome, None)}
            late = _explain_late_join(group, node)
            return {
                "reason": late or explain_group(group, now),
                "came_late": late is not None or None,
                "stays": not can_begin_new_job(group) or None,
                "outcome": outcome,
                "exit_code": _exit_code(outcome, group.root_cause),
                "root_cause": group.root_cause,
                "time": _sum_job_time(group),
            }
        case "left" | "last" | "serves" | "lost":
            code = ReasonCode.NODE_LOST if head.code == "lost" else ReasonCode.NODE_LEFT
            gone = code.reason(node_id, why=node.departure_reason)
            return {"reason": gone, "exit_code": EXIT_FAILED if head.kind is DirectiveKind.EXIT else None}
        case "drained":
            drained = ends.node_drained(group.group_id, node_id)
            return {"reason": drained, "exit_code": EXIT_DRAINED}
        case "round_ended" if current is not None and current.end is not None:
            return {"reason": explain_round_end(current.number, current.end)}
        case "round_formed" | "daemon" | "stalled" | "notice" if current is not None:
            about = _explain_formed(current) if head.code == "round_formed" else explain_group(group, now)
            if head.code == "daemon":
                program = node.daemon[0].rpartition("/")[2]
                about = ReasonCode.DAEMON_STARTED.reason(current.master.node_id, program=program)
            return {
                "reason": about,
                "start": _make_start(group, current, node),
                "notice": make_stop_notice(group, now) if head.code == "notice" else None,
                "warnings": current.warnings or None,
            }
        case "round_over":
            over = f"round {node.member_of} is over"
            return {"reason": make_reason(ReasonCode.ROUND_ENDED, over, round=node.member_of)}
        case _:
            return {"reason": explain_node_waiting(group, node, now)}


@cache_on_value
def _explain_formed(current: Round) -> Reason:
    return ReasonCode.ROUND_FORMED.reason(round=current.number)


@cache_on_value
def _sum_job_time(group: Group) -> TimeSpent:
    return total_time(record for record in group.records if record.job == group.job)


def _explain_late_join(group: Group, node: Node) -> Reason | None:
    """What a node hears that joined after the end of the job; None for a node that was in it."""
    if group.finished_at is None or node.joined_at < group.finished_at:
        return None
    by = group.cancellation.data["by"] if group.cancellation is not None else None
    return ReasonCode.JOINED_TOO_LATE.reason(group=group.group_id, outcome=group.state, by=by)


def late_joiner_exit_code(group: Group) -> int | None:
    """With which status agents exit that join now: the job is over, and they begin no new one; None: they may join."""
    if not group.state.is_terminal or can_begin_new_job(group):
        return None
    return _exit_code(group.state, group.root_cause)


def _exit_code(outcome: GroupState, root_cause: RootCause | None) -> int:
    match outcome:
        case GroupState.SUCCEEDED:
            return 0
        case GroupState.CANCELLED:
            return EXIT_CANCELLED
        case _:
            failure = root_cause.failure if root_cause is not None else None
            return (failure and failure.exit_code) or EXIT_FAILED


def _make_start(group: Group, current: Round, node: Node) -> Start:
    member, restarted_by = current.members_by_id[node.node_id], current.restarted_by
    return Start(
        group_rank=member.group_rank,
        rank_offset=member.rank_offset,
        slots=member.slots,
        role_offset=member.role_offset,
        role_world_size=member.role_world_size,
        world_size=current.world_size,
        nnodes=len(current.members),
        restart_count=current.restart_count,
        max_restarts=group.spec.max_restarts,
        master=current.master,
        command=group.spec.command if node.wants_command else None,
        members=current.members if node.wants_members else None,
        daemon=node.daemon or None,
        shares=current.shares,
        restarted_by=restarted_by,
        advice=advice.advise_after_exit(restarted_by) if restarted_by is not None else "",
        snapshot=select_sources(current.snapshot, member) if current.snapshot is not None else None,
        origin=group.snapshots.origin if group.snapshots is not None else None,
    )
