"""What optional features add to the API: handlers of routes, and fields of what it tells of groups and rounds."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from hetrdzv.api import shares, snapshots
from hetrdzv.api.bound import Handlers
from hetrdzv.core.model import Group, Round
from hetrdzv.protocol.requests.joining import JoinRequest
from hetrdzv.service.progress.table import Seen

HANDLERS: Sequence[Handlers] = (
    shares.handlers,
    snapshots.handlers,
)

JOIN_CHECKS: Sequence[Callable[[JoinRequest], None]] = (shares.check_speeds,)
"""Each refuses joins that make no sense."""

OF_GROUP: Sequence[Callable[[Group], Mapping[str, Any]]] = (snapshots.of_group,)
"""Each gets a group, for what is told of it in brief."""

OF_ROUND: Sequence[Callable[[Round, Mapping[int, Seen], AbstractSet[str]], Mapping[str, Any]]] = (
    shares.of_round,
)
"""Each gets a round, how far its workers have come, by global rank, and the nodes that are shown."""
