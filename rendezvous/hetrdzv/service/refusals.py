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
    """The refusals of all groups.

    Args:
        now: the server's clock (seconds).
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._of: dict[str, dict[str, tuple[float, Reason]]] = {}

    def note(self, group_id: str, node_id: str, conflict: Conflict) -> None:
        """A node was refused."""
        of_group = self._of.pop(group_id, {})
        of_group = {
            node: one for node, one in of_group.items() if node != node_id
        }  # a thread may read the other
        of_group[node_id] = self._now(), node_refused(node_id, conflict.differences[:MOST])
        self._of[group_id] = dict(list(of_group.items())[-MOST:])
        if len(self._of) > MOST_GROUPS:
            del self._of[next(iter(self._of))]

    def forget(self, group_id: str) -> None:
        """A group was deleted."""
        self._of.pop(group_id, None)

    def lately(self, group: Group) -> tuple[Reason, ...]:
        """Those of a group, but for nodes that are in it nevertheless; from any thread."""
        since, here = self._now() - LATELY_S, {node.node_id for node in group.live}
        known = self._of.get(group.group_id, {}).items()
        return tuple(refusal for node, (at, refusal) in known if at > since and node not in here)
