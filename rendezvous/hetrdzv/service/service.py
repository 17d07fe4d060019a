"""The only writer of groups: command -> step -> check -> commit -> reply.

Drives the ledger (what is committed), the timers (when time alone changes a group), the open polls (who waits for
news), the judging of silence, and the retention of groups that nobody needs any more. A request never sees uncommitted
state.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

from hetrdzv.core.commands import (
    Command,
    DeclareSnapshots,
    Disconnect,
    Join,
    PutSpec,
    RenewLease,
    Report,
    Tick,
)
from hetrdzv.core.model import Group
from hetrdzv.core.plan import make_plan
from hetrdzv.core.rounds.reconcile import next_tick_at
from hetrdzv.core.rounds.records import list_records
from hetrdzv.core.rounds.timers import SUSPECT_GRACE_S
from hetrdzv.core.rounds.transitions import make_stale_round_error, require_current_agent
from hetrdzv.core.snapshots.sources import next_copy_order
from hetrdzv.core.snapshots.start_snapshot import newest_memory_snapshot
from hetrdzv.core.state_machine import Transition, new_group, step
from hetrdzv.protocol.errors import (
    HetError,
    Refused,
    ServerStopping,
    SettingsConflict,
    StorageError,
    UnknownGroup,
)
from hetrdzv.protocol.reasons.events import node_refused
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.replies import Event, Plan, ReadyReply
from hetrdzv.protocol.requests import PlanRequest
from hetrdzv.protocol.rounds import RoundRecord
from hetrdzv.protocol.snapshots import SnapshotsReply
from hetrdzv.protocol.texts.node_rank_lists import NodeList
from hetrdzv.service.clock import BEAT_INTERVAL_S, ServedClock
from hetrdzv.service.event_log import log_events
from hetrdzv.service.leases import LeaseTable, is_heartbeat
from hetrdzv.service.ledger import (
    Change,
    Ledger,
    describe_invalid_state,
    make_checked_changes,
    make_quarantined_error,
)
from hetrdzv.service.metrics import Metrics
from hetrdzv.service.polls.waiting_polls import WaitingPolls
from hetrdzv.service.progress.post_mortems import PostMortems
from hetrdzv.service.progress.progress import ProgressTracker
from hetrdzv.service.progress.queries import AgentQueries
from hetrdzv.service.retention import KEEP_FINISHED_S, MAX_GROUPS, is_outdated, require_room_for_nodes
from hetrdzv.storage.base import NothingWritten, StateStore

logger = logging.getLogger(__name__)

RETRY_INTERVAL_S = 1.0
"""How long to wait before retrying what failed (seconds)."""

LOOP_TURNS_TO_READ_SOCKETS = 12
"""How many turns of the event loop it takes to read what is in the sockets before anybody is judged: accept a
connection, read it, run what handles the request, with some to spare."""

TIMER_MARGIN_S = 0.002
"""A timer goes off this long after its deadline, so that no clock says that it has not come (seconds)."""

SWEEP_INTERVAL_S = 5.0
"""How often groups to forget are looked for (seconds)."""

MAX_GROUPS_PER_SWEEP = 500
"""How many groups a sweep forgets; the next one goes on."""

MAX_DIFFERENCES_IN_HISTORY = 4
"""How many differences of a refused node the history names."""

MAX_REFUSALS_IN_HISTORY = 8
"""How many refused nodes the history names at a time: they are no reason to forget what else has happened."""

MAX_SUSPECT_LEASE_S = 60.0
"""A lost connection makes a node suspect only where the lease of its group is at most this long (seconds)."""


class Service:
    """All groups of one store, which it closes. `metrics` outlive it; `wall` is for people only."""

    def __init__(
        self,
        store: StateStore,
        make_clock: Callable[[float], ServedClock] = ServedClock,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        metrics: Metrics | None = None,
        keep_finished_s: float = KEEP_FINISHED_S,
    ) -> None:
        self._clock = make_clock(0.0)  # loading moves it on to the store's high-water mark
        self._metrics = metrics or Metrics()
        self._keep_finished_s = keep_finished_s
        self._store = store
        self._ledger = Ledger(store, wall, self._metrics)
        self.waiting_polls = WaitingPolls()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._used_at: dict[str, float] = {}  # when a command last changed each group
        self._sweep_at = 0.0
        self._planning = asyncio.Lock()
        self.leases = LeaseTable(self._clock, lambda: self._ledger.groups)
        self.post_mortems = PostMortems(wall)
        self.queries = AgentQueries(self.waiting_polls.wake)
        self.progress = ProgressTracker(
            lambda: self._ledger.groups,
            self.now,
            self.execute,
            self._spawn,
            self.queries,
            self.post_mortems,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the store and begin to serve; raises `StorageError` if it cannot be read."""
        await self._load_store()
        is_empty = not (self._ledger.groups or self._ledger.quarantined)
        logger.log(logging.DEBUG if is_empty else logging.INFO, "%s", self._ledger.describe_loaded())
        self._clock.restart(self.now())  # what it took to get here makes no beat late, so it excuses no cut
        self._spawn(self._commit_forever())
        self._spawn(self._advance_clock_forever())

    def begin_stop(self) -> None:
        """Answer every open poll now and refuse new commands."""
        self.stopping = True
        self.waiting_polls.wake_all()

    async def close(self) -> None:
        """Commit what is pending and close the store."""
        self.begin_stop()
        await self._ledger.wait_for_all_commits()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for group_id in list(self._timers):
            self._set_timer(group_id, None)
        await self._ledger.close(self.now())

    def require_ready(self) -> None:
        """Check that commands are answered: the state is loaded, and no stop has begun."""
        if self.stopping:
            raise ServerStopping("the server is stopping; try again in a moment, or try another server")
        self._require_loaded()

    @property
    def is_failing(self) -> bool:
        """Whether the last commit failed, so that changes may be refused."""
        return self._ledger.is_failing

    def service(self) -> "Service":
        """Itself: a server that is alone always leads."""
        return self

    def may_send_reply(self, service: "Service") -> bool:
        """Whether a reply may still be sent: nobody else leads."""
        return True

    def status(self) -> ReadyReply:
        """That requests are answered; raises what `require_ready` does."""
        self.require_ready()
        return ReadyReply(status="degraded" if self.is_failing else "ready", role="single")

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
        """One group; raises `UnknownGroup`, or `GroupQuarantined` if it is set aside."""
        self._require_loaded()
        group = self._ledger.groups.get(group_id)
        if group is None:
            self._require_served(group_id)
            raise _make_unknown_group_error(group_id)
        return group

    def quarantine_reasons(self) -> Mapping[str, str]:
        """Why each group is set aside that cannot be served, by id."""
        self._require_loaded()
        return {group_id: aside.why for group_id, aside in sorted(self._ledger.quarantined.items())}

    def _require_served(self, group_id: str) -> None:
        if (aside := self._ledger.quarantined.get(group_id)) is not None:
            raise make_quarantined_error(group_id, aside.why)

    def history(self, group_id: str, after: int = 0) -> tuple[list[Event], int]:
        """The events of a group after number `after`, and the number of its last one."""
        self.group(group_id)
        events = list(self._ledger.history(group_id))
        return [event for event in events if event.number > after], events[-1].number if events else 0

    def rounds(self, group_id: str) -> tuple[RoundRecord, ...]:
        """The records of a group's rounds, with when each formed, as far as its events go back."""
        group = self.group(group_id)
        events = self._ledger.history(group_id)
        formed = {one.reason.round: one.at for one in events if one.reason.code == ReasonCode.ROUND_FORMED}
        return tuple(
            replace(one, formed_at=formed.get(one.number)) for one in list_records(group, self.now())
        )

    async def plan(self, group_id: str, changes: PlanRequest) -> Plan:
        """What would happen to a group if nodes came or went. Plans are made in a thread, one at a time."""
        group = self.group(group_id)
        async with self._planning:  # else whoever may read could take all of the server's time
            return await asyncio.to_thread(make_plan, group, changes, self.now())

    # -- writing ---------------------------------------------------------------------------------------------

    async def execute(self, group_id: str, command: Command) -> Group:
        """Apply a command to a group; returns the group once it is committed.

        Raises:
            Refused: the group or a limit does not allow it; nothing changed.
            UnknownGroup: there is none, or it was deleted at the same time.
            StorageError: it could not be stored; nothing changed.
            ServerFault: it would have led to a state that cannot be loaded again; nothing changed.
            GroupQuarantined: the group is set aside.
            ServerStopping: the server is shutting down.
        """
        head = await self._find_head(group_id)
        now = self.now()
        if head is None:
            self._require_served(group_id)
            if not isinstance(command, Join | PutSpec):
                raise _make_unknown_group_error(group_id)
            if not self._ledger.has_room_for_group(MAX_GROUPS):
                raise Refused(
                    f"this server keeps {MAX_GROUPS} groups and may keep no more: delete some (hetctl "
                    f"delete GROUP), or start hetserver with a shorter --keep-finished"
                )
            head = new_group(group_id, now)
        require_room_for_nodes(head, command)
        if isinstance(command, Report):
            command = replace(command, age_s=self._clock.age(command.age_s))
        try:
            if isinstance(command, RenewLease) and is_heartbeat(head, command):
                return await self._record_heartbeat(head, command, now)
            if isinstance(command, Tick):
                self.leases.has_expired(group_id)
                transition = Transition(head)  # it is reconciled at the end of the turn
            else:
                transition = step(head, command, now, self.leases.expired_nodes)
        except Refused:
            # a refusal must not reveal state that may never be committed
            await self._ledger.wait_for_commit(group_id)
            raise
        self.leases.on_command(transition.group, command, now)  # a first join brings the group's lease
        group = await self._ledger.propose(group_id, transition.group, transition.events)
        if group is None:
            raise _make_unknown_group_error(group_id)  # it was deleted in the same turn
        return group

    async def _record_heartbeat(self, head: Group, command: RenewLease, now: float) -> Group:
        """Note a heartbeat, which commits nothing and wakes nobody; what was proposed before is committed first."""
        require_current_agent(head, command.node_id, command.incarnation)
        self.leases.on_command(head, command, now)
        if self._ledger.is_committed(head.group_id):
            return head
        await self._ledger.wait_for_commit(head.group_id)
        return self.group(head.group_id)

    async def record_refusal(self, group_id: str, node_id: str, conflict: SettingsConflict) -> None:
        """Note in the history of a group, once, that a node was refused for its settings; of many the first."""
        self.require_ready()
        refusal = node_refused(node_id, conflict.differences[:MAX_DIFFERENCES_IN_HISTORY])
        head, history = self._ledger.proposed_group(group_id), self._ledger.history(group_id)
        told = [*(event.reason for event in history), *self._ledger.proposed_events(group_id)]
        known = [reason for reason in told if reason.code == refusal.code]
        if head is not None and refusal not in known and len(known) < MAX_REFUSALS_IN_HISTORY:
            await self._ledger.propose(group_id, head, [refusal])

    async def record_snapshot_inventory(self, group_id: str, command: DeclareSnapshots) -> SnapshotsReply:
        """Keep what a member holds of snapshots; says what all hold together, once that is committed."""
        await self.execute(group_id, command)
        # as of this turn: what all hold is looked at once for all who have told in it
        group = self.group(group_id)
        node, current = group.nodes.get(command.node_id), group.active_round
        if node is None or current is None or current.number != command.round:
            # it has ended in the same turn
            raise make_stale_round_error(group, command.round, command.node_id)
        complete = newest_memory_snapshot(group)
        return SnapshotsReply(complete=complete, copy=next_copy_order(group, node, complete))

    async def delete(self, group_id: str) -> None:
        """Delete a group, unless it has live nodes and its job is not over."""
        head = await self._find_head(group_id)
        if head is None and group_id not in self._ledger.quarantined:
            raise _make_unknown_group_error(group_id)
        if head is not None and head.live_nodes and not head.state.is_terminal:
            await self._ledger.wait_for_commit(group_id)
            live = NodeList.of(node.node_id for node in head.live_nodes)
            raise Refused(
                f"group '{group_id}' still has nodes ({live}): hetctl cancel {group_id} ends its job"
            )
        await self._ledger.propose(group_id, None)

    async def on_poll_disconnect(self, group_id: str, node_id: str, incarnation: str) -> None:
        """Make a node suspect whose open poll was cut, unless this server's own lateness may be the reason.

        Whoever asks for a lease of more than `MAX_SUSPECT_LEASE_S` expects connections to be lost.
        """
        group = self._ledger.groups.get(group_id)
        if group is not None and group.spec.lease_s > MAX_SUSPECT_LEASE_S:
            return
        if self.leases.may_have_caused_disconnect():
            return
        try:
            await self.execute(group_id, Disconnect(node_id, incarnation))
            grace_s = SUSPECT_GRACE_S + TIMER_MARGIN_S
            asyncio.get_running_loop().call_later(grace_s, self._spawn_tick_task, group_id)
        except HetError as error:  # the group is gone, or the server stops: nobody is left to suspect
            logger.debug("cut of %s in group %s: %s", node_id, group_id, error)

    async def _find_head(self, group_id: str) -> Group | None:
        """The state that the next command applies to; None: there is no such group."""
        self.require_ready()
        while not self._ledger.is_committed(group_id) and self._ledger.proposed_group(group_id) is None:
            # it is being deleted: what comes next makes another group
            await self._ledger.wait_for_commit(group_id)
            self.require_ready()
        return self._ledger.proposed_group(group_id)

    # -- committing and loading ------------------------------------------------------------------------------

    async def _commit_forever(self) -> None:
        while True:
            await self._ledger.wait_for_proposals()
            failed = self._reconcile_proposals()
            try:
                changes, refused = await self._ledger.commit(self.now(), failed)
                for change in changes:
                    log_events(change)
                    self._publish_change(change)
                for group_id in refused:
                    self._quarantine_if_stuck(group_id)
            except NothingWritten as error:
                logger.error("commit failed, nothing was changed: %s", error)
                for group_id in {*self._ledger.refuse(error), *failed}:
                    self._schedule_retry(group_id)
            except Exception as error:
                bug = None if isinstance(error, StorageError) else error
                logger.error("commit failed, reloading the state: %s", error, exc_info=bug)
                self._ledger.refuse(error)
                await self._reload_store()

    def _schedule_retry(self, group_id: str) -> None:
        """A change of a group was not stored: what was due in it is tried again."""
        if group_id in self._ledger.groups:
            self._set_timer(group_id, RETRY_INTERVAL_S)

    def _reconcile_proposals(self) -> dict[str, Exception]:
        """Settle what was said in this turn of the event loop, once for each group; returns those where that failed."""
        failed: dict[str, Exception] = {}
        for group_id, head in self._ledger.pending_heads():
            try:
                transition = step(head, Tick(), self.now(), self.leases.expired_nodes)
            except Exception as error:  # nothing of this turn can be kept
                failed[group_id] = error
            else:
                self._ledger.replace_head(group_id, transition.group, transition.events)
        return failed

    def _quarantine_if_stuck(self, group_id: str) -> None:
        """Set a group aside if it cannot go on from what is committed either, after a turn of it was refused."""
        base, now = self._ledger.groups.get(group_id), self.now()
        if base is None:
            return
        try:
            make_checked_changes(base, step(base, Tick(), now, self.leases.expired_nodes).group)
        except Exception as error:
            logger.error("group '%s' is quarantined: it cannot go on", group_id, exc_info=error)
            self._ledger.quarantine(group_id, describe_invalid_state(error))
            self._publish_change(Change(group_id, base, None))
        else:
            self._schedule_retry(group_id)

    def _publish_change(self, change: Change) -> None:
        """Count a committed change, set the timer of its group, wake the polls that it affects."""
        now = self.now()
        self._metrics.on_commit(change.group_id, change.old, change.new, change.events, now)
        if change.new is None:
            self._set_timer(change.group_id, None)
            self.leases.forget_group(change.group_id)
            self._used_at.pop(change.group_id, None)
            self.post_mortems.forget_group(change.group_id)
        else:
            self._schedule_deadline(change.new)
            self._used_at[change.group_id] = now
        if change.new is None or change.new.state.is_terminal:
            self.progress.forget_group(change.group_id)
        self.waiting_polls.wake_nodes(change.group_id, change.old, change.new)

    async def _reload_store(self) -> None:
        while not self._ledger.is_loaded:
            try:
                await self._load_store(
                    ticks_after_s=RETRY_INTERVAL_S
                )  # the failure may come from a tick that is due
            except Exception as error:
                logger.error("cannot load the state: %s", error)
                await asyncio.sleep(RETRY_INTERVAL_S)

    async def _load_store(self, ticks_after_s: float = 0.0) -> None:
        """Replace what is in memory by what the store holds, and wake everybody who waits."""
        snapshot = await self._store.load()
        if snapshot.clock > self.now():  # else this process has served all along, and ages go on
            self._clock.restart(snapshot.clock)
        await self._ledger.restore(snapshot)
        self.leases.restore_leases(self._ledger.groups.values())
        for group_id in list(self._timers):
            self._set_timer(group_id, None)
        self._used_at.clear()
        self.progress.forget_all()
        self.post_mortems.forget_all()
        self._metrics.forget_groups()
        for group in self._ledger.groups.values():
            self._schedule_deadline(group, ticks_after_s)
        self.waiting_polls.wake_all()

    # -- time ------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The server's clock (seconds this store has been served)."""
        return self._clock.now()

    async def _advance_clock_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + BEAT_INTERVAL_S
            await asyncio.sleep(BEAT_INTERVAL_S)
            self._metrics.late.observe(max(0.0, loop.time() - due))  # ticks and cut polls begin beats as well
            self.leases.begin_beat()
            for group_id in self.leases.find_expired_groups():
                self._spawn_tick_task(group_id)
            now = self.now()
            self._ledger.store_clock(now)
            self._forget_outdated_groups(now)

    def _forget_outdated_groups(self, now: float) -> None:
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_INTERVAL_S
        groups = self._ledger.groups.values()
        outdated = (
            group
            for group in groups
            if is_outdated(group, self._used_at.get(group.group_id), now, self._keep_finished_s)
        )
        for group in list(islice(outdated, MAX_GROUPS_PER_SWEEP)):
            self._spawn(self._forget_group(group))

    async def _forget_group(self, group: Group) -> None:
        if not self._ledger.is_loaded or self._ledger.proposed_group(group.group_id) is not group:
            return  # it is in use again, or may be
        try:
            await self._ledger.propose(group.group_id, None)
        except StorageError as error:  # the next sweep finds it again
            logger.debug("group %s was not forgotten: %s", group.group_id, error)

    def _schedule_deadline(self, group: Group, least_s: float = 0.0) -> None:
        """Set the timer of a group to when time alone changes it, but not before `least_s`."""
        now = self.now()
        try:
            at = next_tick_at(group, now)
        except Exception:  # the tick that is due then fails as well, and the group is quarantined
            at = now
        self._set_timer(group.group_id, None if at is None else max(least_s, at - now))

    def _set_timer(self, group_id: str, delay_s: float | None) -> None:
        """Set the timer of a group, in place of the one it had; None: it needs none (seconds)."""
        if (handle := self._timers.pop(group_id, None)) is not None:
            handle.cancel()
        if delay_s is not None:
            loop = asyncio.get_running_loop()
            self._timers[group_id] = loop.call_later(
                delay_s + TIMER_MARGIN_S, self._spawn_tick_task, group_id
            )

    def _spawn_tick_task(self, group_id: str) -> None:
        """Time alone has changed something in a group, or may have."""
        self._spawn(self._tick(group_id))

    async def _tick(self, group_id: str) -> None:
        for _ in range(LOOP_TURNS_TO_READ_SOCKETS):
            await asyncio.sleep(0)
        self.leases.begin_beat()
        try:
            await self.execute(group_id, Tick())
        except HetError as error:  # a load sets the timers again, and a group that is gone needs none
            logger.debug("tick of group %s: %s", group_id, error)

    def render_metrics(self) -> bytes:
        """The metrics of this server in Prometheus' text format, while it answers for the groups."""
        return self._metrics.render_text(
            self._ledger.groups.values(),
            now=self.now(),
            open_polls=self.waiting_polls.count_waiting(),
            leads=True,
            quarantined=len(self._ledger.quarantined),
            failing=self.is_failing,
        )


def _make_unknown_group_error(group_id: str) -> UnknownGroup:
    return UnknownGroup(f"there is no group '{group_id}'")


class Replica(Protocol):
    """A server: a `Service` alone on its store, or one of several (leadership.py)."""

    def service(self) -> Service:
        """The service that answers requests about groups; raises NotLeader, NoLeader, ServerStopping."""

    def may_send_reply(self, service: Service) -> bool:
        """Whether a reply of this service may still be sent; ask right before sending it."""

    def status(self) -> ReadyReply:
        """Its role, if requests are answered or redirected; else raises ServerStopping, StorageError, NoLeader."""

    async def start(self) -> None:
        """Begin to serve, or to follow; raises StorageError."""

    def begin_stop(self) -> None:
        """Answer every open poll now, let other servers take over, and refuse new requests."""

    async def close(self) -> None:
        """Stop, and close the store."""
