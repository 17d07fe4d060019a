"""Why a group stands where it stands, and why a node waits (docs/design.md, rule 9)."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from hetrdzv.core.memo import cache_on_value
from hetrdzv.core.model import Group, Node, Round, RoundEnd
from hetrdzv.core.rounds.timers import (
    group_wait_deadline,
    joiners_admitted_at,
    members_not_ready_to_stop,
    members_not_stopped,
    round_forms_at,
    round_stop_deadline,
    stall_ends_round_at,
)
from hetrdzv.core.selection.select import (
    Selection,
    Shortfall,
    ShortfallKind,
    explain_spare,
    find_joiners,
    find_larger_round,
    not_ready_nodes,
    ready_nodes,
    select_next_round,
)
from hetrdzv.protocol.reasons import events, hangs, waiting
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.states import GroupState, NodePhase
from hetrdzv.protocol.texts.ids import natural_key
from hetrdzv.protocol.texts.node_rank_lists import NodeList


def explain_group(group: Group, now: float) -> Reason:
    """Why the group stands where it stands at `now`."""
    active = group.active_round
    stall = active.reported_stall if active is not None and active.notice is None else None
    if active is None or stall is None or group.state is not GroupState.RUNNING:
        return _explain_without_hang(group)
    known = now <= stall.known_until
    until = stall_ends_round_at(group, stall) if known else None
    return hangs.round_hangs(active.number, stall.hang, stall.since, known=known, until=until)


@cache_on_value
def _explain_without_hang(group: Group) -> Reason:
    """Why it stands there but for a hang: found once per change, since every node gets it."""
    current = group.round
    match group.state:
        case GroupState.WAITING:
            return _explain_waiting(group)
        case GroupState.SUCCEEDED:
            return events.group_succeeded(
                explain_partial_connection(current) if current is not None else None
            )
        case GroupState.CANCELLED:
            assert group.cancellation is not None
            return group.cancellation
        case GroupState.FAILED:
            assert group.root_cause is not None
            return group.root_cause.reason
    assert current is not None
    if group.state is GroupState.STARTING:
        late = [one.node_id for one in current.members if group.member_phase(one) is NodePhase.STARTING]
        return ReasonCode.ROUND_STARTING.reason(*late, round=current.number)
    if (notice := current.notice) is not None:
        return waiting.round_about_to_end(
            current.number, notice.cause.reason, members_not_ready_to_stop(group), notice.until
        )
    return waiting.round_running(
        current.number, len(current.members), current.world_size, explain_partial_connection(current)
    )


def explain_partial_connection(current: Round) -> Reason | None:
    """That workers of a round are known not to have met; None: they have, or nobody knows."""
    if current.met is None or current.met >= current.world_size:
        return None
    return ReasonCode.PARTIALLY_CONNECTED.reason(met=current.met, world_size=current.world_size)


# -- no round runs -------------------------------------------------------------------------------------------


def _explain_waiting(group: Group) -> Reason:
    last = group.round
    if last is None or last.end is None:
        return explain_group_waiting(group)
    ended = explain_round_end(last.number, last.end)
    if last.end.is_cost_decided:
        return replace(explain_group_waiting(group), cause=ended)
    until = round_stop_deadline(group, last.end)
    stopping = [node.node_id for node in members_not_stopped(group)]
    stops = ReasonCode.STOPPING.reason(*stopping, until=until if until < inf else None)
    return replace(stops, cause=ended)


def explain_round_end(number: int, end: RoundEnd) -> Reason:
    """What ended a round."""
    return replace(end.cause.reason, round=number)


def explain_group_waiting(group: Group) -> Reason:
    """What a group waits for that has no round, or whose round was judged; and which nodes are not ready, and why."""
    waits, unready = _explain_no_round(group), not_ready_nodes(group)
    if not unready:
        return waits
    first = min(unready, key=lambda node: natural_key(node.node_id))
    late = waiting.nodes_not_ready(NodeList.of(node.node_id for node in unready), first.not_ready)
    return waiting.with_not_ready_nodes(waits, late)


def _explain_no_round(group: Group) -> Reason:
    there, answer, until = ready_nodes(group), select_next_round(group), group_wait_deadline(group)
    least, counts_slots = group.spec.min_nodes, group.spec.counts_slots
    slots = sum(node.slots for node in there) if counts_slots and len(there) >= least else None
    ready = waiting.ReadyCount(NodeList.of(node.node_id for node in there), least, slots)
    if isinstance(answer, Shortfall) and answer.kind is ShortfallKind.ALLOWED_MASTER:
        return ReasonCode.NO_ALLOWED_MASTER.reason(
            nodes=ready.nodes, ready=ready, master=group.spec.master, until=until
        )
    if isinstance(answer, Shortfall) and answer.kind is not ShortfallKind.MASTER:
        wanting = [
            node.node_id for node in group.live_nodes if node.wants_command and group.spec.command is None
        ]
        if wanting:
            return ReasonCode.NO_COMMAND.reason(*wanting, group=group.group_id)
        no_world = answer.kind is ShortfallKind.WORLD  # else they are just too few
        never = sorted({node.slots for node in there}) if answer.never else []
        few = waiting.too_few_nodes(
            ready,
            0 if answer.never else answer.missing,
            unit="node" if answer.kind is ShortfallKind.NODES else "slot",
            world=waiting.no_valid_world_size(group.spec, never, too_small=bool(answer.missing))
            if no_world
            else None,
            since=_find_empty_since(group),
            until=until,
        )
        return _add_gone_members(group, few)
    if group.bounds_since is None:
        return waiting.no_reachable_master(find_unreachable_masters(group, there), group.spec.master, until)
    if answer.suspects:
        return ReasonCode.RECONNECTING.reason(*(node.node_id for node in answer.suspects), ready=ready)
    return _explain_round_delay(group, ready, answer)


def _find_empty_since(group: Group) -> float | None:
    """When the last node went; None: some are here, or none is known to have been."""
    went = [node.departed_at for node in group.nodes.values()]
    return max((at for at in went if at is not None), default=None) if None not in went else None


def _explain_round_delay(group: Group, ready: waiting.ReadyCount, answer: Selection | Shortfall) -> Reason:
    until, code, more = round_forms_at(group, answer), ReasonCode.LAST_CALL, dict[str, Any]()
    if group.backoff_until is not None and group.backoff_until == until:
        code, more = ReasonCode.RESTART_BACKOFF, {"restart": group.restarts, "quick": group.quick}
    elif not group.last_call:
        code = ReasonCode.REPLACEMENT_WAIT
    return code.reason(nodes=ready.nodes, ready=ready, until=until, **more)


def find_unreachable_masters(group: Group, there: Sequence[Node]) -> dict[str, list[str]]:
    """Which of the nodes that are ready cannot be reached as master, and from where."""
    among, by_master = {node.node_id for node in there}, dict[str, list[str]]()
    for node_id, master in group.unreachable:
        if among >= {node_id, master}:
            by_master.setdefault(master, []).append(node_id)
    return by_master


def _add_gone_members(group: Group, waits: Reason) -> Reason:
    """What a group waits for, with the members of the last round that are gone."""
    members, known = group.round.members if group.round is not None else (), group.nodes
    gone = [one.node_id for one in members if (node := known.get(one.node_id)) is None or node.is_gone]
    return waiting.waits_for_replacement(waits, gone, group.drained.intersection(gone or group.drained))


# -- a node is in no round -----------------------------------------------------------------------------------


def explain_node_waiting(group: Group, node: Node, now: float) -> Reason:
    """Why a node that has nothing to do has nothing to do."""
    active = group.active_round
    if active is None or active.notice is not None:
        return explain_group(group, now)
    return waiting.node_left_out(active.number, node.node_id, explain_left_out_node(group, node))


def explain_left_out_node(group: Group, node: Node) -> Reason:
    """Why a node is not in the running round, in a clause."""
    active = group.active_round
    assert active is not None
    if node.wants_command and group.spec.command is None:
        return ReasonCode.NO_COMMAND.reason(node.node_id, group=group.group_id)
    if node.not_ready:
        return waiting.nodes_not_ready(NodeList.of([node.node_id]), node.not_ready)
    if (larger := find_larger_round(group)) is not None and node.node_id in find_joiners(group):
        return ReasonCode.JOINS_NEXT_ROUND.reason(node.node_id, until=joiners_admitted_at(group, larger))
    return explain_spare(group, node, active)
