"""Answers members that say what they hold of snapshots: what all hold together, once that is committed."""

from dataclasses import replace

from hetrdzv.core.snapshots import Declare
from hetrdzv.core.snapshots.copies import copy_for
from hetrdzv.protocol.errors import StaleRound
from hetrdzv.protocol.rooms.snapshots import SnapshotsReply, SnapshotsRequest
from hetrdzv.service.service import Service


async def declare(service: Service, group_id: str, node_id: str, request: SnapshotsRequest) -> SnapshotsReply:
    """Keep what a member holds, and say what all nodes of its group do.

    Raises:
        StaleRound: the round is over.
        Refused, StorageError, ServerStopping: as `Service.execute`.
    """
    command = Declare(
        node_id=node_id,
        incarnation=request.incarnation,
        round=request.round,
        holdings=request.holdings,
    )
    group = await service.execute(group_id, command)
    node, current = group.nodes.get(node_id), group.active_round
    if node is None or current is None or current.number != request.round:  # it has ended in the same turn
        raise StaleRound(f"round {request.round} of group '{group_id}' has ended")
    first = group.speaker(current.members[0])  # it has rank 0
    named = first.snapshots.to_disk_from if first is not None and first.snapshots is not None else 0
    told = service.tallies.said(group, node)
    return replace(told, copy=copy_for(group, node, told.complete), to_disk_from=named or None)
