"""Converts values of the core to replies of the API."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial

from starlette.responses import Response

from hetrdzv.api.workers import worker_reply
from hetrdzv.auth.tokens import Grant
from hetrdzv.core.commands import Command
from hetrdzv.core.directive import late_joiner_exit_code, make_stop_notice
from hetrdzv.core.explanations import explain_group, explain_left_out_node, explain_round_end
from hetrdzv.core.memo import cache_on_value
from hetrdzv.core.model import OFFER_FIELDS, Group, Node, Round
from hetrdzv.core.snapshots.catalog import GroupSnapshot, list_group_snapshots
from hetrdzv.core.snapshots.start_snapshot import (
    find_next_start_snapshot,
    is_snapshot_undone,
    newest_disk_snapshot,
    newest_safe_snapshot,
    snapshot_warnings,
)
from hetrdzv.core.version_drift import find_version_differences
from hetrdzv.protocol import codec
from hetrdzv.protocol.reasons import advice, waiting
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.replies import QUARANTINED, CountsReply, GroupReply, GroupSummary, NodeReply, RoundReply
from hetrdzv.protocol.snapshots import SafeSnapshotReply, SnapshotListReply, SnapshotReply
from hetrdzv.protocol.states import GroupState, NodePhase
from hetrdzv.protocol.texts.node_rank_lists import NodeList
from hetrdzv.service.progress.samples import WorkerSample, unwatched_warnings
from hetrdzv.service.service import Service

MAX_SHOWN_SNAPSHOTS = 32
"""How many snapshots are shown: the newest."""

MIN_ITEMS_FOR_THREAD = 300
"""Replies about more nodes or events than this are made in a thread, so that polls are answered meanwhile."""


async def group_response(service: Service, group: Group, nodes: str = "all") -> Response:
    """Everything about a group as a response; `nodes`: `all` or `none` of it."""

    def reply() -> GroupReply:
        seen, heard_at = dict(service.progress.workers(group)), partial(service.leases.heard_at, group)
        return group_reply(group, service.now(), heard_at, seen, nodes=nodes == "all")

    return await json_response(len(group.nodes), reply)


async def execute_and_respond(service: Service, group_id: str, command: Command) -> Response:
    """Execute a person's command and answer with the group."""
    return await group_response(service, await service.execute(group_id, command))


async def json_response(items: int, make: Callable[[], object]) -> Response:
    """A reply about so many nodes or events as a response."""

    def written() -> bytes:
        return codec.to_json(make(), nulls=True)

    body = await asyncio.to_thread(written) if items > MIN_ITEMS_FOR_THREAD else written()
    return Response(body, media_type="application/json")


def group_summary(group: Group, now: float) -> GroupSummary:
    """A group in brief."""
    active = group.active_round
    is_over = group.state.is_terminal and group.finished_at is not None
    return GroupSummary(
        group_id=group.group_id,
        state=group.state,
        reason=explain_group(group, now),
        clock=now,
        job=group.job,
        round=group.last_round,
        world_size=active.world_size if active is not None else 0,
        restarts=group.restarts,
        max_restarts=group.spec.max_restarts,
        counts=_count_nodes(group),
        ended_s_ago=round(max(0.0, now - (group.finished_at or 0.0)), 3) if is_over else None,
        exit_code=late_joiner_exit_code(group),
        snapshot=_safe_shown(group),
    )


def group_summaries(service: Service, grant: Grant) -> Callable[[], list[GroupSummary]]:
    """What makes all groups that a grant covers, in brief, in a thread if need be."""
    now = service.now()
    groups = [group for group in service.groups() if grant.covers(group.group_id)]
    aside = [(name, why) for name, why in service.quarantine_reasons().items() if grant.covers(name)]

    def make() -> list[GroupSummary]:
        served = [group_summary(group, now) for group in groups]
        return served + [
            GroupSummary(group_id=name, state=QUARANTINED, reason=ReasonCode.QUARANTINED.reason(quote=why))
            for name, why in aside
        ]

    return make


@cache_on_value
def _count_nodes(group: Group) -> CountsReply:
    live = group.live_nodes
    members = [node for node in live if group.active_round is not None and group.is_in_newest_round(node)]
    return CountsReply(
        nodes=len(live),
        slots=sum(node.slots for node in live),
        members=len(members),
        spares=sum(1 for node in live if node_state(group, node) == "spare"),
        gone=len(group.nodes) - len(live),
    )


def group_reply(
    group: Group,
    now: float,
    heard_at: Callable[[Node], float],
    seen: Mapping[int, WorkerSample],
    *,
    nodes: bool = True,
) -> GroupReply:
    """Everything about a group; its nodes in rank order, then those without a rank, the gone ones last."""
    members = group.round.members if nodes and group.round is not None else ()
    ranks = {member.node_id: member.group_rank for member in members}
    shown = sorted(
        group.nodes.values() if nodes else (),
        key=lambda node: (ranks.get(node.node_id, len(ranks)), node.is_gone, node.node_id),
    )
    summary = codec.fields_by_name(group_summary(group, now))
    return GroupReply(
        **summary,
        spec=codec.fields_by_name(group.spec),
        current_round=_round_reply(group, group.round, seen, now, nodes=nodes)
        if group.round is not None
        else None,
        nodes=tuple(node_reply(group, node, heard_at(node), now) for node in shown),
        drained=tuple(sorted(group.drained)),
        unreachable=tuple(sorted(group.unreachable)),
        warnings=(*_find_warnings(group), *unwatched_warnings(group, seen, now)),
        next_step=advice.advise_next_step(
            group.group_id,
            summary["reason"],
            failed=group.state is GroupState.FAILED,
            stays=group.by_put,
        ),
        root_cause=group.root_cause,
    )


@cache_on_value
def _find_warnings(group: Group) -> tuple[Reason, ...]:
    """What differs between the nodes that are here and matters, and what was found in their round."""
    nodes = [node for node in group.live_nodes if node.job == group.job]
    current = group.active_round
    of_round = snapshot_warnings(group, current) if current is not None else ()
    return (*find_version_differences(nodes), *of_round)


def _round_reply(
    group: Group, current: Round, seen: Mapping[int, WorkerSample], now: float, *, nodes: bool
) -> RoundReply:
    stall = group.reported_stall
    return RoundReply(
        number=current.number,
        world_size=current.world_size,
        restart_count=current.restart_count,
        master=current.master,
        members=current.members if nodes else (),
        ended=explain_round_end(current.number, current.end) if current.end is not None else None,
        met=current.met,
        notice=make_stop_notice(group, now),
        workers=tuple(worker_reply(seen[rank], stall, now) for rank in sorted(seen)) if nodes else (),
        shares=current.shares,
    )


def node_reply(group: Group, node: Node, heard_at: float, now: float) -> NodeReply:
    """A node of a group."""
    active = group.active_round
    member = (
        active.members_by_id.get(node.node_id)
        if active is not None and group.is_in_newest_round(node)
        else None
    )
    return NodeReply(
        node_id=node.node_id,
        state=node_state(group, node),
        group_rank=member.group_rank if member is not None else None,
        rank_offset=member.rank_offset if member is not None else None,
        heard_s_ago=None if node.is_gone else max(0.0, now - heard_at),
        waited_for=member is not None and any(rank in member.ranks for rank in list_ranks_waited_for(group)),
        incarnation=node.incarnation,
        reason=_explain_absence(group, node),
        failure=node.failure,
        **{name: getattr(node, name) for name in _OFFER_FIELDS_SHOWN},
    )


_OFFER_FIELDS_SHOWN = [field.name for field in fields(NodeReply) if field.name in OFFER_FIELDS]
"""What is shown of a node's offer."""


def list_ranks_waited_for(group: Group) -> Sequence[int]:
    """The first few ranks that others are said to wait for."""
    stall = group.reported_stall
    return stall.hang.ranks if stall is not None else ()


def _explain_absence(group: Group, node: Node) -> Reason | None:
    """Why a node is gone, about to go, or in no round; None: there is nothing to say."""
    if (going := node.departure_reason or node.leaving) is not None:
        return going
    if node.not_ready:
        return waiting.nodes_not_ready(NodeList.of([node.node_id]), node.not_ready)
    active = group.active_round
    if (
        active is None
        or active.notice is not None
        or node.phase is not NodePhase.READY
        or group.is_in_newest_round(node)
    ):
        return None
    return explain_left_out_node(group, node)


def node_state(group: Group, node: Node) -> str:
    """A node's state for people: its phase, or `not_ready`, `spare`, `stopping`, `suspect`, `drained`."""
    if node.phase is NodePhase.LEFT and (node.is_drained or node.node_id in group.drained):
        return "drained"
    if node.is_gone:
        return node.phase
    if node.disconnected_at is not None:
        return "suspect"
    if node.leaving is not None or (
        group.is_in_newest_round(node) and not node.has_no_workers and group.active_round is None
    ):
        return "stopping"
    if node.phase is NodePhase.READY and node.not_ready:
        return "not_ready"
    return "spare" if node.phase is NodePhase.READY and group.active_round is not None else node.phase


# -- snapshots; nobody is shown a key --------------------------------------------------------------------------


def make_snapshots_shown(group: Group) -> SnapshotListReply:
    """The snapshots of a group as people see them."""
    after, newest, known = find_next_start_snapshot(group), newest_safe_snapshot(group), group.snapshots
    return SnapshotListReply(
        group_id=group.group_id,
        next=after.stamp if after is not None else None,
        wanted=known is not None and after is not None and known.wanted == after.stamp,
        safe=newest.stamp if newest is not None else None,
        snapshots=tuple(
            _snapshot_shown(group, one) for one in list_group_snapshots(group)[:MAX_SHOWN_SNAPSHOTS]
        ),
    )


def _snapshot_shown(group: Group, one: GroupSnapshot) -> SnapshotReply:
    return SnapshotReply(
        stamp=one.stamp,
        world_size=one.world_size,
        sharded=one.sharded,
        lack=one.missing,
        undone=group.snapshots is not None and is_snapshot_undone(group.snapshots, one.stamp),
        nodes=_holder_names(one),
        on_disk=one.on_disk is not None,
        size=one.on_disk.size if one.on_disk else sum(held.size for _, held in one.holders),
    )


def _holder_names(one: GroupSnapshot) -> NodeList:
    return NodeList.of(node.node_id for node, _ in one.holders)


@cache_on_value
def _safe_shown(group: Group) -> SafeSnapshotReply | None:
    """What of a job's work is safe; None: no node holds snapshots."""
    if group.snapshots is None:
        return None
    newest, disk = newest_safe_snapshot(group), newest_disk_snapshot(group)
    return SafeSnapshotReply(
        safe=newest.stamp if newest is not None else None,
        nodes=_holder_names(newest) if newest is not None else NodeList(),
        on_disk=disk.stamp if disk is not None else None,
    )
