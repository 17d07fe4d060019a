"""Which nodes were refused lately since they gave other settings: a group that waits may be waiting for these."""

from collections.abc import Callable

from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import Conflict
from hetrdzv.protocol.reasons.events import node_refused
from hetrdzv.protocol.reasons.reason import Reason

LATELY_S = 60.0
"""For how long a refusal is shown (seconds)."""

MOST = 4
"""How many nodes of a group, and how many differences of each, are shown."""

MOST_GROUPS = 1024
"""Of how many groups refusals are kept."""


class Refusals:
    """The latest refusals of each group. `now` is the server's clock (seconds)."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._of: dict[str, tuple[tuple[float, str, Reason], ...]] = {}

    def record_refusal(self, group_id: str, node_id: str, conflict: Conflict) -> None:
        """A node was refused."""
        others = [one for one in self._of.pop(group_id, ()) if one[1] != node_id]
        refusal = node_refused(node_id, conflict.differences[:MOST])
        self._of[group_id] = (*others, (self._now(), node_id, refusal))[-MOST:]
        if len(self._of) > MOST_GROUPS:
            del self._of[next(iter(self._of))]

    def recent_refusals(self, group: Group) -> tuple[Reason, ...]:
        """Those of a group as it is since it was made, but for nodes that are in it nevertheless; from any thread."""
        since = self._now() - LATELY_S
        return tuple(
            refusal
            for at, node_id, refusal in self._of.get(group.group_id, ())
            if at > since
            and at >= group.created_at
            and ((node := group.nodes.get(node_id)) is None or node.gone)
        )
