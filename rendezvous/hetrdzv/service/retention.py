"""How many groups a server keeps, of how many nodes, and for how long."""

from dataclasses import dataclass

from hetrdzv.core.commands import Command, Drain, Join
from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server.

    Attributes:
        max_groups: including finished ones.
        max_nodes_per_group: live ones.
        keep_finished_s: how long a finished group is kept.
        keep_idle_s: how long an unfinished group is kept after its last agent has gone, unless it was made with PUT.
    """

    max_groups: int = 10_000
    max_nodes_per_group: int = 16_384
    keep_finished_s: float = 7 * 86_400.0
    keep_idle_s: float = 86_400.0


DEFAULT_LIMITS = Limits()


def require_room_for_nodes(group: Group, command: Command, limits: Limits) -> None:
    """Check that a command does not give a group too many nodes, or too many drained node ids."""
    most = limits.max_nodes_per_group
    match command:
        case Join(node_id=node_id) if len(group.nodes) >= most:
            node = group.nodes.get(node_id)
            full = (node is None or node.gone) and len(group.live) >= most
        case Drain(node_id=node_id):
            full = len(group.drained) >= most and node_id not in group.drained
        case _:
            return
    if full:
        raise Refused(f"group '{group.group_id}' may have {most} nodes and no more: use another group")


def is_outdated(group: Group, used_at: float | None, now: float, limits: Limits) -> bool:
    """Whether nobody needs a group any more.

    A finished group is kept for `keep_finished_s` after its outcome. One that agents made by joining and then all left
    (Ctrl-C, `scancel`) is kept for `keep_idle_s` after its last use: everything in it comes again with the next agent
    that joins. A group that a person made with `PUT` holds a spec and a command that no agent brings, so it
    stays until a person deletes it or its job ends. No group with live nodes is ever forgotten.
    """
    if group.state.terminal:
        over = group.finished_at is not None and now > group.finished_at + limits.keep_finished_s
    else:
        went_at = max((node.departed_at or 0.0 for node in group.nodes.values()), default=0.0)
        over = not group.by_put and now > max(used_at or group.created_at, went_at) + limits.keep_idle_s
    return over and all(node.gone for node in group.nodes.values())
