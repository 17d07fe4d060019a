"""The state machine: `step` says what is next for a group and what happened (the rules: docs/design.md).

A `Tick` reconciles the group (reconcile.py): it follows the commands of a turn, and is due when `next_tick_at` says.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hetrdzv.core import commands
from hetrdzv.core.directive import acknowledges_stop
from hetrdzv.core.explanations import explain_partial_connection
from hetrdzv.core.group_settings import adopt_settings, require_same_script
from hetrdzv.core.hangs import record_stall
from hetrdzv.core.model import OFFER_FIELDS, EndCause, Group, Node, Round
from hetrdzv.core.rounds.reconcile import reconcile_group
from hetrdzv.core.rounds.timers import FindExpiredLeases, is_in_stop_grace_period
from hetrdzv.core.rounds.transitions import (
    StepContext,
    begin_job,
    can_begin_new_job,
    cancel_job,
    end_round,
    end_round_with_grace,
    expire_leases,
    fail_job,
    make_stale_round_error,
    record_contact,
    record_node_leaving,
    remove_from_round,
    remove_node,
    require_current_agent,
)
from hetrdzv.core.snapshots import start_snapshot
from hetrdzv.protocol.errors import NodeIdInUse, NotFound, Refused, StaleIncarnation
from hetrdzv.protocol.progress import ProgressTimes
from hetrdzv.protocol.reasons import ends, events
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.rounds import EarlierSuccesses, RootCause, WorkerFailure
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.snapshots import UseSnapshotRequest
from hetrdzv.protocol.states import EndKind, GroupState, NodePhase, ReportKind
from hetrdzv.protocol.texts.node_rank_lists import NodeList

MAX_FORMER_INCARNATIONS = 8
"""How many past incarnations of a node id are remembered, so that none of them is accepted again."""


REFRESHED_ON_REJOIN = ("labels", "weight", "snapshots")
"""What a node says of itself each time that it is ready, and what then counts for the next round."""


@dataclass(frozen=True)
class Transition:
    """What a step made of a group, and the events that explain it."""

    group: Group
    events: tuple[Reason, ...] = ()


def new_group(group_id: str, now: float) -> Group:
    """A group that nothing has happened to yet."""
    return Group(group_id=group_id, spec=GroupSpec(), fixed_settings=frozenset(), created_at=now)


def step(group: Group, command: commands.Command, now: float, lapsed: FindExpiredLeases) -> Transition:
    """Apply one command to a group.

    Args:
        now: the server's clock (seconds this store has been served).
        lapsed: says whose lease has ended.

    Raises:
        Refused: the command is not allowed (its subclass says why); the group is unchanged.
    """
    context = StepContext(group, now, lapsed)
    _COMMAND_HANDLERS[type(command)](context, command)
    return Transition(context.group, tuple(context.events))


def _create_group(context: StepContext, command: commands.PutSpec) -> None:
    if can_begin_new_job(context.group):
        begin_job(context)
    known = context.group.by_put
    adopt_settings(context, command.spec, final=True)
    context.update_group(by_put=True)
    if not known:
        context.add_event(ReasonCode.GROUP_CREATED.reason(group=context.group.group_id))


def _add_node(context: StepContext, command: commands.Join) -> None:
    group = context.group
    node = group.nodes.get(command.node_id)
    if node is not None and node.incarnation == command.incarnation:
        _rejoin_node(context, node, command)
        return
    former_incarnations = _take_over_node_id(context, node, command.incarnation) if node is not None else ()
    if can_begin_new_job(group) and command.node_id not in group.drained:
        begin_job(context)
    if not context.group.state.is_terminal and command.node_id not in group.drained:
        # else it is told to exit
        require_same_script(context, command)
        adopt_settings(context, command.spec, final=not command.wants_command, node_id=command.node_id)
    group = context.group
    context.update_group(
        last_round=max(group.last_round, command.after_round),
        unreachable=frozenset(pair for pair in group.unreachable if command.node_id not in pair),
        failed_masters=0,  # this one may serve
    )
    context.group = context.group.with_node(
        Node(
            node_id=command.node_id,
            incarnation=command.incarnation,
            **{name: getattr(command, name) for name in OFFER_FIELDS},
            job=group.job,
            joined_at=context.now,
            acked_round=command.after_round,
            former_incarnations=former_incarnations,
        )
    )
    context.add_event(events.node_joined(command.node_id, command.slots, command.address, command.not_ready))


def _take_over_node_id(context: StepContext, node: Node, incarnation: str) -> tuple[str, ...]:
    """Let another agent take over a node id if the present one is cut off, expired or gone (rule 6).

    Returns the earlier incarnations of the node.
    """
    if incarnation in node.former_incarnations:
        raise StaleIncarnation(
            f"node '{node.node_id}' of group '{context.group.group_id}' was taken over by another agent at "
            f"{node.address}: this agent must stop its workers; to run both, give it another --node-id"
        )
    expire_leases(context)
    node = context.group.nodes[node.node_id]
    if not node.is_gone:
        if node.disconnected_at is None:
            raise NodeIdInUse(
                f"node id '{node.node_id}' of group '{context.group.group_id}' belongs to an agent at "
                f"{node.address} that is alive: start this agent with another --node-id, or wait until "
                f"the other has exited"
            )
        remove_node(context, node, NodePhase.LOST, ReasonCode.AGENT_REPLACED.reason())
    return (*node.former_incarnations, node.incarnation)[-MAX_FORMER_INCARNATIONS:]


def _rejoin_node(context: StepContext, node: Node, command: commands.Join) -> None:
    """A known incarnation joins: it acknowledges `stop`, returns, is ready or no longer, or repeats itself."""
    if (node.phase is NodePhase.LEFT or _is_agent_dead(node)) and node.rejected is None:
        raise StaleIncarnation(f"node '{node.node_id}' has left the group; to rejoin, restart its agent")
    node = record_contact(context, node)
    group = context.group
    if node.rejected is not None or node.job != group.job or group.state.is_terminal:
        return
    if command.after_round < node.member_of:
        return  # sent before its round formed: a retry that changes nothing
    returns = node.phase is NodePhase.LOST
    refreshed = {name: getattr(command, name) for name in REFRESHED_ON_REJOIN}
    if node.phase is NodePhase.READY and command.after_round <= node.acked_round:
        if any(getattr(node, name) != value for name, value in refreshed.items()):
            node = context.update_node(node, **refreshed)
        _record_readiness(context, node, command.not_ready)
        return
    if group.active_round is not None and not returns:
        why = ReasonCode.WORKERS_STOPPED.reason(node.node_id, quote=command.stopped or "would have gone on")
        cause = EndCause(kind=EndKind.LEFT, reason=why, node_id=node.node_id)
        remove_from_round(context, node, cause, done=group.can_leave_without_loss(node))
    context.update_group(last_round=max(group.last_round, command.after_round))
    node = context.update_node(
        node,
        phase=NodePhase.READY,
        acked_round=max(node.acked_round, command.after_round),
        address=command.address,
        port=command.port,
        script_port=command.script_port,
        **refreshed,
        daemon=(),
        departed_at=None,
        departure_reason=None,
    )
    if returns:
        context.add_event(ReasonCode.NODE_RETURNED.reason(node.node_id))
    _record_readiness(context, node, command.not_ready)


def _record_readiness(context: StepContext, node: Node, why: str) -> None:
    """Keep why a node takes part in no round, or that it can again; reasons that follow each other are one event."""
    if why == node.not_ready:
        return
    context.update_node(node, not_ready=why)
    if not why:
        context.add_event(ReasonCode.NODE_READY.reason(node.node_id))
    elif not node.not_ready:
        context.add_event(ReasonCode.NODE_NOT_READY.reason(node.node_id, quote=why))


def _renew_lease(context: StepContext, command: commands.RenewLease) -> None:
    node = require_current_agent(context.group, command.node_id, command.incarnation)
    knows = acknowledges_stop(context.group, node, command.holds)
    node = record_contact(context, node)
    if knows:
        context.update_node(node, stop_acked_at=context.now)


def _mark_suspect(context: StepContext, command: commands.Disconnect) -> None:
    node = context.group.nodes.get(command.node_id)
    known = node is not None and node.incarnation == command.incarnation
    if node is not None and known and not node.is_gone and node.disconnected_at is None:
        context.update_node(node, disconnected_at=context.now)


def _apply_leave(context: StepContext, command: commands.Leave) -> None:
    node = require_current_agent(context.group, command.node_id, command.incarnation)
    if command.died and not _is_agent_dead(node):
        remove_node(context, node, NodePhase.LOST, ReasonCode.AGENT_DIED.reason())
    elif node.phase is not NodePhase.LEFT and not command.died:
        _remove_departed_node(context, node, command.why)
    start_snapshot.forget_expired_holders(context, node)


def _remove_departed_node(context: StepContext, node: Node, why: str) -> None:
    leaving = None if why else node.leaving
    quote = why or "its agent left"
    remove_node(context, node, NodePhase.LEFT, leaving or ReasonCode.AGENT_LEFT.reason(quote=quote))


def _is_agent_dead(node: Node) -> bool:
    return node.departure_reason is not None and node.departure_reason.code == ReasonCode.AGENT_DIED


def _apply_report(context: StepContext, command: commands.Report) -> None:
    node = record_contact(context, require_current_agent(context.group, command.node_id, command.incarnation))
    group = context.group
    if command.kind is ReportKind.LEAVING:
        leaves_at = None if command.grace_s is None else context.now - command.age_s + command.grace_s
        why = ReasonCode.AGENT_LEFT.reason(quote=command.message or "its agent is leaving")
        record_node_leaving(context, node, why, leaves_at)
        return
    if command.kind is ReportKind.PARTING:
        start_snapshot.record_serving_time(context, node, command)
        if not node.is_gone:
            _remove_departed_node(context, context.group.nodes[node.node_id], command.message)
        return
    current = group.round
    if current is None or _is_stale_report(group, current, node, command):
        raise make_stale_round_error(group, command.round, node.node_id)
    if command.kind in (ReportKind.STARTED, ReportKind.SUCCEEDED) and command.met is not None:
        _record_connected_workers(context, node, current, command.met)
    if command.kind in (ReportKind.STARTED, ReportKind.SUCCEEDED, ReportKind.FAILED):
        _record_progress_times(context, current, command.moved, command.age_s)
    match command.kind:
        case ReportKind.STARTED:
            if node.phase is NodePhase.STARTING:
                context.update_node(node, phase=NodePhase.RUNNING)
            if node.node_id != current.master.node_id:
                context.update_group(failed_masters=0)
        case ReportKind.SUCCEEDED:
            if node.phase in (NodePhase.STARTING, NodePhase.RUNNING):
                context.update_node(node, phase=NodePhase.SUCCEEDED)
                context.add_event(ReasonCode.NODE_SUCCEEDED.reason(node.node_id))
            latest = context.group.round
            strangers = explain_partial_connection(latest) if latest is not None else None
            if command.must_meet and strangers is not None:
                fail_job(context, RootCause(reason=strangers, round=current.number))
        case ReportKind.READY_TO_STOP:
            if current.notice is not None:
                context.update_node(node, ready_to_stop=current.number)
        case ReportKind.FAILED:
            _record_failure(context, node, current, command)
        case ReportKind.ENDED:
            _record_earlier_successes(context, current, command)
        case ReportKind.MASTER_UNREACHABLE:
            master = current.master.node_id
            # Only a member that has reached the master starts its workers.
            unreached = current.end is None and all(
                group.member_phase(member) in (NodePhase.STARTING, NodePhase.LOST, NodePhase.LEFT)
                for member in current.members[1:]
            )
            context.update_group(
                unreachable=group.unreachable | {(node.node_id, master)},
                failed_masters=group.failed_masters + unreached,
            )
            why = ReasonCode.MASTER_UNREACHABLE.reason(node.node_id, master=master, quote=command.message)
            end_round(context, EndCause(kind=EndKind.MASTER_UNREACHABLE, reason=why, node_id=node.node_id))


def _is_stale_report(group: Group, current: Round, node: Node, command: commands.Report) -> bool:
    """Whether what a node reports on a round changes nothing any more."""
    if (
        group.state.is_terminal
        or node.is_gone
        or not group.is_in_newest_round(node)
        or command.round != current.number
    ):
        return True
    end = current.end
    if end is None:
        return False
    match command.kind:
        case ReportKind.STARTED | ReportKind.SUCCEEDED:
            return True
        case ReportKind.MASTER_UNREACHABLE if end.cause.kind is not EndKind.MASTER_UNREACHABLE:
            return True  # the master's store closes when its agent is told to stop: that is no fault of the network
        case ReportKind.MASTER_UNREACHABLE if group.node_of_member(current.master) is None:
            return True  # it is late, and about another agent on that node
    return end.is_cost_decided


def _record_training(context: StepContext, command: commands.RecordTraining) -> None:
    active = context.group.running_round
    if active is not None and active.number == command.round and active.trains_at is None:
        trains_at = min(context.now, max(active.formed_at, command.at))
        context.update_group(round=replace(active, trains_at=trains_at))
        context.add_event(ReasonCode.TRAINING_BEGAN.reason(round=command.round))


def _record_progress_times(
    context: StepContext, current: Round, moved: ProgressTimes | None, age_s: float
) -> None:
    """A member has said of its workers when they moved, really `age_s` seconds ago; None: nobody can tell."""
    at = context.now - age_s
    if moved is not None and moved.began_s is not None:
        _record_training(context, commands.RecordTraining(current.number, at - moved.began_s))
    active = context.group.active_round
    if active is not None and moved is None:
        context.update_group(round=replace(active, unseen=True))
    elif active is not None and moved is not None and moved.idle_s is not None:
        context.update_group(round=replace(active, moved_at=max(active.moved_at or 0.0, at - moved.idle_s)))


def _record_connected_workers(context: StepContext, node: Node, current: Round, met: int) -> None:
    if node.node_id != current.master.node_id or met == current.met:
        return
    current = replace(current, met=met)
    context.update_group(round=current)
    if (strangers := explain_partial_connection(current)) is not None:
        context.add_event(strangers)


def _find_earlier_successes(
    group: Group, current: Round, ended: EarlierSuccesses | None
) -> EarlierSuccesses | None:
    """Whose workers had ended well when the first one of a round failed."""
    done = [
        EarlierSuccesses(node_id=member.node_id, rank=member.rank_offset, others=member.slots - 1)
        for member in current.members
        if member.node_id in current.finished or group.member_phase(member) is NodePhase.SUCCEEDED
    ]
    known = [*done, ended] if ended is not None else done
    if not known:
        return None
    return replace(known[0], others=sum(1 + each.others for each in known) - 1, before_s=0.0)


def _record_earlier_successes(context: StepContext, current: Round, command: commands.Report) -> None:
    """A node tells of workers that had ended well, after a worker of another one has failed."""
    end, ended = current.end, command.ended
    if ended is None or end is None or end.cause.kind is not EndKind.FAILED or end.before is not None:
        return  # that somebody had is known
    ended_at = context.now - command.age_s - ended.before_s
    nodes = (context.group.node_of_member(member) for member in current.members)
    failed_at = min(
        (node.failure.at for node in nodes if node is not None and node.failure is not None), default=end.at
    )
    if ended_at <= failed_at:
        context.update_group(round=replace(current, end=replace(end, before=replace(ended, before_s=0.0))))


def _record_failure(context: StepContext, node: Node, current: Round, command: commands.Report) -> None:
    if node.failure is not None or not (current.end is not None or node.phase in _WORKING_PHASES):
        return  # idempotent by (incarnation, round, kind)
    failure = command.failure or WorkerFailure(local_rank=-1, rank=-1, message=command.message)
    failure = replace(failure, at=context.now - command.age_s)
    phase = NodePhase.FAILED if node.phase in _WORKING_PHASES else node.phase
    node = context.update_node(node, phase=phase, failure=failure)
    before = _find_earlier_successes(context.group, current, command.ended) if current.end is None else None
    why = ends.worker_failed(node.node_id, failure, before)
    _record_earlier_successes(context, current, command)
    context.add_event(why)
    raised_at = failure.at - failure.raised_s
    # A node's clock may have been set meanwhile.
    since = min(max(raised_at, current.formed_at), failure.at)
    cause = EndCause(kind=EndKind.FAILED, reason=why, node_id=node.node_id)
    end_round(context, cause, before=before, since=since)


def _start_daemon(context: StepContext, command: commands.StartDaemon) -> None:
    """Keep the daemon that the master has a member run until that member has stopped it with the round."""
    master = record_contact(
        context, require_current_agent(context.group, command.master, command.incarnation)
    )
    group, name, number = context.group, context.group.group_id, command.round
    current = group.running_round
    if current is None or not group.is_in_newest_round(master) or number != current.number:
        raise make_stale_round_error(group, number, master.node_id)
    if current.master.node_id != master.node_id:
        raise Refused(
            f"node '{master.node_id}' is not the master of round {number} of group '{name}', which is "
            f"'{current.master.node_id}': only the master may have another node run a daemon"
        )
    member = current.members_by_id.get(command.node_id)
    node = group.node_of_member(member) if member is not None else None
    if node is None or node.is_gone or node.node_id == master.node_id:
        raise NotFound(f"'{command.node_id}' is not another member of round {number} of group '{name}'")
    if node.has_no_workers:
        raise make_stale_round_error(group, number, node.node_id)
    if not node.wants_daemon:
        raise Refused(
            f"the agent of node '{node.node_id}' runs nothing for the master '{master.node_id}', since it was "
            f"started with another --launch: start hetagent with the same --launch on every node of group '{name}'"
        )
    if node.daemon == command.words:
        return  # idempotent: the reply was lost
    if node.daemon:
        raise Refused(
            f"node '{node.node_id}' already runs another daemon in round {number}: a node runs one per round"
        )
    context.update_node(node, daemon=command.words)
    if not any(other.daemon for other in group.nodes.values()):  # a large group needs no such event of each
        program = command.words[0].rpartition("/")[2]
        context.add_event(ReasonCode.DAEMON_STARTED.reason(master.node_id, program=program))


_WORKING_PHASES = (NodePhase.STARTING, NodePhase.RUNNING, NodePhase.SUCCEEDED)


def _drain_node(context: StepContext, command: commands.Drain) -> None:
    group = context.group
    if (node := group.nodes.get(command.node_id)) is None:
        raise NotFound(
            f"group '{group.group_id}' has no node '{command.node_id}'; its nodes: {NodeList.of(group.nodes)}"
        )
    if command.node_id in group.drained:
        return
    context.update_group(drained=group.drained | {command.node_id})
    context.add_event(ends.node_drained(group.group_id, command.node_id))
    if not (node.is_gone or group.state.is_terminal):
        record_node_leaving(context, node, ReasonCode.NODE_DRAINED.reason())


def _undrain_node(context: StepContext, command: commands.Undrain) -> None:
    group = context.group
    if command.node_id not in group.drained | group.last_resort_nodes:
        if command.node_id not in group.nodes:
            raise NotFound(f"group '{group.group_id}' has no node '{command.node_id}', drained or not")
        return
    failed_rounds = {name: times for name, times in group.failed_rounds.items() if name != command.node_id}
    context.update_group(drained=group.drained - {command.node_id}, failed_rounds=failed_rounds)
    node = group.nodes.get(command.node_id)
    if node is not None and node.is_drained and is_in_stop_grace_period(group, node):
        context.update_node(node, leaving=None)  # its agent has not been told to exit
    context.add_event(ReasonCode.NODE_UNDRAINED.reason(command.node_id))


def _restart_job(context: StepContext, _: commands.Restart) -> None:
    group = context.group
    if group.state.is_terminal:
        begin_job(context, group.spec)
    elif group.active_round is None:
        raise Refused(f"group '{group.group_id}' has no running round to restart: it is waiting for nodes")
    elif group.active_round.is_cancelled:
        raise Refused(f"group '{group.group_id}' is about to be cancelled: restart it once that is done")
    elif group.active_round.notice is not None:
        end_round(context, group.active_round.notice.cause)  # it will not wait any longer
    else:
        why = ReasonCode.RESTART_REQUESTED.reason()
        end_round_with_grace(context, EndCause(kind=EndKind.RESTARTED, reason=why))


def _cancel_job(context: StepContext, command: commands.Cancel) -> None:
    group = context.group
    if group.state is GroupState.CANCELLED:
        return
    if group.state.is_terminal:
        raise Refused(f"group '{group.group_id}' is over ({group.state}): there is nothing to cancel")
    active = group.active_round
    if active is not None and active.is_cancelled:  # it will not wait any longer
        cancel_job(context)
    else:
        why = ReasonCode.GROUP_CANCELLED.reason(by=command.by)
        context.update_group(cancellation=why)
        end_round_with_grace(context, EndCause(kind=EndKind.CANCELLED, reason=why))


_COMMAND_HANDLERS: dict[type, Callable[[StepContext, Any], None]] = {
    commands.Join: _add_node,
    commands.Disconnect: _mark_suspect,
    commands.Report: _apply_report,
    commands.RecordStall: record_stall,
    commands.RecordTraining: _record_training,
    commands.DeclareSnapshots: start_snapshot.record_snapshot_inventory,
    UseSnapshotRequest: start_snapshot.record_wanted_snapshot,
    commands.StartDaemon: _start_daemon,
    commands.Leave: _apply_leave,
    commands.Drain: _drain_node,
    commands.Undrain: _undrain_node,
    commands.Restart: _restart_job,
    commands.Cancel: _cancel_job,
    commands.PutSpec: _create_group,
    commands.RenewLease: _renew_lease,
    commands.Tick: lambda context, command: reconcile_group(context),
}
"""What each command does."""
