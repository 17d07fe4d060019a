"""The only writer: command -> step -> commit -> reply. Wakes watchers, ticks the clock.

What is committed, and how it gets there, is the ledger's business (ledger.py).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any

from hetrdzv.clock import ServedClock
from hetrdzv.core.commands import Command, Disconnect, Drain, Join, Put, Renew, Tick
from hetrdzv.core.directive import Directive, directive
from hetrdzv.core.group import deadline, empty, step
from hetrdzv.core.model import Event, Group
from hetrdzv.core.outlook import hears_stop
from hetrdzv.errors import (
    HetError,
    Refused,
    ServerStopping,
    StaleIncarnation,
    StorageError,
    TooManyGroups,
    TooManyNodes,
    UnknownGroup,
    UnknownNode,
)
from hetrdzv.ledger import RETRY_S, Ledger
from hetrdzv.metrics import Metrics
from hetrdzv.records import StoredEvent
from hetrdzv.settings import DEFAULT_LIMITS, Limits
from hetrdzv.storage.base import StateStore
from hetrdzv.watchers import FOLLOWERS, Watchers

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
"""How often the clock is read when nothing happens (see `ServedClock`)."""

TICK_MARGIN_S = 0.002
"""How long past a deadline the tick comes: boundaries belong to the state before them."""

SWEEP_S, SWEEP_MOST = 5.0, 500
"""How often finished groups are looked for that nobody needs any more (seconds), and how many go at once."""

STALE_CUTS_S = 1.0
"""How long after a stall cut connections are still being found that were cut in it (seconds)."""


class Service:
    """All groups of one store.

    Args:
        store: where state is kept; owned by the service from here on.
        make_clock: makes the clock from the store's high-water mark.
        wall: wall-clock time for events, for people only.
        metrics: where things are counted; outlives this service.
        limits: how many groups are kept, of how many nodes, and for how long once they have finished.
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
        self._stalls_seen = 0
        self._forgave_at = -STALE_CUTS_S
        self._metrics = metrics or Metrics()
        self._limits = limits
        self._ledger = Ledger(store, self, wall, self._metrics)
        self._watchers = Watchers()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._stopping = False

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the store and begin to serve.

        Raises:
            StorageError: the store cannot be read, or holds something that must not exist.
        """
        await self._ledger.load()
        self._started = True
        self._spawn(self._ledger.commit_forever())
        self._spawn(self._keep_time())

    def begin_stop(self) -> None:
        """Answer every open poll now and refuse new commands."""
        self._stopping = True
        self._watchers.wake_all()

    async def close(self) -> None:
        """Commit what is pending and let the store go."""
        self.begin_stop()
        await self._ledger.drain()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()
        await self._ledger.close()

    def require_ready(self) -> None:
        """Raise unless commands are answered: the state is loaded, and no stop has begun.

        Raises:
            ServerStopping, StorageError: what is in the way.
        """
        if self._stopping:
            raise ServerStopping("the server is stopping; ask again in a moment, or ask another one")
        self._require_loaded()

    def _require_loaded(self) -> None:
        if not self._ledger.is_loaded:
            raise StorageError("the server's state is not loaded; ask again in a moment (its log says why)")

    # -- reading: committed state only -----------------------------------------------------------------------

    def groups(self) -> Iterable[Group]:
        """All groups, by name."""
        self._require_loaded()
        return [group for _, group in sorted(self._ledger.groups.items())]

    def group(self, group_id: str) -> Group:
        """One group.

        Raises:
            UnknownGroup: there is none of that name.
        """
        self._require_loaded()
        group = self._ledger.groups.get(group_id)
        if group is None:
            raise _unknown(group_id)
        return group

    def history(self, group_id: str, after: int = 0) -> tuple[list[StoredEvent], int]:
        """The events of a group beyond number `after`, and the number of its last one."""
        self.group(group_id)
        kept = list(self._ledger.history(group_id))
        return [stored for stored in kept if stored.number > after], kept[-1].number if kept else 0

    def directive(self, group_id: str, node_id: str, incarnation: str) -> tuple[Group, Directive]:
        """What a node has to do now, with the state that says so.

        Raises:
            UnknownGroup, UnknownNode: there is none of that name.
            StaleIncarnation: the node is spoken for by another agent.
        """
        group = self.group(group_id)
        node = group.nodes.get(node_id)
        if node is None:
            raise UnknownNode(f"group '{group_id}' has no node '{node_id}': it has to join first")
        if node.incarnation != incarnation:
            raise StaleIncarnation(
                f"node '{node_id}' of group '{group_id}' is spoken for by another agent at {node.address}: "
                f"this one has to stop its workers; start it with another --node-id to join beside it"
            )
        return group, directive(group, node, self.now())

    # -- writing ---------------------------------------------------------------------------------------------

    async def execute(self, group_id: str, command: Command) -> Group:
        """Apply a command to a group; returns when it is committed.

        Returns:
            the group as it was committed.

        Raises:
            Refused: the group does not allow it, or a limit; nothing changed.
            UnknownGroup: there is none, or it was deleted at the same time.
            StorageError: it could not be stored; nothing changed.
            ServerStopping: the server is going down.
        """
        head = await self._head(group_id)
        now = self.now()
        if head is None:
            if not isinstance(command, Join | Put):
                raise _unknown(group_id)
            self._require_room()
            head = empty(group_id, now)
        self._require_places(head, command)
        quiet = isinstance(command, Renew) and not _is_news(head, command.node_id)
        try:
            transition = step(head, command, now)
        except Refused:
            await self._ledger.settle(group_id)  # it must not speak of what may never be committed
            raise
        if quiet and self._ledger.is_settled(group_id):
            self._ledger.groups[group_id] = transition.group  # memory only: no commit, nobody to wake
            return transition.group
        group = await self._ledger.propose(group_id, transition.group, transition.events, quiet=quiet)
        if group is None:
            raise _unknown(group_id)  # it was deleted in the same turn
        return group

    def _require_room(self) -> None:
        """Raise if no group may be made any more."""
        most = self._limits.max_groups
        if not self._ledger.has_room(most):
            raise TooManyGroups(
                f"this server keeps {most} groups and may keep no more: delete finished ones "
                f"(hetctl delete GROUP), or start hetserver with a larger --max-groups or a shorter --keep-finished"
            )

    def _require_places(self, group: Group, command: Command) -> None:
        """Raise if a command would give a group more nodes than it may have, or more names of nodes."""
        most = self._limits.max_nodes_per_group
        match command:
            case Join(node_id=node_id) if len(group.nodes) >= most:
                node = group.nodes.get(node_id)
                full = (node is None or node.gone) and len(group.live) >= most
            case Drain(node_id=node_id):
                full = len(group.drained) >= most and node_id not in group.drained
            case _:
                return
        if full:
            raise TooManyNodes(
                f"group '{group.group_id}' has {most} nodes and may have no more: "
                f"use another group, or start hetserver with a larger --max-nodes-per-group"
            )

    async def delete(self, group_id: str) -> None:
        """Forget a group.

        Raises:
            Refused: nodes of it are still there, and its job is not over.
        """
        head = await self._head(group_id)
        if head is None:
            raise _unknown(group_id)
        if head.live and not head.state.terminal:
            await self._ledger.settle(group_id)
            names = ", ".join(sorted(node.node_id for node in head.live))
            raise Refused(f"group '{group_id}' still has nodes ({names}): hetctl cancel {group_id} first")
        await self._ledger.propose(group_id, None)

    async def cut(self, group_id: str, node_id: str, incarnation: str) -> None:
        """The open poll of an agent was cut: its node is suspect.

        Not so right after a stall: agents gave up on polls meanwhile, and have their lease to come back.
        """
        self._forgive_stall()
        if self.now() < self._forgave_at + STALE_CUTS_S:
            return
        try:
            await self.execute(group_id, Disconnect(node_id, incarnation))
        except HetError as error:  # the group is gone, or the server stops: nobody is left to be suspected
            logger.debug("cut of %s in group %s: %s", node_id, group_id, error)

    async def _head(self, group_id: str) -> Group | None:
        """What the next command to a group applies to; None: there is no such group."""
        self.require_ready()
        while not self._ledger.is_settled(group_id) and self._ledger.head(group_id) is None:
            await self._ledger.settle(group_id)  # it is being forgotten: what comes now is another group
            self.require_ready()
        self._forgive_stall()
        return self._ledger.head(group_id)

    # -- what the ledger says --------------------------------------------------------------------------------

    def resume(self, high_water: float) -> None:
        """The state was read anew: the clock goes on from the store's high-water mark."""
        self._clock = self._make_clock(max(high_water, self.now()))
        self._stalls_seen = self._clock.stalls

    def loaded(self) -> None:
        """All groups are what the store holds: set the timers anew, let those that wait look again."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        after_s = RETRY_S if self._started else 0.0  # after a failure: a tick may be what fails
        self._metrics.forget()
        for group_id, group in self._ledger.groups.items():
            self._schedule_tick(group_id, group, after_s)
        self._watchers.wake_all()

    def published(self, group_id: str, old: Group | None, new: Group | None, events: Sequence[Event]) -> None:
        """A change was committed: count it, wake whom it concerns, set the timer of its group."""
        self._metrics.published(group_id, old, new, events, self.now())
        if new is not None:
            self._schedule_tick(group_id, new)
        elif (timer := self._timers.pop(group_id, None)) is not None:
            timer.cancel()
        names = self._watchers.names(group_id)
        if new is not None and old is not None and not _concerns_all(old, new):
            names = [name for name in names if old.nodes.get(name) is not new.nodes.get(name)]
        self._watchers.wake(group_id, names)
        if new is None or events:
            self._watchers.wake(group_id, [FOLLOWERS])

    # -- time ------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The server's clock (seconds this store has been served)."""
        return self._clock.now()

    async def _keep_time(self) -> None:
        sweep_at = self.now() + SWEEP_S
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            now = self.now()
            self._ledger.store_clock(now)
            if now >= sweep_at:
                sweep_at = now if self._sweep(now) == SWEEP_MOST else now + SWEEP_S

    def _sweep(self, now: float) -> int:
        """Forget finished groups whose time is over, not all at once; returns how many."""
        old = [*islice((g for g in self._ledger.groups.values() if self._is_outdated(g, now)), SWEEP_MOST)]
        for group in old:
            self._spawn(self._forget(group))
        return len(old)

    async def _forget(self, group: Group) -> None:
        if self._ledger.head(group.group_id) is not group:
            return  # something happens there
        try:
            await self._ledger.propose(group.group_id, None)
        except StorageError as error:  # the next sweep finds it again
            logger.debug("group %s was not forgotten: %s", group.group_id, error)

    def _is_outdated(self, group: Group, now: float) -> bool:
        finished_at = group.finished_at
        return (
            group.state.terminal
            and finished_at is not None
            and now > finished_at + self._limits.keep_finished_s
            and not group.live
        )

    def _forgive_stall(self) -> None:
        """After a time in which this process did not run, every node has a full lease again (rule 8)."""
        now = self.now()
        if self._clock.stalls == self._stalls_seen:
            return
        self._stalls_seen, self._forgave_at = self._clock.stalls, now
        logger.warning("this process stood still for more than a second: every node has a full lease again")
        self._ledger.replace(partial(_all_heard, now=now))

    def _schedule_tick(self, group_id: str, group: Group, after_s: float = 0.0) -> None:
        if (timer := self._timers.pop(group_id, None)) is not None:
            timer.cancel()
        at = deadline(group)
        if at is not None:
            delay_s = max(after_s, at - self.now()) + TICK_MARGIN_S
            loop = asyncio.get_running_loop()
            self._timers[group_id] = loop.call_later(delay_s, lambda: self._spawn(self._tick(group_id)))

    async def _tick(self, group_id: str) -> None:
        try:
            await self.execute(group_id, Tick())
        except HetError as error:  # a load sets the timers anew, and a group that is gone needs none
            logger.debug("tick of group %s: %s", group_id, error)
        except Exception:
            logger.exception("a tick of group %s failed", group_id)
            if (group := self._ledger.groups.get(group_id)) is not None:
                self._schedule_tick(group_id, group, RETRY_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- waiting ---------------------------------------------------------------------------------------------

    async def watch(
        self, group_id: str, node_id: str, incarnation: str, version: str | None, wait_s: float
    ) -> tuple[Group, Directive]:
        """A node's directive as soon as its version differs from the given one, or after `wait_s` seconds.

        Raises:
            Refused: as `directive` does, as soon as it does.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            found = self.directive(group_id, node_id, incarnation)
            left_s = until - loop.time()
            if found[1].version != version or left_s <= 0 or self._stopping:
                return found
            await self._watchers.wait(group_id, node_id, left_s)

    async def follow(self, group_id: str, after: int, quiet_s: float) -> AsyncIterator[StoredEvent | None]:
        """The history of a group as it grows, None after `quiet_s` quiet seconds. Ends with the group.

        An `after` beyond the last event counts those of a group of that name that was forgotten: then
        everything is new.
        """
        while not self._stopping:
            try:
                news, last = self.history(group_id, after)
            except HetError:
                return
            if after > last:
                after = 0
                continue
            for stored in news:
                yield stored
            after = last
            if not news and not await self._watchers.wait(group_id, FOLLOWERS, quiet_s):
                yield None

    def metrics(self) -> bytes:
        """What Prometheus is told of this server while it answers for the groups."""
        return self._metrics.render(
            self._ledger.groups.values(), now=self.now(), open_polls=self.waiting(), leads=True
        )

    def waiting(self) -> int:
        """How many polls and followers wait."""
        return self._watchers.count()


def _unknown(group_id: str) -> UnknownGroup:
    return UnknownGroup(f"there is no group '{group_id}'")


def _is_news(group: Group, node_id: str) -> bool:
    """Whether more than a lease follows from hearing a node: it was suspect, or is told that its round ended."""
    node = group.nodes.get(node_id)
    return node is not None and (node.cut_at is not None or hears_stop(group, node))


def _all_heard(group: Group, now: float) -> Group:
    """A group whose nodes all have a full lease from now, but those whose connection was cut."""
    nodes = {
        node_id: replace(node, heard_at=now) if not node.gone and node.cut_at is None else node
        for node_id, node in group.nodes.items()
    }
    return replace(group, nodes=nodes)


def _concerns_all(old: Group, new: Group) -> bool:
    """Whether a change can give more nodes another directive than those whose own record changed."""
    return (
        old.round is not new.round
        or old.state is not new.state
        or old.job != new.job
        or old.drained != new.drained
        or old.spec != new.spec
    )
