"""The optional features of rounds, each in a row."""

from collections.abc import Sequence

from hetrdzv.core.model import Group, Node
from hetrdzv.core.rooms.room import Room
from hetrdzv.core.rooms.snapshots import SnapshotsRoom
from hetrdzv.protocol.states import NodePhase

ROOMS: Sequence[Room] = (SnapshotsRoom(),)


def needed(group: Group, node: Node) -> bool:
    """Whether a node that has left does something for the others yet."""
    return node.phase is NodePhase.LEFT and any(room.needs(group, node) for room in ROOMS)
