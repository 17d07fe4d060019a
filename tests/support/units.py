"""What holds of units at the moment when a round has formed, in other words than the core's."""

from hetrdzv.core.model import Group


def left_behind(group: Group) -> list[str]:
    """The nodes that are here, but not in the round, though another node of their unit is."""
    label, current = group.spec.unit, group.round
    if label is None or current is None:
        return []
    members = {member.node_id for member in current.members}
    taken = {group.nodes[node_id].labels.get(label) for node_id in members} - {None}
    return [
        node_id
        for node_id, node in group.nodes.items()
        if node_id not in members
        and node.labels.get(label) in taken
        and node.job == group.job
        and not node.gone
        and node_id not in group.drained
    ]
