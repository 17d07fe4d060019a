"""Which nodes were refused lately since they gave other settings: a group that waits may be waiting for these."""

from collections.abc import Callable

from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import Conflict
from hetrdzv.protocol.reasons.events import node_refused
from hetrdzv.protocol.reasons.reason import Reason

LATELY_S = 60.0
"""For how long a refusal is told (seconds)."""

MOST = 4
"""How many nodes of a group, and how many differences of each, are told."""

MOST_GROUPS = 1024
"""Of how many groups refusals are kept."""

MOST_LOGGED = 64
"""Of how many nodes of a group that have not joined since a refusal becomes an event."""


class Refusals:
    """The refusals of all groups.

    Args:
        now: the server's clock (seconds).
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._of: dict[str, dict[str, tuple[float, Reason]]] = {}
        self._logged: dict[str, set[str]] = {}  # by group: the nodes whose refusal is an event

    def note(self, group_id: str, node_id: str, conflict: Conflict) -> Reason | None:
        """A node was refused.

        Returns:
            what is to become an event; None: the group has one of that node, which has not joined since, or many.
        """
        refusal = node_refused(node_id, conflict.differences[:MOST])
        of_group = dict(self._of.pop(group_id, {}))  # another one: a thread may be reading this
        of_group.pop(node_id, None)
        of_group[node_id] = self._now(), refusal
        self._of[group_id] = dict(list(of_group.items())[-MOST:])
        if len(self._of) > MOST_GROUPS:
            self._logged.pop(oldest := next(iter(self._of)), None)
            del self._of[oldest]
        logged = self._logged.setdefault(group_id, set())
        if node_id in logged or len(logged) >= MOST_LOGGED:
            return None
        logged.add(node_id)
        return refusal

    def published(self, group_id: str, group: Group | None) -> None:
        """A group has changed: a node that has joined after all is refused no longer, also once it has left again.

        Args:
            group: None if it was deleted.
        """
        logged = self._logged.pop(group_id, set())
        if group is not None and (still := {node for node in logged if not _is_here(group, node)}):
            self._logged[group_id] = still
        known = self._of.get(group_id)
        if known is None:
            return
        left = (
            {} if group is None else {node: one for node, one in known.items() if not _is_here(group, node)}
        )
        if left:
            self._of[group_id] = left
        else:
            del self._of[group_id]

    def lately(self, group: Group) -> tuple[Reason, ...]:
        """Those of a group, but for nodes that are in it nevertheless; from any thread."""
        since = self._now() - LATELY_S
        known = self._of.get(group.group_id, {}).items()
        return tuple(refusal for node, (at, refusal) in known if at > since and not _is_here(group, node))


def _is_here(group: Group, node_id: str) -> bool:
    node = group.nodes.get(node_id)
    return node is not None and not node.gone
