"""What follows from where a group stands and what time it is: rounds are judged and formed, joiners admitted.

Settling comes after every command. What it waits for is bounded by `outlook.deadline`, the moment past
which a `Tick` changes something.
"""

from dataclasses import replace

from hetrdzv.core.model import (
    End,
    EndKind,
    GroupState,
    Node,
    NodePhase,
    OnJoin,
    RootCause,
    Round,
)
from hetrdzv.core.outlook import (
    admits_at,
    all_succeeded,
    candidates,
    enough,
    forms_at,
    gives_up_at,
    joiners_of,
    out_of_reach,
    phase_of,
    placed,
    still_stopping,
    suspects,
    unresolved,
)
from hetrdzv.core.placement import Placement, is_loopback, stranded
from hetrdzv.core.words import count, describe_failure, names, ranks, unreached
from hetrdzv.core.work import GONE_NODES_KEPT, Work, end_round, expire, finish, reject, remembered


def settle(work: Work) -> None:
    """Draw every conclusion that is due."""
    expire(work)
    if work.group.state.terminal:
        pass
    elif work.group.active_round is None:
        _judge(work)
        _form(work)
    else:
        _progress(work)
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
    """A running round: has everybody started, has everybody succeeded?"""
    group, active = work.group, work.group.active_round
    if active is None:
        return
    if all_succeeded(group, active):
        finish(work, GroupState.SUCCEEDED, f"the job succeeded in round {active.number}")
    elif group.state is GroupState.STARTING and not any(
        phase_of(group, member) is NodePhase.STARTING for member in active.members
    ):
        work.change(state=GroupState.RUNNING)
        nodes = count(len(active.members), "node")
        work.say("round_running", f"round {active.number} runs on {nodes}, world size {active.world_size}")


def _judge(work: Work) -> None:
    """Decide what an ended round cost, once every member has stopped, is gone or is long overdue (rule 5)."""
    ended = work.group.round
    if ended is None or ended.end is None or ended.end.judged or unresolved(work.group, work.now):
        return
    end = replace(ended.end, judged=True)
    if end.kind is EndKind.FAILED:
        _charge(work, ended, end)
    else:
        work.change(round=replace(ended, end=end))


def _charge(work: Work, ended: Round, end: End) -> None:
    """A round that ended by a failure costs one restart, or the group its life."""
    group = work.group
    _, node_id, failure = min(
        (node.failure.at, node.node_id, node.failure)
        for member in ended.members
        if (node := group.speaker(member)) is not None and node.failure is not None
    )
    text = describe_failure(node_id, failure)
    work.change(round=replace(ended, end=replace(end, node_id=node_id, why=text)))
    budget = group.spec.max_restarts
    if group.restarts < budget:
        work.change(restarts=group.restarts + 1)
        work.say("restart_spent", f"restart {group.restarts + 1} of {budget}: {text}", node_id)
        return
    cause = RootCause(
        kind="worker_failed", message=text, round=ended.number, node_id=node_id, failure=failure
    )
    left = f"no restart is left of {budget}" if budget else "no restart is allowed"
    finish(work, GroupState.FAILED, f"the job failed: {text}; {left}", cause)


# -- the next round forms ------------------------------------------------------------------------------------


def _form(work: Work) -> None:
    """Form a round where the bounds hold and nothing better is worth waiting for (rule 3)."""
    group = work.group
    if group.state.terminal or (group.round is not None and not (group.round.end and group.round.end.judged)):
        return
    ready = candidates(group)
    strangers = stranded(ready)
    for node in strangers:
        reject(work, node)
    if strangers:
        ready = candidates(work.group)
    _track_waiting(work, ready)
    group = work.group
    give_up_at = gives_up_at(group)
    if group.bounds_since is not None:
        if work.now >= forms_at(group, ready) and not suspects(ready):
            placement = placed(group, ready)
            if placement.members:
                _start_round(work, placement)
                _tell_left_out(work)
            else:
                _finish_unreachable(work, ready)
    elif give_up_at is not None and work.now >= give_up_at:
        if len(ready) < group.spec.min_nodes:
            _finish_incomplete(work, ready)
        else:
            _finish_unreachable(work, ready)


def _track_waiting(work: Work, ready: list[Node]) -> None:
    """Note since when the group has waited with a node, and since when its bounds have held."""
    group, now = work.group, work.now
    bounds_hold = enough(group, ready)
    waits = bool(ready) or still_stopping(group)
    work.change(
        waiting_since=(now if group.waiting_since is None else group.waiting_since) if waits else None,
        bounds_since=(now if group.bounds_since is None else group.bounds_since) if bounds_hold else None,
        last_call=group.last_call or not bounds_hold or not any(group.in_round(node) for node in ready),
    )


def _start_round(work: Work, placement: Placement) -> None:
    group = work.group
    number = group.last_round + 1
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
    new = Round(number=number, members=placement.members, restart_count=group.restarts, formed_at=work.now)
    first = group.round is None
    work.change(
        state=GroupState.STARTING,
        last_round=number,
        round=new,
        nodes=nodes,
        seats=tuple(seat for seat in placement.seats if seat in nodes),
        last_call=False,
        waiting_since=None,
        bounds_since=None,
        joiners_since=None,
    )
    places = ", ".join(f"{member.node_id} {ranks(member)}" for member in new.members[:8])
    more = f" and {count(len(new.members) - 8, 'more node')}" if len(new.members) > 8 else ""
    cause = group.round.end.kind if group.round is not None and group.round.end is not None else None
    text = f"round {number} formed: world size {new.world_size}, {places}{more}"
    work.say("round_formed", text, cause=cause)
    if first and not group.spec.bounded:
        restarts = group.spec.on_join is OnJoin.RESTART
        later = "restart the job to join it" if restarts else "are kept as spares"
        nodes_now = count(len(new.members), "node")
        text = f"started with {nodes_now}, since no --nnodes was given; nodes that come later {later}"
        work.say("started_unbounded", text)


def _tell_left_out(work: Work) -> None:
    """Say who is not in the round for want of a way to its master."""
    active, most = work.group.active_round, work.group.spec.max_nodes
    if active is not None and (most is None or len(active.members) < most):
        for node in out_of_reach(work.group, active):
            text = f"{node.node_id} is left out: it cannot reach {active.master.node_id}, and no master serves all"
            work.say("node_left_out", text, node.node_id)


def _finish_unreachable(work: Work, ready: list[Node]) -> None:
    who = unreached(work.group.unreachable, {node.node_id for node in ready})
    message = (
        f"no node can be the master: {who}. Check the firewall, --port-range, --interface and --local-addr"
    )
    cause = RootCause(kind="master_unreachable", message=message)
    finish(work, GroupState.FAILED, f"the job failed: {message}", cause)


def _finish_incomplete(work: Work, ready: list[Node]) -> None:
    spec = work.group.spec
    who = f" ({names(node.node_id for node in ready)})" if ready else ""
    message = (
        f"the nodes did not come together within {spec.join_timeout_s:g} s: "
        f"{len(ready)} of {count(spec.min_nodes, 'node')} ready{who}"
    )
    cause = RootCause(kind="join_timeout", message=message)
    finish(work, GroupState.FAILED, f"the job failed: {message}", cause)


# -- a running round takes nodes in --------------------------------------------------------------------------


def _admit_joiners(work: Work) -> None:
    """End a running round for nodes that make the world larger, in one batch per last call (rule 3c)."""
    group, active = work.group, work.group.active_round
    if active is None:
        return
    if not is_loopback(active.master.address):
        for node in candidates(group):
            if is_loopback(node.address):
                reject(work, node)
        group = work.group
    joiners = joiners_of(group, active)
    if not joiners:
        work.change(joiners_since=None)
        return
    if group.joiners_since is None:
        work.change(joiners_since=work.now)
        group = work.group
    if work.now >= admits_at(group, active, joiners) and not suspects(joiners):
        who = sorted(node.node_id for node in joiners)
        end_round(work, EndKind.JOINED, who[0], f"{names(who)} joined")
