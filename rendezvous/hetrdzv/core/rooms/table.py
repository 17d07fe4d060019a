"""The optional features of rounds, each in a row."""

from collections.abc import Sequence

from hetrdzv.core.rooms.network import NetworkRoom
from hetrdzv.core.rooms.room import Room
from hetrdzv.core.rooms.shares import SharesRoom
from hetrdzv.core.rooms.snapshots import SnapshotsRoom

ROOMS: Sequence[Room] = (
    SharesRoom(),
    NetworkRoom(),
    SnapshotsRoom(),
)
