"""Conclusions from a group's state and the time: rounds are judged and formed, joiners admitted.

A group settles after every command. What it waits for is bounded by `timers.deadline`, the moment past which a
`Tick` changes something.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hetrdzv.core.health.conduct import STRIKES, with_blame, without_past
from hetrdzv.core.health.crashes import count_failed_round, is_crash_loop, restart_wait_s
from hetrdzv.core.health.drift import drift, unordered
from hetrdzv.core.health.hangs import settle_stall
from hetrdzv.core.health.slow_slots import slow_slots, unlike_speeds
from hetrdzv.core.model import End, Failure, Group, Node, RootCause, Round
from hetrdzv.core.phrasing import count, describe_failure, names, ranks, spent_of, with_last_line
from hetrdzv.core.rounds.notice import ends_at, waited_for
from hetrdzv.core.rounds.shares import at_forming
from hetrdzv.core.rounds.timers import admits_at, forms_at, gives_up_at, unresolved
from hetrdzv.core.rounds.transitions import (
    GONE_NODES_KEPT,
    LOSSES,
    Work,
    blame_who_leaves,
    expire,
    finish,
    reject,
    remembered,
    stop,
    stop_kindly,
)
from hetrdzv.core.selection.joining import growth
from hetrdzv.core.selection.order import former_round, place
from hetrdzv.core.selection.ready import next_round, not_ready_nodes, out_of_reach, ready_nodes, stranded
from hetrdzv.core.selection.select import Lack, Selection, Shortfall, select
from hetrdzv.core.selection.units import broken_units_of
from hetrdzv.core.why import apart, no_master, no_world, nodes, not_ready, ready_of
from hetrdzv.protocol.addresses import is_loopback
from hetrdzv.protocol.settings import GroupSpec, OnJoin
from hetrdzv.protocol.states import EndKind, GroupState, NodePhase
from hetrdzv.protocol.warnings import RoundWarning
from hetrdzv.words import why as words


def settle(work: Work) -> None:
    """Apply everything that follows from the group's state and the time."""
    expire(work)
    if not work.group.state.terminal:
        work.change(conduct=without_past(work.group.conduct, work.now))
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
        strangers = apart(active)
        but = f", but {words.never_met(strangers)}" if strangers is not None else ""
        finish(work, GroupState.SUCCEEDED, f"the job succeeded in round {active.number}{but}")
    elif group.state is GroupState.STARTING and not any(
        group.phase_of(member) is NodePhase.STARTING for member in active.members
    ):
        work.change(state=GroupState.RUNNING)
        nodes = count(len(active.members), "node")
        work.say("round_running", f"round {active.number} runs on {nodes}, world size {active.world_size}")


def _stop_kindly(work: Work) -> None:
    """End a round whose workers were told so, once all are ready for that, or their time is over."""
    group, active = work.group, work.group.active_round
    if active is None or active.notice is None or group.state.terminal:
        return
    late = waited_for(group)
    if late and work.now < ends_at(group, active.notice):
        return
    if late:
        were = f"{names(late)} {'was' if len(late) == 1 else 'were'}"
        work.say("notice_expired", f"{were} not ready to stop within {group.spec.notice_s:g} s")
    else:
        text = f"all nodes are ready to stop, {work.now - active.notice.at:.1f} s after they were told"
        work.say("ready_to_stop", text)
    stop(work, active.notice)


def _judge(work: Work) -> None:
    """Decide what an ended round costs, once every member has stopped, is gone or is overdue (rule 5)."""
    ended = work.group.round
    if ended is None or ended.end is None or ended.end.judged or unresolved(work.group, work.now):
        return
    end = replace(blame_who_leaves(work, ended, ended.end), judged=True, stopped_at=work.now)
    failures = _failures(work.group, ended, end)
    if end.kind is EndKind.FAILED:
        end = replace(end, node_id=failures[0].node_id, why=failures[0].line)
    work.change(round=replace(ended, end=end))
    left = _prospects(work.group)
    # Later, a joiner that lacks a module, or a file server that is away, must not end a job that has worked.
    if ended.first and (hopeless := [failed for failed in failures if failed.failure.permanent]):
        _finish_hopeless(work, ended, hopeless[0], "it would end the same way")
        return
    given_up = {failed.node_id for failed in failures if failed.node_id and failed.failure.final} - {
        node.node_id for node in left
    }
    if given_up and isinstance(select(work.group.spec, left), Shortfall):
        _finish_given_up(work, end, failures[0].cause(ended.number), given_up, left)
    elif end.kind is EndKind.FAILED:
        count_failed_round(work, replace(ended, end=end), [failed.failure for failed in failures])
        if failures[0].node_id is not None:
            _note_blame(work, ended, failures[0].node_id)
        _charge(work, ended, failures[0])


def _note_blame(work: Work, ended: Round, node_id: str) -> None:
    """Count a failure against its node; one that had the last few in a row is taken last from now on."""
    work.change(conduct=with_blame(work.group.conduct, ended, node_id, work.now))
    times = work.group.conduct[node_id].blamed
    if times == STRIKES:
        text = f"the last {times} failures were of workers on {node_id}: other nodes are taken before it"
        work.say("node_set_aside", text, node_id)


class _Failed(NamedTuple):
    """A failure of a round, on a node (None: on none)."""

    node_id: str | None
    failure: Failure

    @property
    def text(self) -> str:
        return describe_failure(self.node_id, self.failure)

    @property
    def line(self) -> str:
        return with_last_line(self.text, self.failure)

    def cause(self, number: int) -> RootCause:
        return RootCause(
            kind="hang" if self.failure.hang else "worker_failed",
            message=self.text,
            round=number,
            node_id=self.node_id,
            failure=self.failure if self.node_id is not None else None,
        )


def _failures(group: Group, ended: Round, end: End) -> list[_Failed]:
    """The failures of an ended round, the earliest first."""
    found = dict(end.departed)
    for member in ended.members:
        if (node := group.speaker(member)) is not None and node.failure is not None:
            found[node.node_id] = node.failure
    earliest = sorted(found.items(), key=lambda item: (item[1].at, item[0]))
    failures = [_Failed(node_id, failure) for node_id, failure in earliest]
    # What is reported after a hang comes of being stopped.
    return failures if end.hang is None else [_Failed(end.node_id, end.hang), *failures]


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
        _finish_hopeless(work, ended, first, f"no_restart_on has exit code {first.failure.exit_code}")
        return
    if is_crash_loop(group):
        text = f"crash loop: {count(group.fruitless, 'round')} in a row failed without any progress; {first.text}"
        cause = replace(first.cause(ended.number), kind="crash_loop", message=text)
        finish(work, GroupState.FAILED, f"the job failed: {text}", cause)
        return
    if group.restarts < budget:
        wait_s = restart_wait_s(group)
        work.change(restarts=group.restarts + 1, rests_until=work.now + wait_s if wait_s else None)
        spent = spent_of(group.restarts + 1, budget)
        work.say("restart_spent", f"restart {spent}: {first.text}", first.node_id)
        return
    left = f"all {count(budget, 'restart')} used up" if budget else "max_restarts is 0"
    finish(work, GroupState.FAILED, f"the job failed: {first.text}; {left}", first.cause(ended.number))


def _finish_hopeless(work: Work, ended: Round, first: _Failed, why: str) -> None:
    """Fail the group at once, whatever is left of its budget."""
    message = f"{first.text}; no restart, since {why}"
    cause = replace(first.cause(ended.number), message=message)
    finish(work, GroupState.FAILED, f"the job failed: {message}", cause)


def _finish_given_up(
    work: Work, end: End, cause: RootCause, given_up: set[str], left: Sequence[Node]
) -> None:
    """Fail the group, too few nodes being left; if a node was lost, that is the cause of the failures after it."""
    if end.kind in LOSSES:
        cause = RootCause(kind=f"node_{end.kind}", message=end.why, round=cause.round, node_id=end.node_id)
    few = f"{words.standing(ready_of(work.group.spec, left))} {'is' if len(left) == 1 else 'are'} left"
    text = f"the job failed: {cause.message}; {names(given_up)} gave up, and {few}"
    finish(work, GroupState.FAILED, text, cause)


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
    elif answer.lack is Lack.ALLOWED_MASTER:
        _finish_without_master(work, ready)
    elif answer.lack is not Lack.MASTER:
        _finish_incomplete(work, ready, answer)
    else:
        _finish_unreachable(work, ready)


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


def _warnings(spec: GroupSpec, nodes: Sequence[Node]) -> tuple[RoundWarning, ...]:
    return (*drift(nodes), *unordered(spec, nodes), *slow_slots(nodes), *unlike_speeds(nodes))


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
    former = group.round
    new = Round(
        number=number,
        members=placement.members,
        restart_count=group.restarts,
        formed_at=work.now,
        first=former is None or (former.first and _started_nothing(former)),
        restarted_by=_restarted_by(former) if former is not None else "",
        warnings=_warnings(group.spec, selection.nodes),
        shares=at_forming([nodes[member.node_id] for member in placement.members]),
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
    places = ", ".join(f"{member.node_id} {ranks(member)}" for member in new.members[:8])
    more = f" and {count(len(new.members) - 8, 'more node')}" if len(new.members) > 8 else ""
    end = former.end if former is not None else None
    cause, since = (end.kind, end.stopped_at) if end is not None else (None, None)
    text = f"round {number} formed: world size {new.world_size}, {places}{more}"
    work.say("round_formed", text, cause=cause, since=since)
    if first and not group.spec.bounded:
        restarts = group.spec.on_join is OnJoin.RESTART
        later = "restart the job" if restarts else "are kept as spares"
        nodes_now = count(len(new.members), "node")
        text = f"started with {nodes_now}, since no --nnodes was given; nodes that join later {later}"
        work.say("started_unbounded", text)


def _started_nothing(former: Round) -> bool:
    """Whether a round ended before its workers could be started."""
    return former.end is not None and former.end.kind is EndKind.MASTER_UNREACHABLE


def _restarted_by(former: Round) -> str:
    """The failure that a restart was spent on after a round, in a line; empty if none was."""
    end = former.end
    return end.why if end is not None and end.kind is EndKind.FAILED else ""


def _tell_left_out(work: Work) -> None:
    """Say which nodes are left out because they cannot reach the master."""
    active, most = work.group.active_round, work.group.spec.max_nodes
    if active is not None and (most is None or len(active.members) < most):
        for node in out_of_reach(work.group, active):
            master = active.master.node_id
            text = f"{node.node_id} is left out: it cannot reach {master}, and no node can be reached by all"
            work.say("node_left_out", text, node.node_id)


def _finish_unreachable(work: Work, ready: Sequence[Node]) -> None:
    who = words.no_master(no_master(work.group, ready))
    message = f"no node can be master: {who}. Check the firewall, --port-range, --interface and --local-addr"
    cause = RootCause(kind="master_unreachable", message=message)
    finish(work, GroupState.FAILED, f"the job failed: {message}", cause)


def _finish_without_master(work: Work, ready: Sequence[Node]) -> None:
    who = names(node.node_id for node in ready)
    message = (
        f"no node that may be master joined within {work.group.spec.join_timeout_s:g} s: {who} "
        f"{'is' if len(ready) == 1 else 'are'} ready, but "
        f"{words.may_not_be_master(nodes(ready), work.group.spec.master or '')}"
        f"{words.also_not_ready(not_ready(work.group))}"
    )
    cause = RootCause(kind="join_timeout", message=message)
    finish(work, GroupState.FAILED, f"the job failed: {message}", cause)


def _finish_incomplete(work: Work, ready: Sequence[Node], answer: Shortfall) -> None:
    spec = work.group.spec
    who = f" ({names(node.node_id for node in ready)})" if ready else ""
    units, world = broken_units_of(work.group, ready), no_world(spec, ready, answer)
    lack = words.broken(units) if units is not None else words.no_world(world) if world is not None else ""
    why = f"; {lack}" if lack else ""
    message = (
        f"not enough nodes joined within {spec.join_timeout_s:g} s: "
        f"{words.standing(ready_of(spec, ready))} ready{who}{why}{words.also_not_ready(not_ready(work.group))}"
    )
    cause = RootCause(kind="join_timeout", message=message)
    finish(work, GroupState.FAILED, f"the job failed: {message}", cause)


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
        stop_kindly(work, EndKind.JOINED, who[0], f"{names(who)} joined")
