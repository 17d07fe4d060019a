"""Answers members that say what they hold of snapshots: what all hold together, once that is committed."""

from hetrdzv.core.commands import DeclareSnapshots
from hetrdzv.core.snapshots import complete_in_memory
from hetrdzv.core.snapshots.copies import copy_for
from hetrdzv.protocol.errors import StaleRound
from hetrdzv.protocol.snapshots import SnapshotsReply
from hetrdzv.service.service import Service


async def declare_holdings(service: Service, group_id: str, command: DeclareSnapshots) -> SnapshotsReply:
    """Keep what a member holds, and say what all nodes of its group do."""
    await service.execute(group_id, command)
    # as of this turn: what all hold is looked at once for all who have told in it
    group = service.group(group_id)
    node, current = group.nodes.get(command.node_id), group.active_round
    if node is None or current is None or current.number != command.round:  # it has ended in the same turn
        raise StaleRound(f"round {command.round} of group '{group_id}' has ended")
    complete = complete_in_memory(group)
    return SnapshotsReply(complete=complete, copy=copy_for(group, node, complete))
