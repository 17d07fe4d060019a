"""Which nodes were refused lately since they gave other settings: a group that waits may be waiting for these."""

from collections import deque
from collections.abc import Callable

from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import Conflict
from hetrdzv.protocol.reasons.events import node_refused
from hetrdzv.protocol.reasons.reason import Reason

LATELY_S = 60.0
"""For how long a refusal is shown (seconds)."""

MOST = 4
"""How many nodes of a group, and how many differences of each, are shown."""

MOST_KEPT = 1024
"""How many refusals are kept, of all groups together."""


class Refusals:
    """The latest refusals of all groups. `now` is the server's clock (seconds)."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._latest: deque[tuple[float, str, str, Reason]] = deque(maxlen=MOST_KEPT)

    def note(self, group_id: str, node_id: str, conflict: Conflict) -> None:
        """A node was refused."""
        refusal = node_refused(node_id, conflict.differences[:MOST])
        self._latest.append((self._now(), group_id, node_id, refusal))

    def lately(self, group: Group) -> tuple[Reason, ...]:
        """Those of a group as it is since it was made, but for nodes that are in it nevertheless; from any thread."""
        since, here = self._now() - LATELY_S, {node.node_id for node in group.live}
        by_node = {
            node_id: refusal
            for at, group_id, node_id, refusal in tuple(self._latest)
            if group_id == group.group_id and at > since and at >= group.created_at and node_id not in here
        }
        return tuple(by_node.values())[-MOST:]
