"""Committed state and what is on its way there: one transaction per turn of the event loop, then published.

A change is *proposed* as the new *head* of its group, in memory. All heads of one turn of the event loop go
down as one transaction; only then are they *published*: proposals are answered and readers see them. When a
commit fails, everything in memory is dropped and loaded again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Protocol

from hetrdzv import records
from hetrdzv.core.invariants import InvariantError, check
from hetrdzv.core.model import Event, Group
from hetrdzv.errors import StorageError
from hetrdzv.metrics import Metrics
from hetrdzv.records import StoredEvent
from hetrdzv.storage.base import Batch, StateStore

logger = logging.getLogger(__name__)

EVENTS_KEPT = 1_000
"""How many events of a group are kept."""

CLOCK_STORED_EVERY_S = 10.0
"""How often the clock is stored when nothing else is: so much time a crash of the server can undo."""

LARGE = 5_000
"""More records than this are read in a thread: a leader has to renew its lease meanwhile."""

RETRY_S = 1.0
"""How long to wait before what failed is tried again without being asked."""


class Owner(Protocol):
    """Who owns a ledger, and hears from it."""

    def now(self) -> float:
        """The server's clock (seconds)."""

    def resume(self, high_water: float) -> None:
        """The state was read anew; the clock goes on from the store's high-water mark at least."""

    def published(self, group_id: str, old: Group | None, new: Group | None, events: Sequence[Event]) -> None:
        """A group was changed, made (`old` is None) or forgotten (`new` is None), and what happened meanwhile."""

    def loaded(self) -> None:
        """All groups are what the store holds; none of those that wait was told."""


@dataclass(slots=True)
class _Proposal:
    """A change that is the head of its group, or is in it, and waits for the commit.

    Attributes:
        quiet: nothing changed but when a node was last heard, or nothing at all.
    """

    group_id: str
    events: tuple[Event, ...]
    done: asyncio.Future[Group | None]
    quiet: bool


class Ledger:
    """The groups of one store.

    Args:
        wall: wall-clock time for events, for people only.
    """

    def __init__(
        self, store: StateStore, owner: Owner, wall: Callable[[], datetime], metrics: Metrics
    ) -> None:
        self._store = store
        self._owner = owner
        self._wall = wall
        self._metrics = metrics
        self._heads: dict[str, Group | None] = {}
        self._events: dict[str, deque[StoredEvent]] = {}
        self._pending: list[_Proposal] = []
        self._in_flight: list[_Proposal] = []
        self._dirty = asyncio.Event()
        self._clock_stored = 0.0
        self.groups: dict[str, Group] = {}
        self.is_loaded = False

    # -- reading ---------------------------------------------------------------------------------------------

    def head(self, group_id: str) -> Group | None:
        """What the next change of a group starts from; None where there is none, or it is being forgotten."""
        return self._heads.get(group_id, self.groups.get(group_id))

    def has_room(self, most: int) -> bool:
        """Whether there are fewer groups than so many, those on their way included."""
        if len(self.groups) + len(self._heads) < most:
            return True
        new = sum(group is not None and name not in self.groups for name, group in self._heads.items())
        return len(self.groups) + new < most

    def is_settled(self, group_id: str) -> bool:
        """Whether nothing about a group waits for a commit."""
        return group_id not in self._heads

    def history(self, group_id: str) -> Iterable[StoredEvent]:
        """What happened to a group, oldest first."""
        return self._events.get(group_id, ())

    # -- writing ---------------------------------------------------------------------------------------------

    async def propose(
        self, group_id: str, new: Group | None, events: tuple[Event, ...] = (), *, quiet: bool = False
    ) -> Group | None:
        """Make something the head of a group (None: forget it); returns what was committed, when it is.

        Raises:
            StorageError: it was not stored, and nothing that was proposed since the last commit either.
        """
        self._heads[group_id] = new
        return await self._enqueue(group_id, events, quiet)

    async def settle(self, group_id: str) -> None:
        """Return when what was proposed for a group is committed; at once where nothing was.

        Raises:
            StorageError: it could not be stored.
        """
        if group_id in self._heads:
            await self._enqueue(group_id, (), quiet=True)

    def replace(self, change: Callable[[Group], Group]) -> None:
        """Change every group, committed or not, in what is never stored."""
        for group_id, group in [*self.groups.items()]:
            self.groups[group_id] = change(group)
        for group_id, head in [*self._heads.items()]:
            if head is not None:
                self._heads[group_id] = change(head)

    def store_clock(self, now: float) -> None:
        """Have the clock stored, where that was long ago."""
        if self.groups and self._clock_is_due(now):
            self._dirty.set()

    async def drain(self) -> None:
        """Return when everything that was proposed is committed, or has failed."""
        while waiting := [p.done for p in (*self._in_flight, *self._pending) if not p.done.done()]:
            await asyncio.wait(waiting)

    async def close(self) -> None:
        """Store the clock and let the store go."""
        try:
            if self.is_loaded:
                await self._store.commit(Batch(puts={}, deletes=frozenset(), clock=self._owner.now()))
        except StorageError as error:
            logger.warning("the clock could not be stored at the end: %s", error)
        finally:
            await self._store.close()

    async def _enqueue(self, group_id: str, events: tuple[Event, ...], quiet: bool) -> Group | None:
        done: asyncio.Future[Group | None] = asyncio.get_running_loop().create_future()
        self._pending.append(_Proposal(group_id, events, done, quiet))
        self._dirty.set()
        return await asyncio.shield(done)

    # -- one transaction per turn ----------------------------------------------------------------------------

    async def commit_forever(self) -> None:
        """Commit what is proposed, as it comes."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(0)  # the rest of this turn's commands come along
            self._dirty.clear()
            self._in_flight, self._pending = self._pending, []
            try:
                await self._commit(self._in_flight)
            except Exception as error:
                await self._recover(error)
            self._in_flight = []

    async def _commit(self, proposals: list[_Proposal]) -> None:
        heads = {p.group_id: self._heads.setdefault(p.group_id, self.head(p.group_id)) for p in proposals}
        puts: dict[str, bytes] = {}
        deletes: set[str] = set()
        for group_id, head in heads.items():
            put, delete = records.changes(self.groups.get(group_id), head)
            puts.update(put)
            deletes.update(delete)
            if head is None:
                deletes.update(records.event_key(group_id, s.number) for s in self.history(group_id))
        lasting = [p for p in proposals if heads[p.group_id] is not None]
        news = self._number_events(lasting, puts, deletes)
        now = self._owner.now()
        if puts or deletes or self._clock_is_due(now):
            began = time.perf_counter()
            await self._store.commit(Batch(puts=puts, deletes=frozenset(deletes), clock=now))
            self._metrics.committed(time.perf_counter() - began)
            self._clock_stored = now
        quiet = {p.group_id for p in proposals} - {p.group_id for p in proposals if not p.quiet}
        for group_id, head in heads.items():
            old = self._publish(group_id, head, news.get(group_id, []))
            if group_id not in quiet:
                events = [stored.event for stored in news.get(group_id, ())]
                self._owner.published(group_id, old, head, events)
        for proposal in proposals:
            if not proposal.done.done():
                proposal.done.set_result(heads[proposal.group_id])

    def _clock_is_due(self, now: float) -> bool:
        return now >= self._clock_stored + CLOCK_STORED_EVERY_S

    def _number_events(
        self, proposals: list[_Proposal], puts: dict[str, bytes], deletes: set[str]
    ) -> Mapping[str, list[StoredEvent]]:
        at = self._wall().isoformat(timespec="milliseconds")
        news: dict[str, list[StoredEvent]] = {}
        for proposal in proposals:
            group_id = proposal.group_id
            for event in proposal.events:
                new = news.setdefault(group_id, [])
                kept = self._events.get(group_id, ())
                number = (new[-1].number if new else kept[-1].number if kept else 0) + 1
                new.append(StoredEvent(number, at, event))
                puts[records.event_key(group_id, number)] = records.event_record(new[-1])
                if number > EVENTS_KEPT:
                    deletes.add(records.event_key(group_id, number - EVENTS_KEPT))
        return news

    def _publish(self, group_id: str, head: Group | None, news: list[StoredEvent]) -> Group | None:
        """Make a head the committed group; returns what that was before."""
        old = self.groups.get(group_id)
        if self._heads.get(group_id, ...) is head:
            del self._heads[group_id]
        if head is None:
            self.groups.pop(group_id, None)
            self._events.pop(group_id, None)
        else:
            self.groups[group_id] = head
            self._events.setdefault(group_id, deque(maxlen=EVENTS_KEPT)).extend(news)
        return old

    # -- loading ---------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the store; what was in memory is dropped.

        Raises:
            StorageError: it cannot be read, or holds something that must not exist; nothing changed.
        """
        snapshot = await self._store.load()
        self._owner.resume(snapshot.clock)
        restore = partial(records.restore, snapshot.records, self._owner.now())
        large = len(snapshot.records) > LARGE
        found = await asyncio.to_thread(restore) if large else restore()
        for restored in found.values():
            try:
                check(restored.group)
            except InvariantError as error:
                raise StorageError(
                    f"the store holds what must not be ({error}): put back a copy of it, "
                    f"or name another one with --store"
                ) from error
        self._clock_stored = snapshot.clock
        self.groups = {group_id: restored.group for group_id, restored in found.items()}
        self._events = {
            group_id: deque(restored.events, maxlen=EVENTS_KEPT) for group_id, restored in found.items()
        }
        self.is_loaded = True
        self._owner.loaded()

    async def _recover(self, error: Exception) -> None:
        """A commit failed: nobody may see what it was about, so memory goes and the store speaks."""
        self._metrics.commit_failed()
        bug = None if isinstance(error, StorageError) else error
        logger.error("a commit failed, the state is loaded again: %s", error, exc_info=bug)
        proposals, self._pending = [*self._in_flight, *self._pending], []
        self._heads.clear()
        self.is_loaded = False
        refusal = error if bug is None else StorageError(f"the change was not stored: {error!r}")
        for proposal in proposals:
            if not proposal.done.done():
                proposal.done.set_exception(refusal)
                proposal.done.exception()  # whoever waited may be gone
        while not self.is_loaded:
            try:
                await self.load()
            except Exception as again:
                logger.error("the state cannot be loaded: %s", again)
                await asyncio.sleep(RETRY_S)
