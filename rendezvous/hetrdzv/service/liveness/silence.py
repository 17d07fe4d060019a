"""Judges the silence of nodes: when a lease or a grace has ended although this server listened in time (rule 8).

A server that is late, or did not run at all, must not take that for the silence of its nodes. So its own delays are
measured here, and the leases leave them out.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from math import inf
from typing import Any

from hetrdzv.core.commands import Command, Disconnect, Renew
from hetrdzv.core.model import Group, Node
from hetrdzv.service.liveness.clock import ServedClock
from hetrdzv.service.liveness.leases import Leases, Pace, pace, speaker_of
from hetrdzv.service.timers import TICK_MARGIN_S

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
"""How often the clock is read when nothing else happens (seconds), see `ServedClock`."""

LATE_S = 0.01
"""A delay of the event loop up to this length is not left out of any lease (seconds)."""

LISTEN_TURNS = 12
"""How many turns of the event loop it takes to read what is in the sockets: accept a connection, read it, run what
handles the request, with some to spare."""

STALE_CUTS_S = 1.0
"""How long after a stall or a delay connections may still turn out to have been cut because of it (seconds)."""

HARMLESS_S = 0.25
"""The event loop may be late by this much within `STALE_CUTS_S` without agents giving up on their polls (seconds)."""


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
        self._delays = Delays()
        self._beats_at = inf  # when the clock is read next (seconds on the event loop's clock)
        self._looks_at = inf  # when the timer goes off (seconds on the server's clock)
        self._timer: asyncio.TimerHandle | None = None

    def restore(self, groups: Iterable[Group]) -> None:
        """Groups were loaded: every live node has the longest lease that it can have been granted."""
        self._delays.stalled(self._clock)  # which needs no forgiveness any more
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

    def excuses_cut(self, group_id: str, node_id: str, incarnation: str) -> bool:
        """Whether the open poll of a node may have been cut because this server was late.

        If so, the node has the lease of its group from now: it polls no more, but need not be gone.
        """
        now, late_s = self._clock.now(), max(0.0, asyncio.get_running_loop().time() - self._beats_at)
        if not self._delays.excuse_cuts(now, late_s):
            return False
        if (group := self._groups().get(group_id)) is not None:
            self.leases.start_over(group_id, node_id, incarnation, group.spec.lease_s, now)
            self._set_timer()
        return True

    # -- what this server does -------------------------------------------------------------------------------

    async def beat(self) -> float:
        """Let `HEARTBEAT_S` seconds pass; by how much the event loop was late then (seconds), which no lease counts."""
        loop = asyncio.get_running_loop()
        self._beats_at, due = loop.time() + HEARTBEAT_S, self._clock.now() + HEARTBEAT_S
        await asyncio.sleep(HEARTBEAT_S)
        late_s = max(0.0, loop.time() - self._beats_at)
        self.forgive_stall()
        now = self._clock.now()
        counted_s = min(late_s, now - due)  # a stall is no time at all by our clock
        if counted_s > LATE_S:
            self.leases.excuse(counted_s)
            self._delays.late(counted_s, now)
        return late_s

    def forgive_stall(self) -> None:
        """After a time in which this process did not run, every node has a full lease again (rule 8)."""
        if self._delays.stalled(self._clock):
            logger.warning("this process stalled for more than a second: every node has a full lease again")
            self.leases.forgive(self._clock.now())

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

    async def _look(self) -> None:
        """Have the groups judged in which a lease or a grace has ended."""
        await self.listen()
        self._timer, self._looks_at = None, inf
        self.forgive_stall()
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


class Delays:
    """Remembers the latest pauses in which this process did not run, and how late its event loop was."""

    def __init__(self) -> None:
        self._stalls_seen = 0
        self._stalled_at = -inf
        self._late: deque[tuple[float, float]] = deque()  # when each delay was noticed, and its length

    def stalled(self, clock: ServedClock) -> bool:
        """Whether there was a stall since the last call."""
        now = clock.now()
        if clock.stalls == self._stalls_seen:
            return False
        self._stalls_seen, self._stalled_at = clock.stalls, now
        return True

    def late(self, seconds: float, now: float) -> None:
        """The event loop was late by so many seconds."""
        self._forget(now)
        self._late.append((now, seconds))

    def excuse_cuts(self, now: float, late_s: float) -> bool:
        """Whether a connection that is found cut now may have been cut because this server was late.

        Agents give up on polls that are not answered in time.

        Args:
            late_s: how late the event loop is right now (seconds).
        """
        self._forget(now)
        late_s += sum(seconds for _, seconds in self._late)
        return now < self._stalled_at + STALE_CUTS_S or late_s > HARMLESS_S

    def _forget(self, now: float) -> None:
        while self._late and now >= self._late[0][0] + STALE_CUTS_S:
            self._late.popleft()
