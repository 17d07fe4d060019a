"""The only writer of groups: command -> step -> commit -> reply.

Drives the ledger (what is committed), the timers (when time alone changes a group), the watchers (who waits for news)
and the retention of groups that nobody needs any more. A request never sees uncommitted state.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any

from hetrdzv.core.commands import Command, Disconnect, Join, Put, Renew, Report, Tick
from hetrdzv.core.directive import Directive, Heading, directive, heading
from hetrdzv.core.group import empty, step
from hetrdzv.core.model import Group, Node
from hetrdzv.core.phrasing import names
from hetrdzv.core.timers import deadline
from hetrdzv.core.transitions import require_speaker
from hetrdzv.protocol.errors import (
    HetError,
    Refused,
    ServerStopping,
    StorageError,
    UnknownGroup,
)
from hetrdzv.service.caller import Caller
from hetrdzv.service.clock import MAX_STALL_S, ServedClock
from hetrdzv.service.history import Place, life_of
from hetrdzv.service.ledger import Change, Ledger
from hetrdzv.service.liveness import Leases, Pace, Stalls, is_heartbeat, is_one_of_many, pace, speaker_of
from hetrdzv.service.metrics import Metrics
from hetrdzv.service.retention import Retention, require_places, require_room
from hetrdzv.service.timers import TICK_MARGIN_S, Timers
from hetrdzv.service.watchers import FOLLOWERS, Watchers
from hetrdzv.settings import DEFAULT_LIMITS, Limits
from hetrdzv.storage.base import StateStore
from hetrdzv.storage.records import StoredEvent

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
"""How often the clock is read when nothing else happens (seconds), see `ServedClock`."""

LATE_S = 0.01
"""How late the event loop may be without anybody being excused for it (seconds)."""

LISTEN_TURNS = 6
"""How many turns of the event loop it takes to read what is in its sockets: accept a connection, read it, run what
handles the request, with some to spare."""

RETRY_S = 1.0
"""How long to wait before retrying what failed (seconds)."""


class Service:
    """All groups of one store.

    Args:
        store: where state is kept; closed by the service.
        make_clock: makes the clock from the store's high-water mark.
        wall: wall-clock time for events, for people only.
        metrics: outlives this service.
        limits: how many groups of how many nodes are kept, and for how long.
    """

    def __init__(
        self,
        store: StateStore,
        make_clock: Callable[[float], ServedClock] = ServedClock,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        metrics: Metrics | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._make_clock = make_clock
        self._clock = make_clock(0.0)
        self._stalls = Stalls()
        self._leases = Leases()
        self._lease_timer: asyncio.TimerHandle | None = None
        self._unsettled: set[str] = set()  # groups whose conclusions are drawn at the end of this turn
        self._looks_at = inf  # when the lease timer goes off (seconds on the server's clock)
        self._metrics = metrics or Metrics()
        self._limits = limits
        self._ledger = Ledger(store, wall, self._metrics)
        self._watchers = Watchers()
        self._timers = Timers(lambda group_id: self._spawn(self._tick(group_id)))
        self._retention = Retention(limits)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the store and begin to serve.

        Raises:
            StorageError: the store cannot be read, or holds an impossible state.
        """
        await self._load()
        self._spawn(self._commit_forever())
        self._spawn(self._keep_time())

    def begin_stop(self) -> None:
        """Answer every open poll now and refuse new commands."""
        self._stopping = True
        self._watchers.wake_all()

    async def close(self) -> None:
        """Commit what is pending and close the store."""
        self.begin_stop()
        await self._ledger.drain()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._timers.clear()
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        await self._ledger.close(self.now())

    def require_ready(self) -> None:
        """Check that commands are answered: the state is loaded, and no stop has begun.

        Raises:
            ServerStopping, StorageError: what is in the way.
        """
        if self._stopping:
            raise ServerStopping("the server is stopping; try again in a moment, or try another server")
        self._require_loaded()

    def _require_loaded(self) -> None:
        if not self._ledger.is_loaded:
            raise StorageError("the server's state is not loaded; try again in a moment (its log says why)")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- reading: committed state only -----------------------------------------------------------------------

    def groups(self) -> Iterable[Group]:
        """All groups, by name."""
        self._require_loaded()
        return [group for _, group in sorted(self._ledger.groups.items())]

    def group(self, group_id: str) -> Group:
        """One group.

        Raises:
            UnknownGroup: there is none with this name.
        """
        self._require_loaded()
        group = self._ledger.groups.get(group_id)
        if group is None:
            raise _unknown(group_id)
        return group

    def history(self, group_id: str, after: int = 0) -> tuple[list[StoredEvent], int]:
        """The events of a group after number `after`, and the number of its last one."""
        self.group(group_id)
        kept = list(self._ledger.history(group_id))
        return [stored for stored in kept if stored.number > after], kept[-1].number if kept else 0

    def heading(self, group_id: str, node_id: str, incarnation: str) -> Heading:
        """What a node has to do now, without the details; raises as `directive` does."""
        group = self.group(group_id)
        return heading(group, require_speaker(group, node_id, incarnation))

    def directive(self, group_id: str, node_id: str, incarnation: str) -> tuple[Group, Directive]:
        """What a node has to do now, and the group this follows from.

        Raises:
            UnknownGroup, UnknownNode: there is none with this name.
            StaleIncarnation: the node belongs to another agent now.
        """
        group = self.group(group_id)
        node = require_speaker(group, node_id, incarnation)
        return group, directive(group, node, self.now())

    def promise(self, group: Group, node_id: str, incarnation: str, *, direct: bool = False) -> Pace:
        """How a node is to keep in touch from now on; it is granted that lease.

        Args:
            direct: whether its connection breaks when its host does: no proxy is in between.
        """
        found = pace(group.spec.lease_s, len(self._leases), direct=direct)
        self._leases.grant(group.group_id, node_id, incarnation, found.lease_s)
        return found

    def tell(
        self, group_id: str, node_id: str, incarnation: str, *, direct: bool = False
    ) -> tuple[Group, Directive, Pace]:
        """What a node has to do now, and how it keeps in touch: the lease that is told here is granted to it.

        Raises as `directive` does.
        """
        group, found = self.directive(group_id, node_id, incarnation)
        return group, found, self.promise(group, node_id, incarnation, direct=direct)

    def heard_at(self, group: Group, node: Node) -> float:
        """When a node was last heard (seconds on the server's clock)."""
        return self._leases.heard_at(group.group_id, node)

    # -- writing ---------------------------------------------------------------------------------------------

    async def execute(self, group_id: str, command: Command) -> Group:
        """Apply a command to a group; returns once it is committed.

        Returns:
            the group as committed.

        Raises:
            Refused: the group or a limit does not allow it; nothing changed.
            UnknownGroup: there is none, or it was deleted at the same time.
            StorageError: it could not be stored; nothing changed.
            ServerStopping: the server is shutting down.
        """
        head = await self._head(group_id)
        now = self.now()
        if head is None:
            if not isinstance(command, Join | Put):
                raise _unknown(group_id)
            require_room(self._ledger, self._limits)
            head = empty(group_id, now)
        require_places(head, command, self._limits)
        if isinstance(command, Report):
            command = replace(command, age_s=self._clock.age(command.age_s))
        try:
            if is_heartbeat(head, command):
                return await self._renewed(head, command, now)
            if isinstance(command, Tick):
                self._leases.advance(now)
            later = is_one_of_many(command)
            if not later and group_id in self._unsettled:
                self._settle(group_id)
                head = self._ledger.head(group_id) or head
            transition = step(head, command, now, self._leases, settles=not later)
        except Refused:
            await self._ledger.settle(
                group_id
            )  # a refusal must not tell of state that may never be committed
            raise
        self._heard(transition.group, command, now)  # a first join brings the group's lease
        if later:
            self._unsettled.add(group_id)
        group = await self._ledger.propose(group_id, transition.group, transition.events)
        if group is None:
            raise _unknown(group_id)  # it was deleted in the same turn
        return group

    async def _renewed(self, head: Group, command: Command, now: float) -> Group:
        """A heartbeat: nothing to commit, nobody to wake. What was proposed before is committed first, though."""
        speaker = speaker_of(command)
        if speaker is not None:
            require_speaker(head, *speaker)
        self._heard(head, command, now)
        if self._ledger.is_settled(head.group_id):
            return head
        await self._ledger.settle(head.group_id)
        return self.group(head.group_id)

    def _heard(self, group: Group, command: Command, now: float) -> None:
        """Renew the lease of the agent that sent a command, if one did."""
        speaker = speaker_of(command)
        if speaker is not None:
            polls = isinstance(command, Renew)
            self._leases.heard(group.group_id, *speaker, group.spec.lease_s, now, polls=polls)
            self._watch_leases()

    async def delete(self, group_id: str) -> None:
        """Delete a group.

        Raises:
            Refused: it has live nodes, and its job is not over.
        """
        head = await self._head(group_id)
        if head is None:
            raise _unknown(group_id)
        if head.live and not head.state.terminal:
            await self._ledger.settle(group_id)
            live = names(node.node_id for node in head.live)
            raise Refused(f"group '{group_id}' still has nodes ({live}): hetctl cancel {group_id} first")
        await self._ledger.propose(group_id, None)

    async def cut(self, group_id: str, node_id: str, incarnation: str) -> None:
        """Make a node suspect whose open poll was cut, unless a stall of this process may be the reason."""
        self._forgive_stall()
        if self._stalls.are_recent(self.now()):
            return
        try:
            await self.execute(group_id, Disconnect(node_id, incarnation))
        except HetError as error:  # the group is gone, or the server stops: nobody is left to suspect
            logger.debug("cut of %s in group %s: %s", node_id, group_id, error)

    def cut_unless_heard(self, group_id: str, node_id: str, incarnation: str, since: float) -> None:
        """Make a node suspect if it was not heard after a moment (seconds on the server's clock)."""
        group = self._ledger.groups.get(group_id)
        node = group.nodes.get(node_id) if group is not None else None
        if group is not None and node is not None and self.heard_at(group, node) <= since:
            self._spawn(self.cut(group_id, node_id, incarnation))

    async def _head(self, group_id: str) -> Group | None:
        """The state that the next command applies to; None: there is no such group."""
        self.require_ready()
        while not self._ledger.is_settled(group_id) and self._ledger.head(group_id) is None:
            await self._ledger.settle(group_id)  # it is being deleted: what comes next makes another group
            self.require_ready()
        self._forgive_stall()
        return self._ledger.head(group_id)

    # -- committing and loading ------------------------------------------------------------------------------

    async def _commit_forever(self) -> None:
        while True:
            await self._ledger.work()
            try:
                for group_id in sorted(self._unsettled):
                    self._settle(group_id)
                for change in await self._ledger.commit(self.now()):
                    self._published(change)
            except Exception as error:
                bug = None if isinstance(error, StorageError) else error
                logger.error("commit failed, reloading the state: %s", error, exc_info=bug)
                self._ledger.drop(error)
                await self._reload()

    def _settle(self, group_id: str) -> None:
        """Draw the conclusions of what many nodes have said in this turn of the event loop, once for all of them."""
        self._unsettled.discard(group_id)
        head = self._ledger.head(group_id)
        if head is not None and not self._ledger.is_settled(group_id):
            transition = step(head, Tick(), self.now(), self._leases)
            self._ledger.amend(group_id, transition.group, transition.events)

    def _published(self, change: Change) -> None:
        """Count a committed change, set the timer of its group, wake those whom it concerns."""
        now = self.now()
        self._metrics.published(change.group_id, change.old, change.new, change.events, now)
        if change.new is None:
            self._timers.set(change.group_id, None)
            self._leases.forget(change.group_id)
            self._retention.gone(change.group_id)
        else:
            self._set_timer(change.new)
            self._retention.changed(change.group_id, now)
        self._watchers.wake_nodes(change.group_id, change.old, change.new)
        if change.new is None or change.events:
            self._watchers.wake(change.group_id, [FOLLOWERS])

    async def _reload(self) -> None:
        while not self._ledger.is_loaded:
            try:
                await self._load(ticks_after_s=RETRY_S)  # the failure may come from a tick that is due
            except Exception as error:
                logger.error("cannot load the state: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _load(self, ticks_after_s: float = 0.0) -> None:
        """Replace what is in memory by what the store holds, and have everybody who waits look again."""
        snapshot = await self._ledger.read()
        if snapshot.clock > self.now():  # else this process has served all along, and ages go on
            self._clock = self._make_clock(snapshot.clock)
            self._stalls.forget()
        self._unsettled.clear()
        await self._ledger.restore(snapshot, self.now())
        self._leases.restore(self._ledger.groups.values(), self.now())
        self._watch_leases()
        self._timers.clear()
        self._retention.clear()
        self._metrics.forget()
        for group in self._ledger.groups.values():
            self._set_timer(group, ticks_after_s)
        self._watchers.wake_all()

    # -- time ------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The server's clock (seconds this store has been served)."""
        return self._clock.now()

    async def _keep_time(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            late_s = max(0.0, loop.time() - due)
            self._metrics.loop_was_late(late_s)
            self._forgive_stall()
            now = self.now()
            if LATE_S < late_s <= MAX_STALL_S:  # a longer one is no time at all by our clock
                self._leases.excuse(late_s)
            self._ledger.store_clock(now)
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        for group in self._retention.sweep(self._ledger.groups.values(), now):
            self._spawn(self._forget(group))

    async def _forget(self, group: Group) -> None:
        if not self._ledger.is_loaded or self._ledger.head(group.group_id) is not group:
            return  # it is in use again, or may be
        try:
            await self._ledger.propose(group.group_id, None)
        except StorageError as error:  # the next sweep finds it again
            logger.debug("group %s was not forgotten: %s", group.group_id, error)

    def _forgive_stall(self) -> None:
        """After a time in which this process did not run, every node has a full lease again (rule 8)."""
        if self._stalls.noticed(self._clock):
            logger.warning("this process stalled for more than a second: every node has a full lease again")
            self._leases.forgive(self.now())

    def _set_timer(self, group: Group, after_s: float = 0.0) -> None:
        """Set the timer of a group to its deadline, but not before `after_s` seconds from now."""
        at = deadline(group, own_leases=False)
        self._timers.set(group.group_id, None if at is None else max(after_s, at - self.now()))

    def _watch_leases(self) -> None:
        """Set the timer for the next lease that may end."""
        at = self._leases.next_at()
        if at is None or at >= self._looks_at:
            return
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        self._looks_at = at
        wait_s = max(0.0, at - self.now()) + TICK_MARGIN_S
        loop = asyncio.get_running_loop()
        self._lease_timer = loop.call_later(wait_s, lambda: self._spawn(self._look_at_leases()))

    async def _look_at_leases(self) -> None:
        await self._listen()
        self._lease_timer, self._looks_at = None, inf
        self._forgive_stall()
        now = self.now()
        self._leases.advance(now)
        for group_id in self._leases.groups_overdue():
            group = self._ledger.groups.get(group_id)
            if group is None:
                self._leases.forget(group_id)
                continue
            self._leases.settled(group, now)
            if self._leases.lapsed(group, now):
                self._spawn(self._tick(group_id))
        self._watch_leases()

    async def _listen(self) -> None:
        """Hear what is in our sockets: a server that is late must not take that for the silence of its nodes."""
        for _ in range(LISTEN_TURNS):
            await asyncio.sleep(0)

    async def _tick(self, group_id: str) -> None:
        await self._listen()
        try:
            await self.execute(group_id, Tick())
        except HetError as error:  # a load sets the timers again, and a group that is gone needs none
            logger.debug("tick of group %s: %s", group_id, error)
        except Exception:
            logger.exception("a tick of group %s failed", group_id)
            if (group := self._ledger.groups.get(group_id)) is not None:
                self._set_timer(group, RETRY_S)

    # -- waiting ---------------------------------------------------------------------------------------------

    async def watch(
        self,
        group_id: str,
        node_id: str,
        incarnation: str,
        version: str | None,
        wait_s: float,
        *,
        direct: bool = False,
        caller: Caller | None = None,
    ) -> tuple[Group, Directive, Pace] | None:
        """A node's directive as soon as its version differs from the given one, or after `wait_s` seconds.

        Args:
            caller: who waits for it.

        Returns:
            None as soon as the caller is gone.

        Raises:
            Refused: as `directive` does, as soon as it does.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while caller is None or not caller.gone:
            left_s = until - loop.time()
            now_version = self.heading(group_id, node_id, incarnation).version
            if now_version != version or left_s <= 0 or self._stopping:
                return self.tell(group_id, node_id, incarnation, direct=direct)
            await self._watchers.wait(group_id, node_id, left_s, caller)
        return None

    async def follow(
        self, group_id: str, after: Place, quiet_s: float
    ) -> AsyncIterator[tuple[Place, StoredEvent] | None]:
        """The history of a group as it grows, each event with its place; None after `quiet_s` quiet seconds.

        Ends with the group, also if another one is made under its name: its followers begin again there.

        Args:
            after: where to begin; everything is new if it is a place in another group of this name.
        """
        life: int | None = None
        number = after.number
        while not self._stopping:
            try:
                group = self.group(group_id)
            except HetError:
                return
            news, last = self.history(group_id, number)
            if life is None:
                place = after.within(group, last)
                life, number = place.life, place.number
                continue
            if life_of(group) != life:
                return
            for stored in news:
                yield Place(stored.number, life), stored
            number = last
            if not news and not await self._watchers.wait(group_id, FOLLOWERS, quiet_s):
                yield None

    def metrics(self) -> bytes:
        """The metrics of this server in Prometheus' text format, while it answers for the groups."""
        return self._metrics.render(
            self._ledger.groups.values(), now=self.now(), open_polls=self.waiting(), leads=True
        )

    def waiting(self) -> int:
        """How many polls and followers wait."""
        return self._watchers.count()


def _unknown(group_id: str) -> UnknownGroup:
    return UnknownGroup(f"there is no group '{group_id}'")
