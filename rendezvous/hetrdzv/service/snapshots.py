"""Answers members that say what they hold of snapshots: what all hold together, once that is committed."""

from dataclasses import replace
from typing import TYPE_CHECKING

from hetrdzv.core.model import Group, Node
from hetrdzv.core.rooms.snapshots import Declare
from hetrdzv.core.rooms.snapshots.copies import copy_for
from hetrdzv.core.rooms.snapshots.tally import Tally
from hetrdzv.protocol.errors import StaleRound
from hetrdzv.protocol.rooms.snapshots import SnapshotsReply, SnapshotsRequest

if TYPE_CHECKING:
    from hetrdzv.service.service import Service

MOST_TALLIES = 256
"""Of how many groups what their nodes hold is counted along; of others it is counted anew when it is needed."""


class Tallies:
    """What the nodes of each group hold in its running round; made anew from the groups whenever it is not there."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[tuple[str, int], Tally]] = {}  # by the job's own name and its round

    def said(self, group: Group, node: Node) -> SnapshotsReply:
        """What all nodes of a group hold, now that one of them has said something."""
        current = group.active_round
        origin = group.snapshots.origin if group.snapshots is not None else ""
        which = origin, current.number if current is not None else 0
        known = self._of.pop(group.group_id, None)
        tally = known[1] if known is not None and known[0] == which else Tally(group)
        self._of[group.group_id] = which, tally
        if len(self._of) > MOST_TALLIES:
            del self._of[next(iter(self._of))]
        return tally.said(group, node)


async def declare(
    service: "Service", group_id: str, node_id: str, request: SnapshotsRequest
) -> SnapshotsReply:
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
    tallies: Tallies = service.of_rooms.setdefault("snapshots", Tallies())
    first = group.speaker(current.members[0])  # it has rank 0
    named = first.snapshots.to_disk_from if first is not None and first.snapshots is not None else 0
    told = tallies.said(group, node)
    return replace(told, copy=copy_for(group, node, told.complete), to_disk_from=named or None)
