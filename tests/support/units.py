"""Whether a round takes the ready nodes of a unit together."""

from hetrdzv.core.model import Group
from hetrdzv.core.selection.candidates import ready_nodes


def left_behind(group: Group) -> list[str]:
    """The nodes that are ready, but not in the round, though another node of their unit is."""
    label, current = group.spec.unit, group.round
    if label is None or current is None:
        return []
    taken = {group.nodes[member.node_id].labels.get(label) for member in current.members} - {None}
    return [node.node_id for node in ready_nodes(group) if node.labels.get(label) in taken]
