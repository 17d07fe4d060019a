"""What would happen to a group if a node were drained, or the group restarted: its state machine, played on a copy.

Nothing is decided here. The change is made with the commands that would really come, and then every node does what it
is told, at once and without a fault, until the group waits for nobody but new nodes.
"""

from hetrdzv.core.commands import Command, Drain, Join, Leave, RecordStall, RenewLease, Report, Restart, Tick
from hetrdzv.core.directive import make_directive_head
from hetrdzv.core.explanations import explain_group
from hetrdzv.core.model import OFFER_FIELDS, Group, Node
from hetrdzv.core.rounds.reconcile import next_tick_at
from hetrdzv.core.rounds.timers import no_expired_leases
from hetrdzv.core.state_machine import step
from hetrdzv.protocol.replies import Plan
from hetrdzv.protocol.requests import PlanRequest
from hetrdzv.protocol.states import DirectiveKind, NodePhase, ReportKind
from hetrdzv.protocol.texts.ids import natural_key

MAX_SIMULATED_TURNS = 60
"""How many turns a rehearsal takes at most; the longest that anybody has seen took 20."""


def make_plan(group: Group, changes: PlanRequest, now: float) -> Plan:
    """What would happen to a group, if every node did what it is told and nothing else happened."""
    after = group
    if (active := group.active_round) is not None:
        after = _apply_to_group(after, RecordStall(active.number, None), now)
    if changes.drain is not None:
        after = _apply_to_group(after, Drain(changes.drain), now)
    if changes.restart:
        after = _apply_to_group(after, Restart(), now)
    return _compare_groups(group, *_simulate_until_idle(after, now), now)


# -- playing ---------------------------------------------------------------------------------------------------


def _apply_to_group(group: Group, command: Command, now: float) -> Group:
    return step(group, command, now, no_expired_leases).group


def _simulate_until_idle(group: Group, now: float) -> tuple[Group, float]:
    """What a group becomes, and when, until only new nodes could change anything."""
    group = _apply_to_group(group, Tick(), now)
    for _ in range(MAX_SIMULATED_TURNS):
        before = group
        for node in before.live_nodes:  # each does what it has to do now
            if (command := _next_command(before, node)) is not None:
                group = _apply_to_group(group, command, now)
        if group is before:
            if (at := _find_next_change_time(before, now)) is None:
                break
            now = at
        group = _apply_to_group(group, Tick(), now)
    return group, now


def _next_command(group: Group, node: Node) -> Command | None:
    """What the agent of a live node says once it has done what it has to do; None: it has nothing to say."""
    head = make_directive_head(group, node)
    if head.code == "notice" and node.ready_to_stop < head.round:
        return _make_report(node, head.round, ReportKind.READY_TO_STOP)
    if head.kind is DirectiveKind.EXIT or node.leaving is not None or group.has_failed_permanently(node):
        return Leave(node_id=node.node_id, incarnation=node.incarnation)
    if head.kind is DirectiveKind.STOP:
        offer = {name: getattr(node, name) for name in OFFER_FIELDS}
        return Join(node_id=node.node_id, incarnation=node.incarnation, after_round=node.member_of, **offer)
    if head.kind is DirectiveKind.START and node.phase is NodePhase.STARTING:
        return _make_report(node, head.round, ReportKind.STARTED)
    return None if node.disconnected_at is None else RenewLease(node.node_id, node.incarnation)


def _make_report(node: Node, number: int, kind: ReportKind) -> Report:
    return Report(node_id=node.node_id, incarnation=node.incarnation, round=number, kind=kind)


def _find_next_change_time(group: Group, now: float) -> float | None:
    """When a group will have done the next thing that it does by itself; None: it waits for nobody but new nodes."""
    if group.state.is_terminal:
        return None
    if group.active_round is not None:
        waits = group.joiners_since is not None
    else:
        end = group.round.end if group.round is not None else None
        waits = group.bounds_since is not None or (end is not None and not end.is_cost_decided)
    return next_tick_at(group, now) if waits else None


# -- what differs ----------------------------------------------------------------------------------------------


def _compare_groups(before: Group, after: Group, then: float, now: float) -> Plan:
    """What differs between a group and what became of it."""
    was, round_ = before.round if after.job == before.job else None, after.active_round
    members = round_.members if round_ is not None else ()
    nodes = [before.node_of_member(member) for member in was.members] if was is not None else []
    at_work = [node.node_id for node in nodes if node and not node.is_gone and not node.has_no_workers]
    goes_on = was is not None and round_ is not None and was.number == round_.number
    in_round = {member.node_id for member in members}
    spares = [node.node_id for node in after.live_nodes if node.node_id not in in_round]
    return Plan(
        state=after.state,
        reason=explain_group(after, then),
        clock=then,
        in_s=then - now,
        round=round_.number if round_ is not None else 0,
        world_size=round_.world_size if round_ is not None else 0,
        was_round=was.number if was is not None else 0,
        was_world_size=was.world_size if was is not None else 0,
        members=members,
        spares=tuple(sorted(spares, key=natural_key)),
        stops=tuple(node_id for node_id in at_work if node_id not in in_round),
        restarted=() if goes_on else tuple(node_id for node_id in at_work if node_id in in_round),
    )
