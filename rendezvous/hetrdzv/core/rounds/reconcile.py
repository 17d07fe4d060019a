"""Conclusions from a group's state and the time: rounds are judged and formed, joiners admitted.

A group is reconciled after the commands of a turn. What it waits for is bounded by `next_tick_at`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import inf

from hetrdzv.core.explanations import (
    explain_group_waiting,
    explain_partial_connection,
    find_unreachable_masters,
)
from hetrdzv.core.hangs import escalate_stall
from hetrdzv.core.model import FAILED_ROUNDS_UNTIL_LAST_RESORT, EndCause, Group, Node, Round
from hetrdzv.core.rounds.records import list_records
from hetrdzv.core.rounds.timers import (
    group_wait_deadline,
    joiners_admitted_at,
    members_not_ready_to_stop,
    no_expired_leases,
    round_forms_at,
    round_stop_deadline,
)
from hetrdzv.core.rounds.transitions import (
    MAX_GONE_NODES,
    MEMBER_LOSS_KINDS,
    StepContext,
    blame_leaving_node,
    end_round,
    end_round_with_grace,
    expire_leases,
    fail_job,
    finish_job,
    prune_gone_nodes,
    reject_node,
)
from hetrdzv.core.selection.rank_order import assign_ranks
from hetrdzv.core.selection.select import (
    Selection,
    Shortfall,
    ShortfallKind,
    find_joiners,
    find_larger_round,
    not_ready_nodes,
    ready_nodes,
    select_next_round,
    select_nodes,
)
from hetrdzv.core.snapshots import start_snapshot
from hetrdzv.core.version_drift import describe_missing_labels, find_version_differences
from hetrdzv.protocol.directive import Weights
from hetrdzv.protocol.reasons import ends, events, waiting
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.rounds import RootCause
from hetrdzv.protocol.settings import SETTINGS
from hetrdzv.protocol.states import EndKind, GroupState, NodePhase
from hetrdzv.protocol.texts.ids import is_loopback
from hetrdzv.protocol.texts.node_rank_lists import NodeList

MAX_MEMBERS_IN_EVENT = 8
"""How many members the event names that a round has formed."""

LONG_ROUND_S = 60.0
"""A round that ran this long has probably made progress (seconds)."""


def reconcile_group(context: StepContext) -> None:
    """Apply everything that follows from the group's state and the time."""
    expire_leases(context)
    context.merge_nodes()
    if not context.group.state.is_terminal:
        start_snapshot.forget_expired_holders(context)
        if context.group.active_round is None:
            _decide_round_cost(context)
            _form_round(context)
        else:
            _update_round_state(context)
            _end_round_after_notice(context)
            escalate_stall(context)
    if context.group.running_round is not None:
        _admit_joiners(context)
    if sum(node.departed_at is not None for node in context.group.nodes.values()) > MAX_GONE_NODES:
        current = context.group.round
        keep = {member.node_id for member in current.members} if current is not None else set()
        keep |= {
            node.node_id
            for node in context.group.nodes.values()
            if start_snapshot.is_holder_needed(context.group, node)
        }
        nodes = prune_gone_nodes(context.group.nodes, keep)
        known = frozenset(pair for pair in context.group.unreachable if nodes.keys() >= set(pair))
        context.update_group(nodes=nodes, unreachable=known)
    context.merge_nodes()


def next_tick_at(group: Group, now: float) -> float | None:
    """When the next `Tick` is due though no lease ends, or None (seconds on the server's clock).

    A `Tick` before this moment changes nothing; one at it, or later, changes the group.
    """
    context = StepContext(group, now, no_expired_leases)
    reconcile_group(context)
    if context.group is not group:
        return now
    return context.deadline if context.deadline < inf else None


# -- a round runs and ends -----------------------------------------------------------------------------------


def _update_round_state(context: StepContext) -> None:
    """Check whether all members of the active round have started, or succeeded."""
    group, active = context.group, context.group.active_round
    assert active is not None
    if group.all_workers_succeeded(active):
        finish_job(context, GroupState.SUCCEEDED, events.group_succeeded(explain_partial_connection(active)))
    elif group.state is GroupState.STARTING and not any(
        group.member_phase(member) is NodePhase.STARTING for member in active.members
    ):
        context.update_group(state=GroupState.RUNNING, round=replace(active, runs_at=context.now))
        context.add_event(waiting.round_running(active.number, len(active.members), active.world_size))


def _end_round_after_notice(context: StepContext) -> None:
    """End a round whose workers got a notice, once all are ready for that, or their time is over."""
    active = context.group.running_round
    if active is None or (notice := active.notice) is None:
        return
    late = members_not_ready_to_stop(context.group)
    if late and not context.is_due(notice.until):
        return
    if late:
        context.add_event(
            ReasonCode.NOTICE_EXPIRED.reason(*late, notice_s=round(notice.until - notice.at, 3))
        )
    else:
        context.add_event(ReasonCode.READY_TO_STOP.reason(took_s=round(context.now - notice.at, 3)))
    end_round(context, notice.cause)


def _decide_round_cost(context: StepContext) -> None:
    """Decide what an ended round costs, once every member has stopped, is gone or is overdue (rule 5)."""
    ended = context.group.round
    if ended is None or ended.end is None or ended.end.is_cost_decided:
        return
    if not context.is_due(round_stop_deadline(context.group, ended.end)):
        return
    end = replace(blame_leaving_node(context, ended, ended.end), stopped_at=context.now)
    failures = _list_failures(context.group, replace(ended, end=end))
    has_failed = end.cause.kind is EndKind.FAILED
    if has_failed:
        first = failures[0]
        end = replace(end, cause=replace(end.cause, reason=first.reason, node_id=first.node_id))
    ended = replace(ended, end=end)
    context.update_group(round=ended)
    group = context.group
    left = [
        node
        for node in group.live_nodes
        if group.may_join_rounds(node) and not group.has_failed_permanently(node)
    ]
    # Later, a joiner that lacks a module, or a file server that is away, must not end a job that has worked.
    if ended.first and (hopeless := [one for one in failures if one.failure and one.failure.permanent]):
        _fail_without_restart(context, hopeless[0], "permanent")
        return
    gave_up = {one.node_id for one in failures if one.node_id and one.failure and one.failure.final}
    gave_up -= {node.node_id for node in left}
    anywhere = replace(group, unreachable=frozenset())
    if gave_up and isinstance(select_nodes(anywhere, left), Shortfall):
        cause = failures[0]
        if end.cause.kind in MEMBER_LOSS_KINDS:  # the failures came of that
            cause = RootCause(reason=end.cause.reason, round=ended.number, node_id=end.cause.node_id)
        fail_job(context, cause, gave_up=NodeList.of(gave_up))
    elif has_failed and gave_up and failures[0].failure and failures[0].failure.is_start_failure:
        _count_failed_round(context, ended, failures[0].node_id or "")  # it may come again and again
    elif has_failed:
        _spend_restart(context, ended, failures[0])


def _list_failures(group: Group, ended: Round) -> list[RootCause]:
    """The failures of an ended round, the earliest first."""
    end, number = ended.end, ended.number
    assert end is not None
    by_node = dict(end.departed)
    for member in ended.members:
        if (node := group.node_of_member(member)) is not None and node.failure is not None:
            by_node[node.node_id] = node.failure
    failures = [
        RootCause(
            reason=ends.worker_failed(name, failure, end.before), round=number, node_id=name, failure=failure
        )
        for name, failure in sorted(by_node.items(), key=lambda item: (item[1].at, item[0]))
    ]
    if end.hang is None:
        return failures
    # What is reported after a hang comes of being stopped.
    failure = end.hang if end.cause.node_id is not None else None
    hang = RootCause(reason=end.cause.reason, round=number, node_id=end.cause.node_id, failure=failure)
    return [hang, *failures]


def _spend_restart(context: StepContext, ended: Round, first: RootCause) -> None:
    """Charge one restart for a round that ended with a failure, or fail the group."""
    group, end = context.group, ended.end
    lasted = end is not None and end.at - ended.formed_at >= LONG_ROUND_S
    quick = 1 if lasted else group.quick + 1
    if first.node_id is not None:
        _count_failed_round(context, ended, first.node_id)
    budget = group.spec.max_restarts
    if first.failure is not None and first.failure.exit_code in group.spec.no_restart_on:
        _fail_without_restart(context, first, "no_restart_on")
    elif group.restarts >= budget:
        _fail_without_restart(context, first, "used_up", budget)
    else:
        # The first restart does not wait, those in quick succession 1 s, 2 s, 4 s ...
        wait_s = min(group.spec.restart_wait_s, 2.0 ** min(quick - 2, 30)) if quick > 1 else 0.0
        backoff_until = context.now + wait_s if wait_s else None
        context.update_group(quick=quick, restarts=group.restarts + 1, backoff_until=backoff_until)
        context.add_event(events.restart_spent(first.reason, group.restarts + 1, budget))


def _fail_without_restart(context: StepContext, cause: RootCause, why: str, budget: int = 0) -> None:
    fail_job(context, replace(cause, reason=ends.failure_without_restart(cause.reason, why, budget)))


def _count_failed_round(context: StepContext, ended: Round, node_id: str) -> None:
    """Count a failed round against a node, and end the rows of the others that were in it."""
    known = {
        name: times
        for name, times in context.group.failed_rounds.items()
        if name in context.group.nodes and (name == node_id or name not in ended.members_by_id)
    }
    times = known.get(node_id, 0) + 1
    context.update_group(failed_rounds={**known, node_id: times})
    if times == FAILED_ROUNDS_UNTIL_LAST_RESORT:
        context.add_event(
            ReasonCode.NODE_USED_LAST.reason(node_id, group=context.group.group_id, failures=times)
        )


# -- the next round forms ------------------------------------------------------------------------------------


def _form_round(context: StepContext) -> None:
    """Form a round if the bounds hold and there is nothing left to wait for (rule 3)."""
    group = context.group
    if group.state.is_terminal or (
        group.round is not None and not (group.round.end and group.round.end.is_cost_decided)
    ):
        return
    _reject_unreachable(context, [node.address for node in ready_nodes(group)])
    ready, answer = ready_nodes(context.group), select_next_round(context.group)
    _record_waiting_times(context, ready, answer)
    if context.group.bounds_since is not None:
        if answer.suspects or not context.is_due(round_forms_at(context.group, answer)):
            return
    elif (give_up_at := group_wait_deadline(context.group)) is None or not context.is_due(give_up_at):
        return
    if isinstance(answer, Selection):
        _start_round(context, answer)
    elif answer.kind is ShortfallKind.MASTER:
        why = waiting.no_reachable_master(
            find_unreachable_masters(context.group, ready), context.group.spec.master
        )
        fail_job(context, RootCause(reason=why))
    else:
        why = explain_group_waiting(context.group)
        never = answer.never and why.code in (ReasonCode.TOO_FEW_NODES, ReasonCode.TOO_FEW_SLOTS)
        code = ReasonCode.IMPOSSIBLE_WORLD if never else ReasonCode.JOIN_TIMEOUT
        timeout_s = context.group.spec.join_timeout_s
        fail_job(context, RootCause(reason=code.reason(nodes=why.who, why=why, timeout_s=timeout_s)))


def _record_waiting_times(context: StepContext, ready: Sequence[Node], answer: Selection | Shortfall) -> None:
    """Record since when the group has been waiting with a node, and since when its bounds have held."""
    group, now = context.group, context.now
    bounds_hold = isinstance(answer, Selection) or answer.final
    waits = bool(ready or not_ready_nodes(group)) or any(
        node.job == group.job and not node.has_no_workers for node in group.live_nodes
    )
    context.update_group(
        waiting_since=(now if group.waiting_since is None else group.waiting_since) if waits else None,
        bounds_since=(now if group.bounds_since is None else group.bounds_since) if bounds_hold else None,
        last_call=group.last_call
        or not bounds_hold
        or not any(group.is_in_newest_round(node) for node in ready),
    )


def _start_round(context: StepContext, selection: Selection) -> None:
    group, former, number = context.group, context.group.round, context.group.last_round + 1
    end = former.end if former is not None else None
    placed, sticky_order = assign_ranks(group, selection.nodes, selection.master)
    members = [
        replace(
            group.nodes[member.node_id],
            phase=NodePhase.STARTING,
            member_of=number,
            daemon=(),
            failure=None,
            stop_acked_at=None,
        )
        for member in placed
    ]
    nodes = {**group.nodes, **{node.node_id: node for node in members}}
    never_started = end is not None and end.cause.kind is EndKind.MASTER_UNREACHABLE
    restarted = former is not None and group.restarts != former.restart_count
    new = Round(
        number=number,
        members=placed,
        restart_count=group.restarts,
        formed_at=context.now,
        first=former is None or (former.first and never_started),
        restarted_by=end.cause.reason if restarted and end and end.cause.kind is EndKind.FAILED else None,
        warnings=(
            *find_version_differences(selection.nodes),
            *describe_missing_labels(group.spec, selection.nodes),
        ),
        weights=_collect_weights(members),
    )
    context.update_group(
        state=GroupState.STARTING,
        fixed_settings=frozenset(SETTINGS),  # the round keeps the bounds under which it formed
        last_round=number,
        round=new,
        nodes=nodes,
        sticky_order=tuple(node_id for node_id in sticky_order if node_id in nodes),
        last_call=False,
        backoff_until=None,
        waiting_since=None,
        bounds_since=None,
        joiners_since=None,
    )
    places = [(member.node_id, member.ranks) for member in new.members[:MAX_MEMBERS_IN_EVENT]]
    more, after = len(new.members) - len(places), end.cause.kind if end is not None else None
    context.add_event(events.round_formed(number, new.world_size, places, more, after))
    if former is None and not group.spec.has_bounds:
        context.add_event(ReasonCode.STARTED_UNBOUNDED.reason())
    context.update_group(
        records=list_records(group, context.now, cost=start_snapshot.choose_start_snapshot(context, group))
    )


def _collect_weights(members: Sequence[Node]) -> Weights:
    """The weights of a round, its members in rank order; empty: nobody gave one."""
    if not any(node.weight is not None for node in members):
        return ()
    runs = groupby(members, key=lambda node: node.effective_weight)
    return tuple((sum(node.slots for node in run), weight) for weight, run in runs)


def _reject_unreachable(context: StepContext, addresses: Sequence[str]) -> None:
    """Reject nodes with a loopback address where any of these is none: no other host can reach them."""
    if not all(map(is_loopback, addresses)):
        for node in ready_nodes(context.group):
            if is_loopback(node.address):
                reject_node(context, node)


# -- a running round takes nodes in --------------------------------------------------------------------------


def _admit_joiners(context: StepContext) -> None:
    """End a running round for nodes that make the world larger, in one batch per last call (rule 3c)."""
    active = context.group.active_round
    assert active is not None
    _reject_unreachable(context, [active.master.address])
    if active.notice is not None:
        return
    larger, who = find_larger_round(context.group), sorted(find_joiners(context.group))
    if larger is None:
        context.update_group(joiners_since=None)
        return
    if context.group.joiners_since is None:
        context.update_group(joiners_since=context.now)
    if not larger.suspects and context.is_due(joiners_admitted_at(context.group, larger)):
        why = ReasonCode.NODES_JOINED.reason(*who)
        end_round_with_grace(context, EndCause(kind=EndKind.JOINED, reason=why, node_id=who[0]))
