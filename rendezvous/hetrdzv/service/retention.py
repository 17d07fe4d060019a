"""How many groups a server keeps, of how many nodes, and for how long."""

from hetrdzv.core.commands import Command, Drain, Join
from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import Refused

MAX_GROUPS = 10_000
"""How many groups a server keeps, finished ones included."""

MAX_NODES_PER_GROUP = 16_384
"""How many live nodes a group may have, and how many drained node ids."""

KEEP_FINISHED_S = 7 * 86_400.0
"""How long a finished group is kept by default (seconds)."""

KEEP_IDLE_S = 86_400.0
"""How long an unfinished group is kept after its last agent has gone, unless it was made with PUT (seconds)."""


def require_room_for_nodes(group: Group, command: Command) -> None:
    """Check that a command does not give a group too many nodes, or too many drained node ids."""
    most = MAX_NODES_PER_GROUP
    match command:
        case Join(node_id=node_id) if len(group.nodes) >= most:
            node = group.nodes.get(node_id)
            full = (node is None or node.is_gone) and len(group.live_nodes) >= most
        case Drain(node_id=node_id):
            full = len(group.drained) >= most and node_id not in group.drained
        case _:
            return
    if full:
        raise Refused(f"group '{group.group_id}' may have {most} nodes and no more: use another group")


def is_outdated(group: Group, used_at: float | None, now: float, keep_finished_s: float) -> bool:
    """Whether nobody needs a group any more.

    A finished group is kept for `keep_finished_s` after its outcome. One that agents made by joining and then all left
    (Ctrl-C, `scancel`) is kept for `KEEP_IDLE_S` after its last use: everything in it comes again with the next agent
    that joins. A group that a person made with `PUT` holds a spec and a command that no agent brings, so it
    stays until a person deletes it or its job ends. No group with live nodes is ever forgotten.
    """
    if group.state.is_terminal:
        over = group.finished_at is not None and now > group.finished_at + keep_finished_s
    else:
        went_at = max((node.departed_at or 0.0 for node in group.nodes.values()), default=0.0)
        over = not group.by_put and now > max(used_at or group.created_at, went_at) + KEEP_IDLE_S
    return over and all(node.is_gone for node in group.nodes.values())
