"""Committed groups and proposed changes: one transaction per turn of the event loop.

A change is *proposed* as the new *head* of its group, in memory only. `commit` writes all heads proposed in one turn
of the event loop as one transaction; only then does it answer the proposers and let readers see the new state. If a
commit fails and nothing was written, the proposals are refused and what is committed goes on being served; if nobody
knows what was written, the owner drops everything in memory and loads it again.

Only what can be loaded again is committed: heads are checked before the transaction. One that violates an invariant, or
of which no records can be made, is dropped with all that was proposed for its group in this turn; the others are
committed. A group of the store that cannot be served is set aside alone.

The ledger calls nobody back: its owner (service.py) says when to commit and acts on the changes it gets.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby

from hetrdzv.core.invariants import InvariantError, check
from hetrdzv.core.model import Group, changed_nodes
from hetrdzv.protocol.errors import GroupQuarantined, ServerFault, StorageError
from hetrdzv.protocol.pages import Event
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.texts.phrasing import count
from hetrdzv.service.metrics import Metrics
from hetrdzv.service.polls.wakes import Wakes
from hetrdzv.storage import records
from hetrdzv.storage.base import Batch, Snapshot, StateStore
from hetrdzv.storage.records import Quarantined, Restored

logger = logging.getLogger(__name__)

EVENTS_KEPT = 1_000
"""How many events are kept per group."""

CLOCK_STORED_EVERY_S = 10.0
"""How often the clock is stored when nothing else is (seconds): a crash loses at most this much of it."""

LARGE_GROUP = 500
"""The records of a group with more nodes than this are made in a thread, so that polls are answered meanwhile."""

LARGE = 5_000
"""Snapshots with more records than this are parsed in a thread, since a leader has to renew its lease meanwhile."""


@dataclass(frozen=True, slots=True)
class Change:
    """A committed change of one group.

    Attributes:
        old, new: the group before and after; None where it did not exist, or was deleted.
        events: what happened in between.
    """

    group_id: str
    old: Group | None
    new: Group | None
    events: tuple[Reason, ...] = ()


@dataclass(slots=True)
class _Head:
    """The newest proposed state of a group; None to delete it."""

    group: Group | None


@dataclass(slots=True)
class Proposal:
    """Somebody waiting for the commit of a head.

    Attributes:
        quiet: nothing changed except when a node was last heard.
    """

    group_id: str
    events: tuple[Reason, ...]
    done: asyncio.Future[Group | None]
    quiet: bool = False

    def refuse(self, error: Exception) -> None:
        """Nothing comes of it."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # its proposer may be gone


class Ledger:
    """The groups of one store.

    Args:
        store: closed by `close`.
        wall: wall-clock time for events, for people only.

    Attributes:
        groups: committed groups by id.
        quarantined: groups that are in the store but cannot be served, by id.
        is_loaded: whether `groups` is what the store holds.
        is_failing: whether the last commit failed.
    """

    def __init__(self, store: StateStore, wall: Callable[[], datetime], metrics: Metrics) -> None:
        self._store = store
        self._wall = wall
        self._metrics = metrics
        self._heads: dict[str, _Head] = {}
        self._events: dict[str, deque[Event]] = {}
        self._pending: list[Proposal] = []
        self._in_flight: list[Proposal] = []
        self._has_work = asyncio.Event()
        self._wakes = Wakes()
        self._is_idle = asyncio.Event()  # nothing that was proposed is waiting
        self._is_idle.set()
        self._clock_stored = 0.0
        self._unfit: list[str] = []  # groups whose heads could not be committed
        self.groups: dict[str, Group] = {}
        self.quarantined: dict[str, Quarantined] = {}
        self.is_loaded = False
        self.is_failing = False

    # -- reading ---------------------------------------------------------------------------------------------

    def head(self, group_id: str) -> Group | None:
        """The state that the next change of a group applies to; None if there is none, or it is being deleted."""
        head = self._heads.get(group_id)
        return self.groups.get(group_id) if head is None else head.group

    def has_room(self, most: int) -> bool:
        """Whether there are fewer than `most` groups, counting those not committed yet."""
        known = len(self.groups) + len(self.quarantined)
        if known + len(self._heads) < most:
            return True
        new = sum(head.group is not None and name not in self.groups for name, head in self._heads.items())
        return known + new < most

    def is_settled(self, group_id: str) -> bool:
        """Whether no change of a group is waiting for a commit."""
        return group_id not in self._heads

    def history(self, group_id: str) -> Iterable[Event]:
        """The events of a group, oldest first."""
        return self._events.get(group_id, ())

    def summary(self) -> str:
        """How much was loaded and how old it is, for a person who knows how much it should be."""
        if not self.groups:
            return f"loaded no groups: {'all are quarantined' if self.quarantined else 'the state is empty'}"
        nodes = sum(len(group.nodes) for group in self.groups.values())
        newest = max((kept[-1].at for kept in self._events.values() if kept), default="unknown")
        how_much = f"{count(len(self.groups), 'group')} with {count(nodes, 'node')}"
        return f"loaded {how_much}; the newest event is of {newest}"

    # -- proposing -------------------------------------------------------------------------------------------

    async def propose(
        self, group_id: str, new: Group | None, events: tuple[Reason, ...] = ()
    ) -> Group | None:
        """Make `new` the head of a group (None: delete it) and wait for the commit; returns what was committed.

        Raises:
            StorageError: nothing proposed since the last commit was stored.
            ServerFault, GroupQuarantined: it could not be loaded again, so it was not stored.
        """
        return await self._enqueue(Proposal(group_id, events, _future()), _Head(new))

    def amend(self, group_id: str, new: Group, events: tuple[Reason, ...]) -> None:
        """Make `new` the head of a group that has one: what follows from the changes proposed before."""
        self._heads[group_id] = _Head(new)
        self._pending.append(Proposal(group_id, events, _future()))

    async def settle(self, group_id: str) -> None:
        """Wait until every proposed change of a group is committed; returns at once if there is none.

        Raises:
            StorageError: it could not be stored.
        """
        if group_id in self._heads:
            await self._enqueue(Proposal(group_id, (), _future(), quiet=True), self._heads[group_id])

    def store_clock(self, now: float) -> None:
        """Have the clock stored if the last time was long ago."""
        if (self.groups or self.is_failing) and self._clock_is_due(now):
            self._has_work.set()

    def have_work(self) -> None:
        """Have `work` return though nothing is proposed."""
        self._has_work.set()

    async def _enqueue(self, proposal: Proposal, head: _Head) -> Group | None:
        self._heads[proposal.group_id] = head
        self._pending.append(proposal)
        self._has_work.set()
        self._is_idle.clear()
        return await proposal.done

    # -- committing ------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Wait for the end of a turn of the event loop in which there was something to commit."""
        if not self._has_work.is_set():
            self._is_idle.set()
        await self._has_work.wait()
        await asyncio.sleep(0)  # lets the other commands of this turn join the transaction

    async def commit(self, now: float) -> list[Change]:
        """Commit everything proposed so far as one transaction, then answer the proposers.

        Args:
            now: the server's clock (seconds).

        Returns:
            one change per group, without those where only a heartbeat was noted.

        Raises:
            NothingWritten: the caller has to `refuse` what was proposed.
            Exception: the caller has to `drop` everything and load it again.
        """
        self._has_work.clear()
        self._in_flight, self._pending = self._pending, []
        proposals = self._in_flight
        heads = {p.group_id: self._heads.setdefault(p.group_id, self._settled(p.group_id)) for p in proposals}
        puts: dict[str, bytes] = {}
        deletes: set[str] = set()
        for group_id, head in list(heads.items()):
            try:
                put, delete = await _changes(self.groups.get(group_id), head.group)
            except Exception as error:
                self.refuse_turn(group_id, error)
                proposals = self._in_flight
                self._unfit.append(group_id)
                del heads[group_id]
                continue
            puts.update(put)
            deletes.update(delete)
            if head.group is None:
                deletes.update(records.event_key(group_id, s.number) for s in self.history(group_id))
                deletes.update(self.quarantined[group_id].keys if group_id in self.quarantined else ())
        lasting = [p for p in proposals if heads[p.group_id].group is not None]
        news = self._number_events(lasting, puts, deletes)
        if puts or deletes or self._clock_is_due(now):
            began = time.perf_counter()
            self._clock_stored = now  # if this fails, the next attempt can wait as long
            await self._store.commit(Batch(puts=puts, deletes=frozenset(deletes), clock=now))
            self._metrics.commits.observe(time.perf_counter() - began)
            self.is_failing = False
        loud = {p.group_id for p in proposals if not p.quiet}
        published = [
            self._publish(group_id, head, news.get(group_id, ())) for group_id, head in heads.items()
        ]
        for group_id, told in groupby(proposals, lambda proposal: proposal.group_id):
            self._wakes.add([proposal.done for proposal in told], heads[group_id].group)
        self._in_flight = []
        return [change for change in published if change.group_id in loud]

    def take_unfit(self) -> list[str]:
        """The groups whose heads could not be committed since the last call."""
        unfit, self._unfit = self._unfit, []
        return unfit

    def refuse_turn(self, group_id: str, error: Exception) -> None:
        """Drop the head of a group that cannot be kept, and refuse all that was proposed for it."""
        logger.error("changes of group '%s' are refused", group_id, exc_info=error)
        self._refuse_all(
            group_id,
            ServerFault(
                f"hetserver could not keep what requests of this moment led to in group '{group_id}', so nothing was "
                f"changed: {in_words(error)}. This is a fault of hetserver, whose log says more: please report it"
            ),
        )

    def _refuse_all(self, group_id: str, error: Exception) -> None:
        self._heads.pop(group_id, None)
        for proposal in [*self._in_flight, *self._pending]:
            if proposal.group_id == group_id:
                proposal.refuse(error)
        self._in_flight = [proposal for proposal in self._in_flight if proposal.group_id != group_id]
        self._pending = [proposal for proposal in self._pending if proposal.group_id != group_id]

    def quarantine(self, group_id: str, why: str) -> None:
        """Set a group aside that cannot be served, and refuse what was proposed; what is stored of it stays."""
        self.quarantined[group_id] = Quarantined(why, self._keys(group_id))
        del self.groups[group_id]
        self._events.pop(group_id, None)
        self._refuse_all(group_id, quarantined(group_id, why))

    def _keys(self, group_id: str) -> frozenset[str]:
        """The keys of all records of a committed group."""
        stored, _ = records.changes(None, self.groups[group_id])
        return frozenset({*stored, *(records.event_key(group_id, e.number) for e in self.history(group_id))})

    async def drain(self) -> None:
        """Wait until everything proposed so far is committed or has failed."""
        await self._is_idle.wait()

    async def close(self, now: float) -> None:
        """Store the clock and close the store."""
        try:
            if self.is_loaded:
                await self._store.commit(Batch(puts={}, deletes=frozenset(), clock=now))
        except StorageError as error:
            logger.debug("the clock is stored no more: %s", error)  # a deposed leader, or said before
        finally:
            await self._store.close()

    def _settled(self, group_id: str) -> _Head:
        return _Head(self.groups.get(group_id))

    def _clock_is_due(self, now: float) -> bool:
        return now >= self._clock_stored + CLOCK_STORED_EVERY_S

    def _number_events(
        self, proposals: list[Proposal], puts: dict[str, bytes], deletes: set[str]
    ) -> Mapping[str, list[Event]]:
        at = self._wall().isoformat(timespec="milliseconds")
        news: dict[str, list[Event]] = {}
        for proposal in proposals:
            group_id = proposal.group_id
            for reason in proposal.events:
                new = news.setdefault(group_id, [])
                kept = self._events.get(group_id, ())
                number = (new[-1].number if new else kept[-1].number if kept else 0) + 1
                new.append(Event(number=number, at=at, reason=reason))
                puts[records.event_key(group_id, number)] = records.event_record(new[-1])
                if number > EVENTS_KEPT:
                    deletes.add(records.event_key(group_id, number - EVENTS_KEPT))
        return news

    def _publish(self, group_id: str, head: _Head, news: Iterable[Event]) -> Change:
        """Make a head the committed group."""
        change = Change(
            group_id, self.groups.get(group_id), head.group, tuple(event.reason for event in news)
        )
        if self._heads.get(group_id) is head:  # else there is a newer one by now
            del self._heads[group_id]
        if head.group is None:
            self.groups.pop(group_id, None)
            self.quarantined.pop(group_id, None)
            self._events.pop(group_id, None)
        else:
            self.groups[group_id] = head.group
            self._events.setdefault(group_id, deque(maxlen=EVENTS_KEPT)).extend(news)
        return change

    # -- loading ---------------------------------------------------------------------------------------------

    async def read(self) -> Snapshot:
        """What the store holds; changes nothing in memory.

        Raises:
            StorageError: it cannot be read.
        """
        return await self._store.load()

    async def restore(self, snapshot: Snapshot, now: float) -> None:
        """Replace what is in memory by a snapshot, with a full lease for every node.

        Args:
            now: the server's clock (seconds).

        Raises:
            StorageError: the snapshot is malformed; nothing changed.
        """
        parse = partial(_restored, snapshot.records, now)
        large = len(snapshot.records) > LARGE
        read = await asyncio.to_thread(parse) if large else parse()
        self._clock_stored = snapshot.clock
        self.groups = {group_id: restored.group for group_id, restored in read.groups.items()}
        self._events = {
            group_id: deque(restored.events, maxlen=EVENTS_KEPT) for group_id, restored in read.groups.items()
        }
        self.quarantined = dict(read.quarantined)
        for group_id, aside in self.quarantined.items():
            logger.error("%s", quarantined(group_id, aside.why))
        self.is_loaded = True

    def drop(self, error: Exception) -> None:
        """Fail every proposal with a commit's error; what is in memory is not valid until `restore`."""
        self.refuse(error)
        self.is_loaded = False

    def refuse(self, error: Exception) -> set[str]:
        """Fail every proposal with a commit's error; what is committed stays. Returns the groups they were about."""
        self._metrics.commit_failures.inc()
        self.is_failing = True
        proposals = [*self._in_flight, *self._pending]
        self._in_flight, self._pending = [], []
        self._heads.clear()
        self._is_idle.set()
        refusal = error if isinstance(error, StorageError) else StorageError(f"not stored: {error!r}")
        for proposal in proposals:
            proposal.refuse(refusal)
        return {proposal.group_id for proposal in proposals}


def quarantined(group_id: str, why: str) -> GroupQuarantined:
    """What whoever asks for a group that is set aside is told."""
    return GroupQuarantined(
        f"group '{group_id}' is quarantined, since hetserver cannot serve it: {why}. The other groups are served. "
        f"Back up the store, then hetctl delete {group_id}; or restore an older backup"
    )


def in_words(error: Exception) -> str:
    """What is wrong with a state that cannot be kept."""
    return error.wrong if isinstance(error, InvariantError) else f"{type(error).__name__}: {error}"[:400]


def _restored(stored: Mapping[str, bytes], now: float) -> Restored:
    """As `records.restore`; groups in an impossible state are set aside, too."""
    read = records.restore(stored, now)
    wrong: dict[str, str] = {}
    for group_id, restored in read.groups.items():
        try:
            check(restored.group)
        except InvariantError as error:
            wrong[group_id] = error.wrong
    groups = {group_id: restored for group_id, restored in read.groups.items() if group_id not in wrong}
    return Restored(groups, {**read.quarantined, **records.set_aside(wrong, stored)})


def _future() -> asyncio.Future[Group | None]:
    return asyncio.get_running_loop().create_future()


async def _changes(old: Group | None, new: Group | None) -> tuple[dict[str, bytes], set[str]]:
    """As `checked_changes`; both groups are frozen, so a thread can look at them."""
    nodes = max(len(group.nodes) if group is not None else 0 for group in (old, new))
    return (
        checked_changes(old, new)
        if nodes <= LARGE_GROUP
        else await asyncio.to_thread(checked_changes, old, new)
    )


def checked_changes(old: Group | None, new: Group | None) -> tuple[dict[str, bytes], set[str]]:
    """As `records.changes`, of a group that can be loaded again.

    Raises:
        InvariantError: it could not; any other exception: no records can be made of it.
    """
    changed = changed_nodes(old, new) if new is not None else ()
    if new is not None:
        check(new, old, changed)
    return records.changes(old, new, changed)
