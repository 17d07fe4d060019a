"""Judges the silence of nodes: when a lease or a grace has ended although this server listened in time (rule 8).

A server that is late, or did not run at all, must not take that for the silence of its nodes. So the clock by which
leases are measured goes on by one beat per beat of the event loop (clock.py).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from math import inf
from typing import Any

from hetrdzv.core.commands import Command, Disconnect, Renew
from hetrdzv.core.model import Group, Node
from hetrdzv.service.liveness.clock import BEAT_S, ServedClock
from hetrdzv.service.liveness.leases import Leases, Pace, pace, speaker_of
from hetrdzv.service.timers import TICK_MARGIN_S

logger = logging.getLogger(__name__)

LISTEN_TURNS = 12
"""How many turns of the event loop it takes to read what is in the sockets: accept a connection, read it, run what
handles the request, with some to spare."""

STALL_S = 1.0
"""After a beat that is late by more than this every node has a full lease again: agents may have given up on their
polls, and wait before they try again (seconds)."""

LATE_CUTS_S = 0.25
"""A beat that is late by more than this may be why connections are found cut (seconds) ..."""

STALE_CUTS_S = 1.0
"""... for so long after it (seconds)."""


class Silence:
    """The leases of all nodes, the timer for the next that may end, and the delays of this server.

    Args:
        clock: the server's clock.
        groups: the committed groups by id.
        spawn: runs a task for as long as the server does.
        judge: called with the id of a group in which a lease or a grace has ended.

    Attributes:
        leases: what the core asks who is lost.
    """

    def __init__(
        self,
        clock: ServedClock,
        groups: Callable[[], Mapping[str, Group]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        judge: Callable[[str], None],
    ) -> None:
        self.leases = Leases()
        self._clock = clock
        self._groups = groups
        self._spawn = spawn
        self._judge = judge
        self._late_at = -inf  # when a beat was last as late as that (seconds on the server's clock)
        self._looks_at = inf  # when the timer goes off (seconds on the server's clock)
        self._timer: asyncio.TimerHandle | None = None

    def restore(self, groups: Iterable[Group]) -> None:
        """Groups were loaded: every live node has the longest lease that it can have been granted."""
        self.leases.restore(groups, self._clock.now())
        self._set_timer()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    # -- what nodes do ---------------------------------------------------------------------------------------

    def note(self, group: Group, command: Command, now: float) -> None:
        """A command was applied to a group: its sender has a new lease, a node that was cut off a grace."""
        if isinstance(command, Disconnect):
            self.leases.suspect(group.group_id, command.node_id, command.incarnation, now)
        elif (speaker := speaker_of(command)) is not None:
            polls = isinstance(command, Renew)
            self.leases.heard(group.group_id, *speaker, group.spec.lease_s, now, polls=polls)
        else:
            return
        self._set_timer()

    def heard_at(self, group: Group, node: Node) -> float:
        """When a node was last heard (seconds on the server's clock)."""
        return self.leases.heard_at(group.group_id, node)

    def promise(self, group: Group, node_id: str, incarnation: str) -> Pace:
        """How a node is to keep in touch from now on; it is granted that lease."""
        promised = pace(group.spec.lease_s, len(self.leases))
        self.leases.grant(group.group_id, node_id, incarnation, promised.lease_s)
        return promised

    def excuses_cut(self) -> bool:
        """Whether a poll that is found cut now may have been cut because this server was late."""
        return self._clock.late_s > LATE_CUTS_S or self._clock.now() < self._late_at + STALE_CUTS_S

    # -- what this server does -------------------------------------------------------------------------------

    async def beat(self) -> float:
        """Let a beat pass; returns by how much the event loop was late then (seconds)."""
        await asyncio.sleep(BEAT_S)
        return self._begin_beat()

    def _begin_beat(self) -> float:
        late_s = self._clock.beat()
        if late_s > LATE_CUTS_S:
            self._late_at = self._clock.now()
        if late_s > STALL_S:
            logger.warning("this process stood still for %.1f s: every node has a full lease again", late_s)
            self.leases.renew_all(self._clock.now())
        return late_s

    # -- judging ---------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Set the timer for the next lease or grace that may end."""
        at = self.leases.next_at()
        if at is None or at >= self._looks_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = at
        wait_s = max(0.0, at - self._clock.now()) + TICK_MARGIN_S
        self._timer = asyncio.get_running_loop().call_later(wait_s, lambda: self._spawn(self._look()))

    async def listen(self) -> None:
        """Read what is in the sockets before anybody is judged."""
        for _ in range(LISTEN_TURNS):
            await asyncio.sleep(0)
        self._begin_beat()

    async def _look(self) -> None:
        """Have the groups judged in which a lease or a grace has ended."""
        await self.listen()
        self._timer, self._looks_at = None, inf
        now = self._clock.now()
        self.leases.advance(now)
        for group_id in self.leases.groups_overdue():
            group = self._groups().get(group_id)
            if group is None:
                self.leases.forget(group_id)
                continue
            self.leases.settled(group, now)
            if self.leases.lapsed(group, now):
                self._judge(group_id)
        self._set_timer()
