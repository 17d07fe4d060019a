"""What optional features add to the API: handlers of routes, and fields of what it tells of a round."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from hetrdzv.api import shares
from hetrdzv.api.bound import Handlers
from hetrdzv.core.model import Round
from hetrdzv.protocol.requests.joining import JoinRequest
from hetrdzv.service.progress.table import Seen

HANDLERS: Sequence[Handlers] = (shares.handlers,)

JOIN_CHECKS: Sequence[Callable[[JoinRequest], None]] = (shares.check_speeds,)
"""Each refuses joins that make no sense."""

OF_ROUND: Sequence[Callable[[Round, Mapping[int, Seen], AbstractSet[str]], Mapping[str, Any]]] = (
    shares.of_round,
)
"""Each gets a round, how far its workers have come, by global rank, and the nodes that are shown."""
