"""Conclusions from a group's state and the time: rounds are judged and formed, joiners admitted.

A group settles after every command. What it waits for is bounded by `timers.deadline`, the moment past which a
`Tick` changes something.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hetrdzv.core import snapshots
from hetrdzv.core.drift import drift, unordered
from hetrdzv.core.hangs import settle_stall
from hetrdzv.core.model import USED_LAST_AFTER, Cause, End, Group, Node, Round
from hetrdzv.core.rounds.notice import waited_for
from hetrdzv.core.rounds.records import newest_record, with_record
from hetrdzv.core.rounds.restart_backoff import count_failed_round, restart_wait_s
from hetrdzv.core.rounds.timers import admits_at, forms_at, gives_up_at, unresolved
from hetrdzv.core.rounds.transitions import (
    GONE_NODES_KEPT,
    LOSSES,
    Work,
    blame_who_leaves,
    expire,
    fail,
    reject,
    remembered,
    stop,
    stop_kindly,
    succeed,
)
from hetrdzv.core.selection.joining import growth
from hetrdzv.core.selection.order import former_round, place
from hetrdzv.core.selection.ready import next_round, not_ready_nodes, out_of_reach, ready_nodes, stranded
from hetrdzv.core.selection.select import Lack, Selection, Shortfall, select
from hetrdzv.core.shares import weights_of
from hetrdzv.core.why import apart, cut_off, no_world, not_ready, ready_of
from hetrdzv.protocol.failure import Failure, RootCause
from hetrdzv.protocol.reasons import ends, events, waiting
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.settings import GroupSpec, OnJoin
from hetrdzv.protocol.states import EndKind, GroupState, NodePhase
from hetrdzv.protocol.texts.addresses import is_loopback
from hetrdzv.protocol.texts.who import Nodes

MOST_PLACES = 8
"""How many members the event names that a round has formed."""


def settle(work: Work) -> None:
    """Apply everything that follows from the group's state and the time."""
    expire(work)
    if not work.group.state.terminal:
        snapshots.end_parting(work)
    if work.group.state.terminal:
        pass
    elif work.group.active_round is None:
        _judge(work)
        _form(work)
    else:
        _progress(work)
        _stop_kindly(work)
        settle_stall(work)
    if work.group.active_round is not None and not work.group.state.terminal:
        _admit_joiners(work)
    if work.events and len(work.group.nodes) > GONE_NODES_KEPT:
        current = work.group.round
        keep = {member.node_id for member in current.members} if current is not None else set()
        keep |= {node.node_id for node in work.group.nodes.values() if snapshots.is_needed(work.group, node)}
        nodes = remembered(work.group.nodes, keep)
        known = frozenset(pair for pair in work.group.unreachable if nodes.keys() >= set(pair))
        work.change(nodes=nodes, unreachable=known)


# -- a round runs and ends -----------------------------------------------------------------------------------


def _progress(work: Work) -> None:
    """Check whether all members of a running round have started, or succeeded."""
    group, active = work.group, work.group.active_round
    if active is None:
        return
    if group.all_succeeded(active):
        succeed(work, apart(active))
    elif group.state is GroupState.STARTING and not any(
        group.phase_of(member) is NodePhase.STARTING for member in active.members
    ):
        work.change(state=GroupState.RUNNING, round=replace(active, runs_at=work.now))
        work.say(waiting.round_running(active.number, len(active.members), active.world_size))


def _stop_kindly(work: Work) -> None:
    """End a round whose workers were told so, once all are ready for that, or their time is over."""
    group, active = work.group, work.group.active_round
    if active is None or active.notice is None or group.state.terminal:
        return
    late = waited_for(group)
    notice = active.notice
    if late and work.now < notice.until:
        return
    if late:
        work.say(events.notice_expired(late, round(notice.until - notice.at, 3)))
    else:
        work.say(events.ready_to_stop(round(work.now - notice.at, 3)))
    stop(work, notice)


def _judge(work: Work) -> None:
    """Decide what an ended round costs, once every member has stopped, is gone or is overdue (rule 5)."""
    ended = work.group.round
    if ended is None or ended.end is None or ended.end.judged or unresolved(work.group, work.now):
        return
    end = replace(blame_who_leaves(work, ended, ended.end), judged=True, stopped_at=work.now)
    failures = _failures(work.group, ended, end)
    if end.kind is EndKind.FAILED:
        end = replace(end, cause=failures[0].as_cause)
    work.change(round=replace(ended, end=end))
    left = _prospects(work.group)
    # Later, a joiner that lacks a module, or a file server that is away, must not end a job that has worked.
    if ended.first and (hopeless := [failed for failed in failures if failed.failure.permanent]):
        fail(work, hopeless[0].root_cause(ended.number, "permanent"))
        return
    given_up = {failed.node_id for failed in failures if failed.node_id and failed.failure.final} - {
        node.node_id for node in left
    }
    if given_up and isinstance(select(work.group.spec, left), Shortfall):
        _fail_given_up(work, end, failures[0].root_cause(ended.number), given_up)
    elif end.kind is EndKind.FAILED and not (given_up and failures[0].is_start):
        count_failed_round(work, replace(ended, end=end))
        if failures[0].node_id is not None:
            _note_blame(work, ended, failures[0].node_id)
        _charge(work, ended, failures[0])


def _note_blame(work: Work, ended: Round, node_id: str) -> None:
    """Count a failed round against a node, and end the rows of the others that were in it."""
    known = {
        name: times
        for name, times in work.group.failed_rounds.items()
        if name in work.group.nodes and (name == node_id or ended.member(name) is None)
    }
    times = known.get(node_id, 0) + 1
    work.change(failed_rounds={**known, node_id: times})
    if times == USED_LAST_AFTER:
        work.say(events.node_used_last(node_id, times))


class _Failed(NamedTuple):
    """A failure of a round, on a node (None: on none)."""

    node_id: str | None
    failure: Failure
    reason: Reason
    hangs: bool = False

    @property
    def is_start(self) -> bool:
        """Whether the workers of a node could not be started."""
        return self.failure.is_start and not self.hangs

    @property
    def as_cause(self) -> Cause:
        """What ends the round."""
        return Cause(kind=EndKind.FAILED, reason=self.reason, node_id=self.node_id)

    def root_cause(self, number: int, no_restart: str = "", budget: int | None = None) -> RootCause:
        """What ends the job; for `no_restart` see `without_restart`."""
        reason = ends.without_restart(self.reason, no_restart, budget) if no_restart else self.reason
        return RootCause(
            reason=reason,
            round=number,
            node_id=self.node_id,
            failure=self.failure if self.node_id is not None else None,
        )


def _failures(group: Group, ended: Round, end: End) -> list[_Failed]:
    """The failures of an ended round, the earliest first."""
    by_node = dict(end.departed)
    for member in ended.members:
        if (node := group.speaker(member)) is not None and node.failure is not None:
            by_node[node.node_id] = node.failure
    earliest = sorted(by_node.items(), key=lambda item: (item[1].at, item[0]))
    failures = [
        _Failed(node_id, failure, ends.worker_failed(node_id, failure, end.before))
        for node_id, failure in earliest
    ]
    # What is reported after a hang comes of being stopped.
    hang = [_Failed(end.node_id, end.hang, end.cause.reason, hangs=True)] if end.hang is not None else []
    return [*hang, *failures]


def _prospects(group: Group) -> list[Node]:
    """Nodes that are ready for the next round, or may still become so."""
    return [
        node
        for node in group.live
        if node.job == group.job
        and node.leaving is None
        and node.rejected is None
        and node.node_id not in group.drained
        and not group.gave_up(node)
    ]


def _charge(work: Work, ended: Round, first: _Failed) -> None:
    """Charge one restart for a round that ended with a failure, or fail the group."""
    group = work.group
    budget = group.spec.max_restarts
    if first.failure.exit_code in group.spec.no_restart_on:
        fail(work, first.root_cause(ended.number, "no_restart_on"))
        return
    if group.restarts >= budget:
        fail(work, first.root_cause(ended.number, "used_up", budget))
        return
    wait_s = restart_wait_s(group)
    work.change(restarts=group.restarts + 1, rests_until=work.now + wait_s if wait_s else None)
    work.say(events.restart_spent(first.reason, group.restarts + 1, budget))


def _fail_given_up(work: Work, end: End, cause: RootCause, given_up: set[str]) -> None:
    """Fail the group, too few nodes being left; if a node was lost, that is the cause of the failures after it."""
    if end.kind in LOSSES:
        cause = RootCause(reason=end.reason, round=cause.round, node_id=end.node_id)
    fail(work, cause, gave_up=Nodes.of(given_up))


# -- the next round forms ------------------------------------------------------------------------------------


def _form(work: Work) -> None:
    """Form a round if the bounds hold and there is nothing left to wait for (rule 3)."""
    group = work.group
    if group.state.terminal or (group.round is not None and not (group.round.end and group.round.end.judged)):
        return
    ready = ready_nodes(group)
    strangers = stranded(ready)
    for node in strangers:
        reject(work, node)
    if strangers:
        ready = ready_nodes(work.group)
    answer = next_round(work.group)
    _track_waiting(work, ready, answer)
    give_up_at = gives_up_at(work.group)
    if work.group.bounds_since is not None:
        if work.now >= forms_at(work.group, answer) and not answer.suspects:
            _form_or_fail(work, ready, answer)
    elif give_up_at is not None and work.now >= give_up_at:
        _form_or_fail(work, ready, answer)


def _form_or_fail(work: Work, ready: Sequence[Node], answer: Selection | Shortfall) -> None:
    if isinstance(answer, Selection):
        _start_round(work, answer)
        _tell_left_out(work)
    elif answer.lack is Lack.MASTER:
        fail(
            work,
            RootCause(reason=ends.no_node_can_be_master(cut_off(work.group, ready), work.group.spec.master)),
        )
    else:
        fail(work, RootCause(reason=_join_timeout(work.group, ready, answer)))


def _track_waiting(work: Work, ready: Sequence[Node], answer: Selection | Shortfall) -> None:
    """Record since when the group has been waiting with a node, and since when its bounds have held."""
    group, now = work.group, work.now
    bounds_hold = isinstance(answer, Selection) or answer.final
    waits = bool(ready) or bool(not_ready_nodes(group)) or group.still_stopping
    work.change(
        waiting_since=(now if group.waiting_since is None else group.waiting_since) if waits else None,
        bounds_since=(now if group.bounds_since is None else group.bounds_since) if bounds_hold else None,
        last_call=group.last_call or not bounds_hold or not any(group.in_round(node) for node in ready),
    )


def _warnings(spec: GroupSpec, nodes: Sequence[Node]) -> tuple[Reason, ...]:
    return (
        *drift(nodes),
        *unordered(spec, nodes),
    )


def _start_round(work: Work, selection: Selection) -> None:
    group = work.group
    number = group.last_round + 1
    placement = place(group.spec, selection.nodes, group.seats, former_round(group), selection.master)
    nodes = dict(group.nodes)
    for member in placement.members:
        nodes[member.node_id] = replace(
            nodes[member.node_id],
            phase=NodePhase.STARTING,
            member_of=number,
            daemon=(),
            failure=None,
            stop_told_at=None,
        )
    members = [nodes[member.node_id] for member in placement.members]
    former = group.round
    new = Round(
        number=number,
        members=placement.members,
        restart_count=group.restarts,
        formed_at=work.now,
        first=former is None or (former.first and _started_nothing(former)),
        restarted_by=_restarted_by(group, former) if former is not None else None,
        warnings=_warnings(group.spec, selection.nodes),
        weights=weights_of(members),
    )
    first = former is None
    work.change(
        state=GroupState.STARTING,
        spec_fixed=True,  # the round keeps the bounds under which it formed
        last_round=number,
        round=new,
        nodes=nodes,
        seats=tuple(seat for seat in placement.seats if seat in nodes),
        last_call=False,
        rests_until=None,
        waiting_since=None,
        bounds_since=None,
        joiners_since=None,
    )
    event = events.round_formed(
        number,
        new.world_size,
        [(member.node_id, member.ranks) for member in new.members[:MOST_PLACES]],
        more=max(0, len(new.members) - MOST_PLACES),
        cause=former.end.kind if former is not None and former.end is not None else None,
    )
    work.say(event)
    if first and not group.spec.bounded:
        restarts = group.spec.on_join is OnJoin.RESTART
        work.say(events.started_unbounded(len(new.members), restarts=restarts))
    cost = snapshots.begin(work, group)
    if (record := newest_record(group, work.now)) is not None:
        work.change(records=with_record(group, replace(record, cost=cost)))


def _started_nothing(former: Round) -> bool:
    """Whether a round ended before its workers could be started."""
    return former.end is not None and former.end.kind is EndKind.MASTER_UNREACHABLE


def _restarted_by(group: Group, former: Round) -> Reason | None:
    """The failure that a restart was spent on after a round; None: none was."""
    if group.restarts == former.restart_count:
        return None
    end = former.end
    return end.cause.reason if end is not None and end.kind is EndKind.FAILED else None


def _tell_left_out(work: Work) -> None:
    """Say which nodes are left out because they cannot reach the master."""
    active, most = work.group.active_round, work.group.spec.max_nodes
    if active is not None and (most is None or len(active.members) < most):
        for node in out_of_reach(work.group, active):
            work.say(events.node_left_out(node.node_id, active.master.node_id))


def _join_timeout(group: Group, ready: Sequence[Node], answer: Shortfall) -> Reason:
    """What was missing when the time to join was over."""
    lacks_master = answer.lack is Lack.ALLOWED_MASTER
    return ends.join_timeout(
        group.spec.join_timeout_s,
        ready_of(group.spec, ready),
        rule=group.spec.master if lacks_master else None,
        world=None if lacks_master else no_world(group.spec, ready, answer),
        never=answer.never,
        late=not_ready(group),
    )


# -- a running round takes nodes in --------------------------------------------------------------------------


def _admit_joiners(work: Work) -> None:
    """End a running round for nodes that make the world larger, in one batch per last call (rule 3c)."""
    active = work.group.active_round
    if active is None:
        return
    if not is_loopback(active.master.address):
        for node in ready_nodes(work.group):
            if is_loopback(node.address):
                reject(work, node)
    if active.notice is not None:
        return
    larger = growth(work.group)
    if not larger.joiners:
        work.change(joiners_since=None)
        return
    if work.group.joiners_since is None:
        work.change(joiners_since=work.now)
    if work.now >= admits_at(work.group, larger) and not larger.has_suspects:
        who = sorted(node.node_id for node in larger.joiners)
        stop_kindly(work, Cause(kind=EndKind.JOINED, reason=ends.nodes_joined(who), node_id=who[0]))
