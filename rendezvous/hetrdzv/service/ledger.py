"""Committed groups and proposed changes: one transaction per turn of the event loop.

A change is *proposed* as the new *head* of its group, in memory only. `commit` writes all heads proposed in one turn
of the event loop as one transaction; only then does it answer the proposers and let readers see the new state. If a
commit fails and nothing was written, the proposals are refused and what is committed goes on being served; if nobody
knows what was written, the owner drops everything in memory and loads it again.

Only what can be loaded again is committed: heads are checked before the transaction. One that violates an invariant, or
of which no records can be made, is dropped with all that was proposed for its group; the others are committed. A group
of the store that cannot be served is set aside alone.

The ledger calls nobody back: its owner (service.py) says when to commit and acts on the changes it gets.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from hetrdzv.core.invariants import InvariantError, check_invariants
from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import GroupQuarantined, ServerFault, StorageError
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.replies import Event
from hetrdzv.protocol.texts.phrasing import count_text
from hetrdzv.service.metrics import Metrics
from hetrdzv.storage import records
from hetrdzv.storage.base import NothingWritten, RecordChanges, StateStore, StoreContent, fits_in_store
from hetrdzv.storage.records import QuarantinedGroup

logger = logging.getLogger(__name__)

MAX_STORED_EVENTS = 1_000
"""How many events are kept per group."""

CLOCK_STORE_INTERVAL_S = 10.0
"""How often the clock is stored when nothing else is (seconds): a crash loses at most this much of it."""

MIN_NODES_FOR_THREAD = 500
"""The records of a group with more nodes than this are made in a thread, so that polls are answered meanwhile."""

MIN_RECORDS_FOR_THREAD = 5_000
"""Snapshots with more records than this are parsed in a thread, since a leader has to renew its lease meanwhile."""


@dataclass(frozen=True)
class Change:
    """A committed change of one group, with what happened in between."""

    group_id: str
    old: Group | None  # None: it did not exist
    new: Group | None  # None: it was deleted
    events: tuple[Reason, ...] = ()


@dataclass
class _PendingProposals:
    """What was proposed for a group in one turn of the event loop."""

    head: Group | None  # the newest state; None to delete it
    events: list[Reason] = field(default_factory=list)
    done: "asyncio.Future[Group | None]" = field(default_factory=asyncio.Future)  # the group as committed

    def refuse(self, error: Exception) -> None:
        """Nothing comes of it."""
        self.done.set_exception(error)
        self.done.exception()  # its proposers may be gone


class Ledger:
    """The groups of one store, which it closes."""

    def __init__(self, store: StateStore, wall: Callable[[], datetime], metrics: Metrics) -> None:
        self._store = store
        self._wall = wall
        self._metrics = metrics
        self._events: dict[str, deque[Event]] = {}
        self._pending: dict[str, _PendingProposals] = {}
        self._in_flight: dict[str, _PendingProposals] = {}
        self._has_work = asyncio.Event()
        self._clock_stored = 0.0
        self.groups: dict[str, Group] = {}  # as committed
        self.quarantined: dict[str, QuarantinedGroup] = {}  # in the store, but they cannot be served
        self.is_loaded = False  # whether `groups` is what the store holds
        self.is_failing = False  # whether the last commit failed

    # -- reading ---------------------------------------------------------------------------------------------

    def _find_pending_proposals(self, group_id: str) -> _PendingProposals | None:
        return self._pending.get(group_id) or self._in_flight.get(group_id)

    def proposed_group(self, group_id: str) -> Group | None:
        """The state that the next change of a group applies to; None if there is none, or it is being deleted."""
        turn = self._find_pending_proposals(group_id)
        return self.groups.get(group_id) if turn is None else turn.head

    def pending_heads(self) -> list[tuple[str, Group]]:
        """The heads proposed since the last commit, by id, without those that are deleted."""
        turns = sorted(self._pending.items())
        return [(group_id, turn.head) for group_id, turn in turns if turn.head is not None]

    def has_room_for_group(self, most: int) -> bool:
        """Whether there are fewer than `most` groups, counting those not committed yet."""
        new = {*self._pending, *self._in_flight}.difference(self.groups)
        return len(self.groups) + len(self.quarantined) + len(new) < most

    def is_committed(self, group_id: str) -> bool:
        """Whether no change of a group is waiting for a commit."""
        return self._find_pending_proposals(group_id) is None

    def history(self, group_id: str) -> Iterable[Event]:
        """The events of a group, oldest first."""
        return self._events.get(group_id, ())

    def proposed_events(self, group_id: str) -> list[Reason]:
        """What is to be added to the history of a group, but is not committed yet."""
        turns = self._in_flight.get(group_id), self._pending.get(group_id)
        return [event for turn in turns if turn is not None for event in turn.events]

    def describe_loaded(self) -> str:
        """How much was loaded and how old it is, for a person who knows how much it should be."""
        if not self.groups:
            return f"loaded no groups: {'all are quarantined' if self.quarantined else 'the state is empty'}"
        nodes = sum(len(group.nodes) for group in self.groups.values())
        newest = max((events[-1].at for events in self._events.values() if events), default="unknown")
        how_much = f"{count_text(len(self.groups), 'group')} with {count_text(nodes, 'node')}"
        return f"loaded {how_much}; the newest event is of {newest}"

    # -- proposing -------------------------------------------------------------------------------------------

    async def propose(self, group_id: str, new: Group | None, events: Iterable[Reason] = ()) -> Group | None:
        """Make `new` the head of a group (None: delete it) and wait for the commit; returns what was committed.

        Raises:
            StorageError: nothing proposed since the last commit was stored.
            ServerFault, GroupQuarantined: it could not be loaded again, so it was not stored.
        """
        self.replace_head(group_id, new, events)
        self._has_work.set()
        return await asyncio.shield(self._pending[group_id].done)

    def replace_head(self, group_id: str, new: Group | None, events: Iterable[Reason]) -> None:
        """Make `new` the head of a group without waiting."""
        turn = self._pending.setdefault(group_id, _PendingProposals(new))
        turn.head = new
        turn.events += events

    async def wait_for_commit(self, group_id: str) -> None:
        """Wait until every proposed change of a group is committed; raises `StorageError` if it could not be."""
        if (turn := self._find_pending_proposals(group_id)) is not None:
            await asyncio.shield(turn.done)

    def store_clock(self, now: float) -> None:
        """Have the clock stored if the last time was long ago."""
        if (self.groups or self.is_failing) and self._clock_is_due(now):
            self._has_work.set()

    # -- committing ------------------------------------------------------------------------------------------

    async def wait_for_proposals(self) -> None:
        """Wait for the end of a turn of the event loop in which there was something to commit."""
        await self._has_work.wait()
        await asyncio.sleep(0)  # lets the other commands of this turn join the transaction

    async def commit(self, now: float, failed: Mapping[str, Exception]) -> tuple[list[Change], list[str]]:
        """Commit everything proposed so far as one transaction, then answer the proposers.

        Of the groups in `failed` nothing of this turn can be kept. Returns one change per group, and the groups whose
        changes were refused.

        Raises:
            NothingWritten: the caller has to `refuse` what was proposed.
            Exception: the caller has to load everything again as well.
        """
        self._has_work.clear()
        self._in_flight, self._pending = self._pending, {}
        changes: dict[str, bytes | None] = {}
        refused = dict(failed)
        for group_id, turn in self._in_flight.items():
            if group_id not in refused:
                try:
                    changes |= await _make_changes(self.groups.get(group_id), turn.head)
                except Exception as error:
                    refused[group_id] = error
        for group_id, why in refused.items():
            self._refuse_pending_proposals(group_id, why)
        news = {group_id: self._number_events(group_id, turn) for group_id, turn in self._in_flight.items()}
        for group_id, events in news.items():
            if self._in_flight[group_id].head is None:
                changes |= dict.fromkeys(
                    records.event_key(group_id, event.number) for event in self.history(group_id)
                )
                changes |= dict.fromkeys(
                    self.quarantined[group_id].keys if group_id in self.quarantined else ()
                )
            for event in events:
                changes[records.event_key(group_id, event.number)] = records.make_record(event)
                if event.number > MAX_STORED_EVENTS:
                    changes[records.event_key(group_id, event.number - MAX_STORED_EVENTS)] = None
        if changes or self._clock_is_due(now):
            began = time.perf_counter()
            self._clock_stored = now  # if this fails, the next attempt can wait as long
            await self._store.commit(changes, now)
            self._metrics.commits.observe(time.perf_counter() - began)
            self.is_failing = False
        turns, self._in_flight = self._in_flight, {}
        published = [
            self._commit_head(group_id, turn.head, news[group_id]) for group_id, turn in turns.items()
        ]
        for turn in turns.values():
            turn.done.set_result(turn.head)
        return published, list(refused)

    def _number_events(self, group_id: str, turn: _PendingProposals) -> list[Event]:
        at = self._wall().isoformat(timespec="milliseconds")
        known = self._events.get(group_id)
        last = known[-1].number if known else 0
        events = turn.events if turn.head is not None else ()
        return [Event(number=number, at=at, reason=reason) for number, reason in enumerate(events, last + 1)]

    def _commit_head(self, group_id: str, new: Group | None, news: Iterable[Event]) -> Change:
        """Make a head the committed group."""
        old = self.groups.get(group_id)
        if new is None:
            for known in (self.groups, self.quarantined, self._events):
                known.pop(group_id, None)
        else:
            self.groups[group_id] = new
            self._events.setdefault(group_id, deque(maxlen=MAX_STORED_EVENTS)).extend(news)
        return Change(group_id, old, new, tuple(event.reason for event in news))

    def _refuse_pending_proposals(self, group_id: str, error: Exception) -> None:
        """Drop the heads of a group that cannot be kept, and refuse all that was proposed for it."""
        logger.error("changes of group '%s' are refused", group_id, exc_info=error)
        fault = ServerFault(
            f"hetserver could not store the latest changes of group '{group_id}', so nothing was changed: "
            f"{describe_invalid_state(error)}. This is a bug in hetserver, whose log says more: please report it"
        )
        self._refuse_group(group_id, fault)

    def _refuse_group(self, group_id: str, error: Exception) -> None:
        for turns in (self._in_flight, self._pending):
            if (turn := turns.pop(group_id, None)) is not None:
                turn.refuse(error)

    def quarantine(self, group_id: str, why: str) -> None:
        """Set a group aside that cannot be served, and refuse what was proposed; what is stored of it stays."""
        stored = records.make_group_changes(None, self.groups.pop(group_id))
        events = (records.event_key(group_id, event.number) for event in self._events.pop(group_id, ()))
        self.quarantined[group_id] = QuarantinedGroup(why, frozenset({*stored, *events}))
        self._refuse_group(group_id, make_quarantined_error(group_id, why))

    async def wait_for_all_commits(self) -> None:
        """Wait until everything proposed so far is committed or has failed."""
        while turns := [*self._in_flight.values(), *self._pending.values()]:
            await asyncio.wait([turn.done for turn in turns])

    async def close(self, now: float) -> None:
        """Store the clock and close the store."""
        try:
            if self.is_loaded:
                await self._store.commit({}, now)
        except StorageError as error:
            logger.debug("the clock is stored no more: %s", error)  # a deposed leader, or said before
        finally:
            await self._store.close()

    def _clock_is_due(self, now: float) -> bool:
        return now >= self._clock_stored + CLOCK_STORE_INTERVAL_S

    # -- loading ---------------------------------------------------------------------------------------------

    async def restore(self, snapshot: StoreContent) -> None:
        """Replace what is in memory by a snapshot; if that is malformed, nothing changes."""
        parse = partial(records.restore_groups, snapshot.records, check_invariants)
        read = await asyncio.to_thread(parse) if len(snapshot.records) > MIN_RECORDS_FOR_THREAD else parse()
        self._clock_stored = snapshot.clock
        self.groups, self.quarantined = read.groups, read.quarantined
        self._events = {
            group_id: deque(events, maxlen=MAX_STORED_EVENTS) for group_id, events in read.events.items()
        }
        for group_id, aside in self.quarantined.items():
            logger.error("%s", make_quarantined_error(group_id, aside.why))
        self.is_loaded = True

    def refuse(self, error: Exception) -> set[str]:
        """Fail every proposal with a commit's error; returns the groups they were about.

        If nobody knows what was written, what is in memory is not valid until `restore`.
        """
        self.is_loaded = isinstance(error, NothingWritten)
        self._metrics.commit_failures.inc()
        self.is_failing = True
        refusal = error if isinstance(error, StorageError) else StorageError(f"not stored: {error!r}")
        groups = {*self._in_flight, *self._pending}
        for group_id in groups:
            self._refuse_group(group_id, refusal)
        return groups


def make_quarantined_error(group_id: str, why: str) -> GroupQuarantined:
    """The answer to requests for a group that is set aside."""
    return GroupQuarantined(
        f"group '{group_id}' is quarantined, since hetserver cannot serve it: {why}. The other groups are served. "
        f"Back up the store, then hetctl delete {group_id}; or restore an older backup"
    )


def describe_invalid_state(error: Exception) -> str:
    """What is wrong with a state that cannot be kept."""
    return error.wrong if isinstance(error, InvariantError) else f"{type(error).__name__}: {error}"[:400]


async def _make_changes(old: Group | None, new: Group | None) -> RecordChanges:
    """As `make_checked_changes`; both groups are frozen, so a thread can look at them."""
    if max(len(group.nodes) if group is not None else 0 for group in (old, new)) > MIN_NODES_FOR_THREAD:
        return await asyncio.to_thread(make_checked_changes, old, new)
    return make_checked_changes(old, new)


def make_checked_changes(old: Group | None, new: Group | None) -> RecordChanges:
    """What to store of a group that can be loaded again; else raises `InvariantError`, or what went wrong."""
    if new is not None:
        check_invariants(new)
    changes = records.make_group_changes(old, new)
    for key, record in changes.items():
        if new is not None and record is not None and not fits_in_store(record):
            raise InvariantError(new.group_id, f"the record {key} is too large: give its nodes shorter ids")
    return changes
