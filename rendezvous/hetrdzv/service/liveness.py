"""When nodes were last heard: heartbeats that change memory only, and the full lease after a stall."""

from dataclasses import replace

from hetrdzv.core.commands import Command, Renew
from hetrdzv.core.model import Group
from hetrdzv.service.clock import ServedClock

STALE_CUTS_S = 1.0
"""How long after a stall connections may still turn out to have been cut during it (seconds)."""


class Stalls:
    """Notices pauses in which this process did not run."""

    def __init__(self) -> None:
        self._seen = 0
        self._last_at = -STALE_CUTS_S

    def noticed(self, clock: ServedClock) -> bool:
        """Whether there was a stall since the last call."""
        now = clock.now()
        if clock.stalls == self._seen:
            return False
        self._seen, self._last_at = clock.stalls, now
        return True

    def forget(self) -> None:
        """A new clock counts from zero."""
        self._seen = 0

    def are_recent(self, now: float) -> bool:
        """Whether a connection that is found cut now may have been cut because of a stall.

        Agents gave up on their polls during the stall; they have their lease to come back.
        """
        return now < self._last_at + STALE_CUTS_S


def is_heartbeat(group: Group, command: Command) -> bool:
    """Whether a command renews a lease and changes nothing else.

    It does change something if the node was suspect, or hears only now that its round has ended.
    """
    if not isinstance(command, Renew):
        return False
    node = group.nodes.get(command.node_id)
    return node is None or (node.cut_at is None and not group.hears_stop(node))


def with_full_leases(group: Group, now: float) -> Group:
    """The group with a full lease from now for every node except those whose connection was cut."""
    nodes = {
        node_id: replace(node, heard_at=now) if not node.gone and node.cut_at is None else node
        for node_id, node in group.nodes.items()
    }
    return replace(group, nodes=nodes)
