"""When nodes were last heard, and when their leases end: a table beside the frozen groups, changed in place.

A server that is late, or did not run at all, must not take that for the silence of its nodes (rule 8). So leases are
measured by a clock that goes on by one beat per beat of the event loop (clock.py), and at each beat all are looked at.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from hetrdzv.core.commands import Command, Disconnect, Join, Leave, RenewLease, Report, StartDaemon
from hetrdzv.core.directive import acknowledges_stop
from hetrdzv.core.model import Group, Node
from hetrdzv.core.rounds.timers import SUSPECT_GRACE_S
from hetrdzv.service.clock import ServedClock
from hetrdzv.service.poll_timing import PollTiming, choose_poll_timing

logger = logging.getLogger(__name__)

SERVER_STALL_S = 1.0
"""After a beat that is late by more than this every node has a full lease again: agents may have given up on their
polls, and wait before they try again (seconds)."""

MIN_LATENESS_TO_EXCUSE_S = 0.25
"""A beat that is late by more than this may be why connections are found cut (seconds) ..."""

DISCONNECTS_EXCUSED_FOR_S = 1.0
"""... for so long after it (seconds)."""


@dataclass(slots=True)
class _Lease:
    """The lease of one node."""

    incarnation: str
    heard_at: float  # when it was last heard (seconds on the server's clock): then its lease began
    lease_s: float  # what it was granted (seconds)
    disconnected_at: float = inf  # when its poll was cut; infinite: it was not since it was last heard

    @property
    def ends_at(self) -> float:
        """When it is lost (seconds)."""
        return min(self.heard_at + self.lease_s, self.disconnected_at + SUSPECT_GRACE_S)


class LeaseTable:
    """The leases of all nodes of a server, whose committed groups are `groups`."""

    def __init__(self, clock: ServedClock, groups: Callable[[], Mapping[str, Group]]) -> None:
        self._clock = clock
        self._groups = groups
        self._of: dict[str, dict[str, _Lease]] = {}
        self._overdue: dict[str, list[str]] = {}  # as of the last look
        self.count = 0  # of all leases
        self._late_at = -inf  # when a beat was last late (seconds on the server's clock)

    # -- what nodes do ---------------------------------------------------------------------------------------

    def on_command(self, group: Group, command: Command, now: float) -> None:
        """A command was applied to a group: its sender has a new lease, a node that was cut off a grace."""
        if isinstance(command, Disconnect):
            lease = self._find_lease(group.group_id, command.node_id, command.incarnation)
            if lease is not None:
                lease.disconnected_at = min(lease.disconnected_at, now)
        elif (speaker := find_command_sender(command)) is not None:
            polls = isinstance(command, RenewLease)
            self.record_contact(group.group_id, *speaker, group.spec.lease_s, now, polls=polls)

    def record_contact(
        self,
        group_id: str,
        node_id: str,
        incarnation: str,
        lease_s: float,
        now: float,
        *,
        polls: bool = False,
    ) -> None:
        """An agent was heard; only if it polls can its lease become shorter, since no earlier poll is open."""
        leases = self._of.setdefault(group_id, {})
        old = leases.get(node_id)
        if old is None:
            self.count += 1
        elif not polls and old.incarnation == incarnation:
            lease_s = max(lease_s, old.lease_s)
        leases[node_id] = _Lease(incarnation, now, lease_s)

    def grant_lease(self, group: Group, node_id: str, incarnation: str) -> PollTiming:
        """How a node is to keep in touch from now on; it is granted that lease."""
        promised = choose_poll_timing(group.spec.lease_s, self.count)
        lease = self._find_lease(group.group_id, node_id, incarnation)
        if lease is not None:
            lease.lease_s = max(lease.lease_s, promised.lease_s)
        elif node_id not in self._of.get(group.group_id, ()) and node_id in group.nodes:
            # its join took longer to be stored than its lease lasted
            self.record_contact(group.group_id, node_id, incarnation, promised.lease_s, self._clock.now())
        return promised

    def heard_at(self, group: Group, node: Node) -> float:
        """When a node was last heard (seconds on the server's clock)."""
        lease = self._of.get(group.group_id, {}).get(node.node_id)
        return lease.heard_at if lease is not None else node.joined_at

    def _find_lease(self, group_id: str, node_id: str, incarnation: str) -> _Lease | None:
        lease = self._of.get(group_id, {}).get(node_id)
        return lease if lease is not None and lease.incarnation == incarnation else None

    # -- what the server does --------------------------------------------------------------------------------

    def begin_beat(self) -> None:
        """Begin another beat."""
        late_s, now = self._clock.begin_beat(), self._clock.now()
        if late_s > MIN_LATENESS_TO_EXCUSE_S:
            self._late_at = now
        if late_s > SERVER_STALL_S:
            logger.warning("this process was paused for %.1f s: renewing the lease of every node", late_s)
            for leases in self._of.values():
                for lease in leases.values():
                    lease.heard_at, lease.disconnected_at = now, inf

    def may_have_caused_disconnect(self) -> bool:
        """Whether a poll that is found cut now may have been cut because this server was late."""
        self.begin_beat()
        return self._clock.now() < self._late_at + DISCONNECTS_EXCUSED_FOR_S

    def restore_leases(self, groups: Iterable[Group]) -> None:
        """Groups were loaded: every live node has the longest lease from now that it can have been granted."""
        groups, now = list(groups), self._clock.now()
        self._of, self._overdue, self.count = {}, {}, 0
        nodes = sum(len(group.nodes) for group in groups)
        for group in groups:
            lease_s = choose_poll_timing(group.spec.lease_s, nodes).lease_s
            for node in group.nodes.values():
                if not node.is_gone:
                    self.record_contact(group.group_id, node.node_id, node.incarnation, lease_s, now)

    def forget_group(self, group_id: str) -> None:
        """A group was deleted."""
        self.count -= len(self._of.pop(group_id, {}))
        self._overdue.pop(group_id, None)

    # -- who is overdue --------------------------------------------------------------------------------------

    def find_expired_groups(self) -> list[str]:
        """The groups in which a lease or a grace has ended; forgets the nodes that are gone."""
        return [group_id for group_id in list(self._of) if self.has_expired(group_id)]

    def has_expired(self, group_id: str) -> bool:
        """Whether a lease or a grace of a group has ended."""
        self._overdue.pop(group_id, None)
        now, leases = self._clock.now(), self._of.get(group_id, {})
        overdue = [node_id for node_id, lease in leases.items() if lease.ends_at < now]
        if not overdue:
            return False
        group = self._groups().get(group_id)
        if group is None:
            self.forget_group(group_id)
            return False
        for node_id in overdue:
            if (node := group.nodes.get(node_id)) is None or node.is_gone:
                del leases[node_id]
                self.count -= 1
        self._overdue[group_id] = [node_id for node_id in overdue if node_id in leases]
        return bool(self.expired_nodes(group, now))

    def expired_nodes(self, group: Group, now: float) -> Sequence[tuple[Node, float]]:
        """The live nodes whose lease or grace has ended, each with the length of its lease, as of the last look."""
        leases = self._of.get(group.group_id, {})
        return [
            (node, lease.lease_s)
            for node_id in sorted(self._overdue.get(group.group_id, ()))
            if (lease := leases.get(node_id)) is not None
            and (node := group.nodes.get(node_id)) is not None
            and node.departed_at is None
            and lease.ends_at < now
            # unless the commit failed that was to note the cut
            and (node.disconnected_at is not None or lease.heard_at + lease.lease_s < now)
        ]


def find_command_sender(command: Command) -> tuple[str, str] | None:
    """The node id and incarnation of the agent that sent a command, or None."""
    match command:
        case Join() | RenewLease() | Report() | Leave():
            return command.node_id, command.incarnation
        case StartDaemon():
            return command.master, command.incarnation
        case _:
            return None


def is_heartbeat(group: Group, command: RenewLease) -> bool:
    """Whether a poll renews a lease and changes nothing else.

    It does change something if the node was suspect, if another seemed to take its place, or if it shows only now that
    it knows of the end of its round.
    """
    node = group.nodes.get(command.node_id)
    return node is None or (
        node.disconnected_at is None and not acknowledges_stop(group, node, command.holds)
    )
