"""Snapshots: which of them are complete, and from which one the next round begins.

What nodes hold is what they declare; nothing else says that a snapshot exists. A group keeps what a person has chosen
and who still serves after leaving (`Group.snapshots`), a round the one that it began from (`Round.snapshot`).
"""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2s
from itertools import chain

from hetrdzv.core.commands import DeclareSnapshots, Report
from hetrdzv.core.memo import cache_on_value
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.rounds.transitions import StepContext, make_stale_round_error, require_current_agent
from hetrdzv.core.snapshots.catalog import (
    GroupSnapshot,
    describe_newer_step,
    has_all_parts,
    is_present_and_staying,
    is_serving_snapshots,
    list_group_snapshots,
    list_job_snapshots,
    survives_node_loss,
)
from hetrdzv.core.snapshots.sources import make_start_snapshot
from hetrdzv.protocol.errors import NotFound, Refused
from hetrdzv.protocol.reasons import snapshots as reasons
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.snapshots import JobSnapshotState, SnapshotId, UseSnapshotRequest
from hetrdzv.protocol.texts.node_rank_lists import NodeList

MAX_SERVING_S = 600.0
"""How long an agent that leaves counts as one that serves what it holds, whatever it says (seconds)."""

MAX_STEPS_IN_ERROR = 5
"""How many steps an error names."""


def choose_start_snapshot(context: StepContext, before: Group) -> str:
    """Choose the snapshot that a round begins from; returns what is lost of the one before it, in words.

    `before`: the group without it, whose newest round has been judged.
    """
    group, current = context.group, context.group.active_round
    assert current is not None
    members = [group.nodes[member.node_id] for member in current.members]
    known = group.snapshots
    if known is None:
        origin = _find_snapshot_job(before, members)
        if origin is None:
            return ""
        known = JobSnapshotState(origin=origin)
    all_found = list_job_snapshots(group, known.origin, [node.node_id for node in members], before.last_round)
    taken = select_snapshot(known, all_found)
    if taken is not None and taken.stamp == known.wanted:
        known = replace(known, undone=taken.stamp, undone_before_round=current.number)
    context.update_group(snapshots=replace(known, wanted=None))
    lost = _count_lost_steps(before, known, taken)
    newer = describe_newer_step(taken.stamp.step if taken is not None else 0, all_found) if lost != 0 else ""
    holders = taken.holders if taken is not None else ()
    if taken is not None:
        snapshot = make_start_snapshot(taken, (node.node_id for node in members), lost)
        context.update_group(round=replace(current, snapshot=snapshot))
    if taken is not None or lost != 0:
        stamp, on_disk = (taken.stamp, taken.on_disk is not None) if taken is not None else (None, False)
        who = NodeList.of(node.node_id for node, _ in holders)
        context.add_event(
            reasons.began_from_snapshot(current.number, stamp, who, lost, newer, on_disk=on_disk)
        )
    for warning in snapshot_warnings(context.group, current):
        context.add_event(warning)
    return reasons.lost_steps_text(lost, newer) if lost != 0 else ""


def record_serving_time(context: StepContext, node: Node, report: Report) -> None:
    """A node whose workers are gone says for how long it will serve what it holds, until its agent says goodbye."""
    known = context.group.snapshots
    if known is None or node.job != context.group.job:
        return
    if not report.serves_s or report.snapshots is None or node.is_gone:
        return
    until = context.now - report.age_s + min(report.serves_s, MAX_SERVING_S)
    context.update_node(node, snapshots=report.snapshots)
    context.update_group(snapshots=replace(known, parting={**known.parting, node.incarnation: until}))


def is_holder_needed(group: Group, node: Node) -> bool:
    """Whether others need what a node that has left, but whose agent is there, holds: they have nothing newer yet."""
    if not is_serving_snapshots(group, node) or not has_nodes_that_stay(group) or node.snapshots is None:
        return False
    complete, known = newest_memory_snapshot(group), group.snapshots
    wanted = known.wanted if known is not None else None
    return complete is None or any(
        held.round >= complete.round
        or (wanted is not None and (held.round, held.step) == (wanted.round, wanted.step))
        for held in node.snapshots.held
    )


def forget_expired_holders(context: StepContext, gone: Node | None = None) -> None:
    """Forget agents that have served what they hold for as long as they said, and one that is gone."""
    known = context.group.snapshots
    if known is not None and known.parting:
        without = {gone.incarnation} if gone is not None else set[str]()
        parting = {
            whose: until
            for whose, until in known.parting.items()
            if whose not in without and not context.is_due(until)
        }
        context.update_group(snapshots=replace(known, parting=parting))


def snapshot_warnings(group: Group, current: Round) -> Sequence[Reason]:
    """What to know of the snapshots of a round that runs."""
    if group.snapshots is None:
        return ()
    return _make_node_warnings(
        [node for node in map(group.node_of_member, current.members) if node is not None]
    )


def _make_node_warnings(nodes: Sequence[Node]) -> Sequence[Reason]:
    held = {node.node_id: node.snapshots for node in nodes if node.snapshots is not None}
    not_written = {node_id: one.not_written for node_id, one in held.items() if one.not_written is not None}
    disabled_reason = {node_id: one.disabled_reason for node_id, one in held.items() if one.disabled_reason}
    warnings = []
    if not_written:  # one for all: mostly the directory that they share is full
        newest = max(not_written.values(), key=lambda lack: lack.stamp.sort_key)
        step, of_round = newest.stamp.step, newest.stamp.round
        warnings.append(
            ReasonCode.SNAPSHOT_NOT_WRITTEN.reason(
                *not_written, step=step, of_round=of_round, quote=newest.why
            )
        )
    if disabled_reason:  # mostly no node has enough memory
        warnings.append(
            ReasonCode.SNAPSHOTS_DISABLED.reason(*disabled_reason, quote=next(iter(disabled_reason.values())))
        )
    return tuple(warnings)


def _has_warning(node: Node, code: str) -> bool:
    return any(warning.code == code for warning in _make_node_warnings([node]))


def select_snapshot(known: JobSnapshotState, found: Sequence[GroupSnapshot]) -> GroupSnapshot | None:
    """The snapshot from which a round would begin, of all, the newest first; None: there is none."""
    complete = [one for one in found if not one.missing]
    wanted = (one for one in complete if one.stamp == known.wanted)
    return next(wanted, None) or next(
        (one for one in complete if not is_snapshot_undone(known, one.stamp)), None
    )


def is_snapshot_undone(known: JobSnapshotState, stamp: SnapshotId) -> bool:
    """Whether a person has chosen an older one since."""
    if known.undone is None or stamp.sort_key <= known.undone.sort_key:
        return False
    return stamp.origin is not None or stamp.round < known.undone_before_round


@cache_on_value
def has_nodes_that_stay(group: Group) -> bool:
    """Whether nodes are there that do not leave: they go on with the job."""
    return any(is_present_and_staying(group, node) for node in group.nodes.values())


def _find_snapshot_job(before: Group, members: Sequence[Node]) -> str | None:
    """The name of a job whose nodes hold snapshots; None: none does.

    A server may have forgotten a job that goes on: agents that have run a round of it know its name.
    """
    holding = [node for node in members if node.snapshots is not None]
    if not holding:
        return None
    if before.round is None and before.job == 1:
        for node in holding:
            if node.acked_round and node.snapshots is not None and node.snapshots.origin:
                return node.snapshots.origin
    return blake2s(members[0].incarnation.encode(), digest_size=8).hexdigest()


def _count_lost_steps(before: Group, known: JobSnapshotState, taken: GroupSnapshot | None) -> int | None:
    """How many steps of the round that has ended are lost with what the next one begins from; None: nobody knows."""
    reached = _find_reached_step(before, known)
    if reached is None:
        return None if taken is not None or _job_had_snapshots(before, known.origin) else 0
    step = taken.stamp.step if taken is not None else 0
    if taken is not None and taken.stamp.origin is not None and reached < step:
        return reached  # this job did not begin from what another one has written
    return max(0, reached - step)


def _find_reached_step(before: Group, known: JobSnapshotState) -> int | None:
    """The newest step that a worker had reached in the round that has ended; None: nobody who is here knows.

    That was at least the step from which it was to begin, also where nobody could load it.
    """
    ended = before.round
    if ended is None:
        return 0
    began = ended.snapshot.step if ended.snapshot is not None else 0
    told_by = [
        node.snapshots.reached
        for member in ended.members
        if (node := before.nodes.get(member.node_id)) is not None
        and node.snapshots is not None
        and node.snapshots.origin == known.origin
        and (  # it has said how far it came, or its next agent has
            node.acked_round >= ended.number or node.incarnation in known.parting
            if node.incarnation == member.incarnation
            else not node.is_gone and node.snapshots.reached > 0
        )
    ]
    return max(*told_by, began) if told_by else None


def _job_had_snapshots(before: Group, origin: str) -> bool:
    """Whether there ever was a snapshot of a job, as far as is known."""
    if before.round is not None and before.round.snapshot is not None:
        return True
    every = (node.snapshots for node in before.nodes.values() if node.snapshots is not None)
    return any(inventory.held and inventory.origin == origin for inventory in every)


def find_next_start_snapshot(group: Group) -> GroupSnapshot | None:
    """The snapshot from which a round would begin now; None: there is none."""
    return (
        select_snapshot(group.snapshots, list_group_snapshots(group)) if group.snapshots is not None else None
    )


def newest_disk_snapshot(group: Group) -> GroupSnapshot | None:
    """The newest snapshot on disk that can be read; None: there is none."""
    return next((one for one in list_group_snapshots(group) if one.on_disk and not one.missing), None)


@cache_on_value
def newest_memory_snapshot(group: Group) -> SnapshotId | None:
    """The newest snapshot in memory that outlives any other node than its holder, where it is alone; None: none."""
    current = group.active_round
    alone = current.members[0].node_id if current is not None and len(current.members) == 1 else None
    known = group.snapshots
    return next(
        (
            one.stamp
            for one in list_group_snapshots(group)
            if not one.missing
            and not one.on_disk
            and not (known is not None and is_snapshot_undone(known, one.stamp))
            and (
                survives_node_loss(one)
                or any(node.node_id == alone and has_all_parts(held) for node, held in one.holders)
            )
        ),
        None,
    )


def newest_safe_snapshot(group: Group) -> GroupSnapshot | None:
    """The newest snapshot that outlives any one node, where there are more; None: there is none."""
    if group.snapshots is None:
        return None
    alone = len(group.live_nodes) < 2
    return select_snapshot(
        group.snapshots, [one for one in list_group_snapshots(group) if alone or survives_node_loss(one)]
    )


def record_snapshot_inventory(context: StepContext, command: DeclareSnapshots) -> None:
    """A member says what it holds while its round runs."""
    node = require_current_agent(context.group, command.node_id, command.incarnation)
    group, current = context.group, context.group.running_round
    if current is None or not group.is_in_newest_round(node) or command.round != current.number:
        raise make_stale_round_error(group, command.round, node.node_id)
    if node.snapshots == command.inventory:
        return
    for warning in _make_node_warnings([context.update_node(node, snapshots=command.inventory)]):
        # the first to say so (all are in the warnings): thousands may, and each that looks at all takes long
        told = chain([node], map(group.node_of_member, current.members))
        if not any(_has_warning(one, warning.code) for one in told if one is not None):
            context.add_event(warning)


def record_wanted_snapshot(context: StepContext, command: UseSnapshotRequest) -> None:
    """A person chooses the snapshot from which the next round begins."""
    group = context.group
    if group.state.is_terminal:
        raise Refused(f"group '{group.group_id}' is over ({group.state}): no round follows")
    complete = [one.stamp for one in list_group_snapshots(group) if not one.missing]
    stamp = next((one for one in complete if one.step == command.step), None)
    if stamp is None or group.snapshots is None:
        steps = ", ".join(str(one.step) for one in complete[:MAX_STEPS_IN_ERROR])
        there = f"there are those of step {steps}" if steps else "there is none"
        raise NotFound(f"group '{group.group_id}' has no complete snapshot of step {command.step}; {there}")
    if group.snapshots.wanted != stamp:
        context.update_group(snapshots=replace(group.snapshots, wanted=stamp))
        context.add_event(ReasonCode.SNAPSHOT_WANTED.reason(step=stamp.step, of_round=stamp.round))
