"""The service, on a store that fails and blocks on demand."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from hetrdzv.core.commands import Cancel, Disconnect, Drain, PutSpec, RenewLease, Restart, Tick
from hetrdzv.protocol.errors import (
    ServerStopping,
    SpecConflict,
    StaleRound,
    StorageError,
    UnknownGroup,
)
from hetrdzv.protocol.progress import PollRequest
from hetrdzv.protocol.states import GroupState, NodePhase
from hetrdzv.service import clock as clock_module
from hetrdzv.service import ledger
from hetrdzv.service import service as service_module
from hetrdzv.service.polls.polls import Polls, current_directive
from hetrdzv.service.polls.waiting_polls import Caller, WaitingPolls
from hetrdzv.service.service import Service
from hetrdzv.storage import records
from hetrdzv.storage.base import NothingWritten
from tests.core.driver import running
from tests.support.served import FaultyStore, HandClock, join, serving, settled, started, two_nodes

WAIT_S = 20.0
"""How long a poll of these tests may wait: none should."""


def heard_at(service: Service, node_id: str) -> float:
    """When a node was last heard, by the service's table."""
    group = service.group("g")
    return service.leases.heard_at(group, group.nodes[node_id])


def begun(work: Awaitable[Any]) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(work)


async def poll(service: Service, node_id: str) -> "asyncio.Future[Any]":
    """A poll that waits for another directive than the present one."""
    version = current_directive(service, "g", node_id, "1").version
    asked = PollRequest(incarnation="1", after=version, wait_s=WAIT_S)
    waiting = begun(Polls(service).answer_poll(Caller(), "g", RenewLease(node_id, "1"), asked))
    await settled()
    return waiting


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while not holds():  # noqa: ASYNC110 - what tests look at sets no event
        await asyncio.sleep(0.001)
    await settled()


async def told(waiting: "asyncio.Future[Any]") -> str:
    """The kind of the directive that a poll brings, at once."""
    await settled()
    assert waiting.done(), "the poll was not woken"
    return str(waiting.result().kind)


# -- commits -----------------------------------------------------------------------------------------------


async def test_nothing_is_seen_before_it_is_committed() -> None:
    async with serving() as (service, store):
        store.open.clear()
        joining = begun(service.execute("g", join("a")))
        await settled()
        assert not joining.done()
        with pytest.raises(UnknownGroup):
            service.group("g")
        store.open.set()
        assert (await joining).nodes.keys() == {"a"}
        assert service.group("g").nodes.keys() == {"a"}


async def test_what_many_say_in_one_turn_is_settled_and_committed_once() -> None:
    async with serving() as (service, store):
        many = [join(f"n{i}", min_nodes=50, max_nodes=50) for i in range(50)]
        await asyncio.gather(*(service.execute("g", one) for one in many))
        assert len(store.commits) == 1
        group = service.group("g")
        assert (group.state, group.last_round) == (GroupState.STARTING, 1)
        kinds = [stored.reason.code for stored in service.history("g")[0]]
        assert kinds[:51] == [*["node_joined"] * 50, "round_formed"]


async def test_a_group_is_settled_once_all_of_a_turn_was_said() -> None:
    async with serving() as (service, _):
        joins = [service.execute("g", join(name, min_nodes=2, max_nodes=2)) for name in "abc"]
        await asyncio.gather(*joins, service.execute("g", Drain("b")))
        group = service.group("g")
        assert group.round is not None
        assert group.round.members_by_id.keys() == {"a", "c"}
        assert group.last_round == 1


@pytest.mark.parametrize("failure", [StorageError("the disk is full"), RuntimeError("the disk is full")])
async def test_a_failed_commit_changes_nothing_and_is_told_to_everybody_in_it_and_behind_it(
    failure: Exception,
) -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, store):
        await service.execute("g", join("a", min_nodes=2))
        clock.pass_by(service, 4.0)
        before = service.now()
        store.open.clear()
        store.failures.append(failure)
        tried = [begun(service.execute("g", join("b"))), begun(service.execute("h", PutSpec({})))]
        await settled()
        tried.append(begun(service.execute("g", join("c"))))
        await settled()
        store.open.set()
        for waiting in tried:
            with pytest.raises(StorageError, match="the disk is full"):
                await waiting
        await settled()
        assert [group.group_id for group in service.groups()] == ["g"]
        assert service.group("g").nodes.keys() == {"a"}
        assert service.now() == before
        assert (await service.execute("g", join("b"))).nodes.keys() == {"a", "b"}


async def test_while_the_store_cannot_be_loaded_reads_are_refused_and_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_module, "RETRY_INTERVAL_S", 0.05)
    async with serving() as (service, store):
        await two_nodes(service)
        waiting = await poll(service, "a")
        store.load_failures += [StorageError("gone"), RuntimeError("a bug")]
        store.failures.append(StorageError("no"))
        with pytest.raises(StorageError):
            await service.execute("g", Drain("b"))
        for read in (service.groups, service.require_ready, lambda: service.group("g")):
            with pytest.raises(StorageError, match="not loaded"):
                read()
        with pytest.raises(StorageError, match="not loaded"):
            await service.execute("g", RenewLease("a", "1"))
        async with asyncio.timeout(5):
            while True:
                try:
                    service.require_ready()
                    break
                except StorageError:
                    await asyncio.sleep(0.01)
        assert not waiting.done()
        await service.execute("g", Drain("b"))
        assert await told(waiting) == "stop"


async def test_polls_look_again_after_a_load_since_the_commit_may_have_gone_down() -> None:
    async with serving() as (service, store):
        await two_nodes(service)
        waiting = await poll(service, "a")
        store.is_written = True
        store.failures.append(StorageError("timed out"))
        with pytest.raises(StorageError):
            await service.execute("g", Cancel())
        assert await told(waiting) == "exit"
        assert service.group("g").state is GroupState.CANCELLED


async def test_what_is_committed_is_served_while_nothing_can_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No load, no poll that is woken, no lease that starts again: nothing has changed."""
    async with serving() as (service, store):
        await two_nodes(service)
        before, waiting = service.group("g"), await poll(service, "a")
        store.load_failures = [StorageError("it was loaded")]
        for change in (join("c"), Drain("a"), Cancel(by="me")):
            store.failures = [NothingWritten("the disk is full")]
            with pytest.raises(NothingWritten, match="the disk is full"):
                await service.execute("g", change)
            assert service.group("g") is before
            assert service.is_failing
        commits = len(store.commits)
        await service.execute("g", RenewLease("b", "1"))
        await settled()
        assert len(store.commits) == commits
        assert not waiting.done()
        assert "it was loaded" not in caplog.text
        await service.execute("g", Drain("b"))
        assert not service.is_failing
        assert await told(waiting) == "stop"


async def test_the_clock_is_stored_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "BEAT_INTERVAL_S", 0.001)
    hand = HandClock()
    async with serving(clock=hand) as (service, store):
        await service.execute("g", join("a", lease_s=600.0))
        hand.pass_by(service, ledger.CLOCK_STORE_INTERVAL_S)
        await until(lambda: store.commits[-1] == {})
        assert store.content.clock == service.now()


async def test_what_was_due_while_nothing_could_be_written_is_done_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node whose next agent could not be stored is lost when that agent and its own are silent."""
    monkeypatch.setattr(service_module, "RETRY_INTERVAL_S", 0.001)
    hand = HandClock()
    async with serving(clock=hand) as (service, store):
        await two_nodes(service)
        await service.on_poll_disconnect("g", "a", "1")
        store.failures = [NothingWritten("the disk is full")]
        with pytest.raises(NothingWritten):
            await service.execute("g", join("a", "2"))
        for _ in range(12):
            hand.pass_by(service, 1.0)
            await service.execute("g", RenewLease("b", "1"))
        store.failures = [NothingWritten("the disk is full")] * 3
        with pytest.raises(NothingWritten):
            await service.execute("g", Tick())
        await until(lambda: service.group("g").nodes["a"].phase is NodePhase.LOST)
        assert service.group("g").nodes["a"].incarnation == "1"


async def test_after_a_failure_due_ticks_wait_instead_of_spinning() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, store):
        await service.execute("g", join("a", min_nodes=2, join_timeout_s=0.1))
        clock.pass_by(service, 0.4)
        store.failures += [StorageError("no")] * 100
        with pytest.raises(StorageError):
            await service.execute("g", Tick())
        await asyncio.sleep(0.1)
        assert len(store.failures) == 99
        store.failures.clear()


# -- a command while a commit is in flight -----------------------------------------------------------------


async def test_a_refusal_waits_for_the_state_that_it_speaks_of() -> None:
    async with serving() as (service, store):
        await two_nodes(service)
        store.open.clear()
        changes = [
            begun(service.execute("g", Drain("b"))),
            begun(service.execute("h", PutSpec({"min_nodes": 2}))),
        ]
        await settled()
        stale = begun(service.execute("g", started("a", 7)))
        conflicting = begun(service.execute("h", join("a", min_nodes=3)))
        await settled()
        assert not stale.done()
        assert not conflicting.done()
        store.open.set()
        await asyncio.gather(*changes)
        with pytest.raises(StaleRound):
            await stale
        with pytest.raises(SpecConflict):
            await conflicting
        assert current_directive(service, "g", "a", "1").kind == "stop"


async def test_a_suspect_that_is_heard_again_lets_the_round_form_for_all() -> None:
    async with serving(clock=HandClock()) as (service, _):
        await service.execute("g", join("a", min_nodes=2, last_call_s=0.0))
        await service.execute("g", Disconnect("a", "1"))
        await service.execute("g", join("b"))
        waiting = await poll(service, "b")
        assert not waiting.done()
        await service.execute("g", RenewLease("a", "1"))
        assert await told(waiting) == "start"


async def test_a_change_of_a_node_concerns_it_and_those_that_have_left() -> None:
    """Whether one that has left has to go on serving its snapshots depends on the others."""
    watchers = WaitingPolls()
    story = running("a", "b", "c")
    story.leave("b")
    before = story.group
    waiting = {
        name: asyncio.ensure_future(watchers.wait_for_change("g", name, 60.0, Caller())) for name in "abc"
    }
    await asyncio.sleep(0)
    watchers.wake_nodes("g", before, before.with_node(replace(before.nodes["a"], slots=2)))
    await asyncio.sleep(0.01)
    assert [name for name, poll in waiting.items() if poll.done()] == ["a", "b"]
    waiting["c"].cancel()


# -- groups come and go ------------------------------------------------------------------------------------


async def test_a_group_that_was_deleted_and_made_again_in_one_turn_has_no_past() -> None:
    async with serving() as (service, store):
        await two_nodes(service)
        await service.execute("g", Cancel())
        deleting, making = begun(service.delete("g")), begun(service.execute("g", join("c")))
        await asyncio.gather(deleting, making)
        assert service.group("g").nodes.keys() == {"c"}
        assert [stored.number for stored in service.history("g")[0]] == [1]
        assert store.keys == {"groups/g/group", "groups/g/nodes/c", records.event_key("g", 1)}


async def test_a_deleted_group_leaves_nothing_behind() -> None:
    async with serving() as (service, store):
        await two_nodes(service)
        await service.execute("g", Cancel())
        waiting = await poll(service, "a")
        await settled()
        await service.delete("g")
        await settled()
        with pytest.raises(UnknownGroup):
            waiting.result()
        assert service.waiting_polls.count_waiting() == 0
        assert store.keys == set()
        assert list(service.groups()) == []
        assert list(service._timers) == []
        for command in (RenewLease("a", "1"), Restart(), Tick()):
            with pytest.raises(UnknownGroup):
                await service.execute("g", command)
        with pytest.raises(UnknownGroup):
            await service.delete("g")


# -- loading -----------------------------------------------------------------------------------------------


async def test_a_stop_answers_polls_and_what_is_being_committed() -> None:
    async with serving() as (service, store):
        await two_nodes(service)
        waiting = await poll(service, "a")
        store.open.clear()
        joining = begun(service.execute("h", join("a")))
        await settled()
        closing = begun(service.close())
        assert await told(waiting) == "start"
        with pytest.raises(ServerStopping):
            await service.execute("h", join("b"))
        assert not closing.done()
        store.open.set()
        await closing
        assert (await joining).nodes.keys() == {"a"}
        assert "groups/h/nodes/a" in store.keys


async def test_history_is_numbered_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_STORED_EVENTS", 5)
    async with serving() as (service, store):
        for i in range(8):
            await service.execute("g", join(f"n{i}", min_nodes=100))
        events, last = service.history("g")
        assert ([stored.number for stored in events], last) == ([4, 5, 6, 7, 8], 8)
        assert len([key for key in store.keys if "/events/" in key]) == 5
        assert service.history("g", 7)[0] == events[-1:]
        assert service.history("g", 8)[0] == []


# -- time --------------------------------------------------------------------------------------------------


async def test_after_a_stall_nobody_counts_as_told_to_stop() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _):
        await two_nodes(service)
        await service.execute("g", Restart())
        clock.at += 60.0
        await service.execute("g", RenewLease("a", "1", current_directive(service, "g", "a", "1").version))
        nodes = service.group("g").nodes
        assert nodes["a"].stop_acked_at is not None
        assert nodes["b"].stop_acked_at is None


async def test_what_is_in_the_sockets_of_a_late_server_counts_before_anybody_is_judged() -> None:
    """The server was busy past the end of a lease, while the node's poll waited in its socket."""
    clock = HandClock()
    async with serving(clock=clock) as (service, _):
        await two_nodes(service)
        clock.pass_by(service, 5.5)
        judging = begun(service._tick("g"))
        await asyncio.sleep(0)  # accepted
        await asyncio.sleep(0)  # read
        await service.execute("g", RenewLease("a", "1"))
        await judging
        await settled()
        nodes = service.group("g").nodes
        assert (nodes["a"].is_gone, nodes["b"].is_gone) == (False, True)


async def test_a_stall_is_measured_whatever_begins_the_next_beat() -> None:
    async with serving() as (service, _):
        await two_nodes(service)
        await asyncio.sleep(0)
        time.sleep(0.7)  # noqa: ASYNC251
        await service.on_poll_disconnect("g", "a", "1")
        await asyncio.sleep(0.01)
        sums = [
            line for line in service.render_metrics().decode().splitlines() if "loop_late_seconds_sum" in line
        ]
        assert float(sums[0].split()[1]) > 0.3


async def test_a_slow_start_excuses_no_cut() -> None:
    """Imports and the load of the store come before anybody is connected."""
    clock = HandClock()
    service = Service(FaultyStore(), clock.make)
    clock.at += 10.0
    await service.start()
    try:
        await two_nodes(service)
        clock.pass_by(service, clock_module.BEAT_INTERVAL_S)
        await service.on_poll_disconnect("g", "a", "1")
        assert service.group("g").nodes["a"].disconnected_at is not None
    finally:
        await service.close()


async def test_a_cut_of_what_is_gone_is_no_error() -> None:
    async with serving() as (service, _):
        await service.on_poll_disconnect("nowhere", "a", "1")
        await two_nodes(service)
        await service.on_poll_disconnect("g", "nobody", "1")
        await service.on_poll_disconnect("g", "a", "former")
        assert service.group("g").nodes["a"].disconnected_at is None
        service.begin_stop()
        await service.on_poll_disconnect("g", "a", "1")


async def test_a_tick_that_fails_is_tried_again_though_nothing_else_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_module, "RETRY_INTERVAL_S", 0.01)
    failures: list[Exception] = [ValueError("a bug")]
    real = service_module.step

    def step(group: Any, command: Any, now: float, lapsed: Any, **more: Any) -> Any:
        if isinstance(command, Tick) and failures and lapsed(group, now):
            raise failures.pop()
        return real(group, command, now, lapsed, **more)

    monkeypatch.setattr(service_module, "step", step)
    async with serving() as (service, _):
        await service.execute("g", join("a", max_nodes=1, lease_s=1.0))
        await service.execute("g", started("a"))
        assert "g" not in service._timers
        async with asyncio.timeout(10):
            while not service.group("g").nodes["a"].is_gone:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
        assert not failures
