"""When nodes were last heard, and when their leases end: a table beside the frozen groups, changed in place.

No I/O and no clock of its own. A renewal costs the same however many nodes there are; deadlines are in a heap, in which
a node is moved only when its old deadline comes up.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hetrdzv.core.commands import Command, FeatureCommand, Join, Leave, Renew, Report, StartDaemon
from hetrdzv.core.directive import has_got_stop
from hetrdzv.core.model import Group, Node
from hetrdzv.core.rounds.timers import SUSPECT_GRACE_S
from hetrdzv.protocol.states import ReportKind

POLLS_PER_S = 500
"""How many polls a second a server has time for."""

MAX_POLL_S = 30.0
"""No poll waits longer (seconds)."""

SPARE_PLACES = 64
"""How many more entries than nodes the heap may have; the rest are out of date."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a node keeps in touch.

    Attributes:
        poll_s: how long its next poll may wait (seconds).
        lease_s: without a heartbeat for this long it is lost (seconds).
    """

    poll_s: float
    lease_s: float


def pace(lease_s: float, nodes: int) -> Pace:
    """How a node keeps in touch: few nodes poll twice per lease, more of them as often as the server has time for.

    Args:
        lease_s: the group's setting (seconds).
        nodes: how many this server has in all its groups.
    """
    poll_s = min(max(lease_s / 2, nodes / POLLS_PER_S), MAX_POLL_S)
    return Pace(poll_s, max(lease_s, 2 * poll_s))


@dataclass(slots=True)
class _Entry:
    """What the table knows of one node.

    Attributes:
        heard_at: when it was last heard (seconds on the server's clock): then its lease began.
        lease_s: what it was granted (seconds).
        cut_at: when its poll was cut; None once it is heard again.
        due: its place in the heap; None: it is not there.
    """

    incarnation: str
    heard_at: float
    lease_s: float
    cut_at: float | None = None
    due: float | None = None


class Leases:
    """The leases of all nodes of a server, on its clock, which stops while it cannot listen."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, _Entry]] = {}
        self._heap: list[tuple[float, str, str]] = []
        self._overdue: dict[str, set[str]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    # -- what nodes do ---------------------------------------------------------------------------------------

    def heard(
        self,
        group_id: str,
        node_id: str,
        incarnation: str,
        lease_s: float,
        now: float,
        *,
        polls: bool = False,
    ) -> None:
        """An agent was heard: its lease starts again.

        Args:
            lease_s: what it is granted at least (seconds).
            polls: whether it polls: only then can its lease become shorter, since no earlier poll is open.
        """
        entries = self._groups.setdefault(group_id, {})
        entry = entries.get(node_id)
        if entry is None:
            entry = entries[node_id] = _Entry(incarnation, now, lease_s)
            self._count += 1
        else:
            if not polls and entry.incarnation == incarnation:
                lease_s = max(lease_s, entry.lease_s)
            entry.incarnation, entry.heard_at, entry.lease_s = incarnation, now, lease_s
            entry.cut_at = None
        self._schedule(group_id, node_id, entry)

    def grant(self, group_id: str, node_id: str, incarnation: str, lease_s: float) -> None:
        """An agent is promised a lease (seconds) from when it was last heard, if that is longer than what it has."""
        entry = self._groups.get(group_id, {}).get(node_id)
        if entry is not None and entry.incarnation == incarnation:
            entry.lease_s = max(entry.lease_s, lease_s)

    def suspect(self, group_id: str, node_id: str, incarnation: str, now: float) -> None:
        """An agent's poll was cut: it has a grace period to be heard again."""
        entry = self._groups.get(group_id, {}).get(node_id)
        if entry is not None and entry.incarnation == incarnation and entry.cut_at is None:
            entry.cut_at = now
            self._schedule(group_id, node_id, entry)

    def heard_at(self, group_id: str, node: Node) -> float:
        """When a node was last heard (seconds on the server's clock)."""
        entry = self._groups.get(group_id, {}).get(node.node_id)
        return entry.heard_at if entry is not None else node.heard_at

    def _schedule(self, group_id: str, node_id: str, entry: _Entry) -> None:
        until = self._until(entry)
        if entry.due is None or until < entry.due:
            entry.due = until
            heapq.heappush(self._heap, (until, group_id, node_id))
            if len(self._heap) > 2 * self._count + SPARE_PLACES:  # most are places that nodes have left
                self._heap = [
                    (other.due, group, node)
                    for group, entries in self._groups.items()
                    for node, other in entries.items()
                    if other.due is not None
                ]
                heapq.heapify(self._heap)

    def _until(self, entry: _Entry) -> float:
        until = entry.heard_at + entry.lease_s
        return until if entry.cut_at is None else min(until, entry.cut_at + SUSPECT_GRACE_S)

    # -- what the server does --------------------------------------------------------------------------------

    def renew_all(self, now: float) -> None:
        """The server stood still, so it could hear nobody: every node has a full lease from now (rule 8)."""
        for entries in self._groups.values():
            for entry in entries.values():
                entry.heard_at, entry.cut_at = now, None

    def restore(self, groups: Iterable[Group], now: float) -> None:
        """Groups were loaded: every live node has the longest lease from now that it can have been granted."""
        groups = list(groups)
        self._groups, self._heap, self._overdue, self._count = {}, [], {}, 0
        nodes = sum(len(group.nodes) for group in groups)
        for group in groups:
            lease_s = pace(group.spec.lease_s, nodes).lease_s
            for node in group.nodes.values():
                if not node.gone:
                    self.heard(group.group_id, node.node_id, node.incarnation, lease_s, now)

    def revert(self, group: Group, now: float) -> None:
        """A change of a group was not stored: a node whose agent it would have replaced has a full lease from now."""
        entries = self._groups.get(group.group_id, {})
        for node in group.nodes.values():
            entry = entries.get(node.node_id)
            if not node.gone and entry is not None and entry.incarnation != node.incarnation:
                self.heard(group.group_id, node.node_id, node.incarnation, entry.lease_s, now)

    def forget(self, group_id: str) -> None:
        """A group was deleted."""
        self._count -= len(self._groups.pop(group_id, {}))
        self._overdue.pop(group_id, None)

    # -- who is overdue --------------------------------------------------------------------------------------

    def next_at(self) -> float | None:
        """When to `advance` next (seconds on the server's clock); None: there is no need."""
        return self._heap[0][0] if self._heap else None

    def advance(self, now: float) -> None:
        """Look at the leases that may have ended."""
        while self._heap and self._heap[0][0] < now:
            due, group_id, node_id = heapq.heappop(self._heap)
            entry = self._groups.get(group_id, {}).get(node_id)
            if entry is None or entry.due != due:
                continue  # there is a newer place for it
            entry.due = None
            if self._until(entry) < now:
                self._overdue.setdefault(group_id, set()).add(node_id)
            else:
                self._schedule(group_id, node_id, entry)

    def groups_overdue(self) -> list[str]:
        """The groups that have nodes whose leases may have ended."""
        return sorted(self._overdue)

    def lapsed(self, group: Group, now: float) -> Sequence[tuple[Node, float]]:
        """The live nodes of a group whose lease or grace has ended, each with the length of its lease (seconds)."""
        entries = self._groups.get(group.group_id, {})
        return [
            (node, entry.lease_s)
            for node_id in sorted(self._overdue.get(group.group_id, ()))
            if (entry := entries.get(node_id)) is not None
            and (node := group.nodes.get(node_id)) is not None
            and node.gone_at is None
            and node.incarnation == entry.incarnation
            and self._until(entry) < now
        ]

    def ends_at(self, group: Group, node: Node) -> float:
        """When a live node is lost if it is not heard again (seconds on the server's clock)."""
        entry = self._groups.get(group.group_id, {}).get(node.node_id)
        return node.heard_at + group.spec.lease_s if entry is None else self._until(entry)

    def settled(self, group: Group, now: float) -> None:
        """A group was judged and committed: drop the nodes that are gone, and put back those that were heard."""
        entries = self._groups.get(group.group_id, {})
        for node_id in list(self._overdue.get(group.group_id, ())):
            node, entry = group.nodes.get(node_id), entries.get(node_id)
            if node is None or node.gone or entry is None:
                self._overdue[group.group_id].discard(node_id)
                if entry is not None and entry.due is None:
                    del entries[node_id]
                    self._count -= 1
            elif self._until(entry) >= now:
                self._overdue[group.group_id].discard(node_id)
                self._schedule(group.group_id, node_id, entry)
        if not self._overdue.get(group.group_id, True):
            del self._overdue[group.group_id]


def speaker_of(command: Command) -> tuple[str, str] | None:
    """The node id and incarnation of the agent that sent a command, or None."""
    match command:
        case Join() | Renew() | Report() | Leave():
            return command.node_id, command.incarnation
        case StartDaemon():
            return command.master, command.incarnation
        case _:
            return None


def is_heartbeat(group: Group, command: Command) -> bool:
    """Whether a command renews a lease and changes nothing else.

    It does change something if the node was suspect, if another seemed to take its place, or if it shows only now that
    it knows of the end of its round.
    """
    if not isinstance(command, Renew):
        return False
    node = group.nodes.get(command.node_id)
    return node is None or (node.cut_at is None and not has_got_stop(group, node, command.holds))


def is_one_of_many(command: Command) -> bool:
    """Whether all nodes of a group say this at about the same time, so that many are handled at once."""
    match command:
        case Join() | Renew():
            return True
        case Report():
            return command.kind in (ReportKind.STARTED, ReportKind.READY_TO_STOP)
        case FeatureCommand():
            return command.one_of_many
    return False
