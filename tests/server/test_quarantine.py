"""What cannot be loaded again is not committed, and one group that cannot be served stops no other."""

import asyncio
from dataclasses import replace
from secrets import token_hex
from typing import Any

import pytest

from hetrdzv.core.commands import Drain, StartDaemon, Tick
from hetrdzv.core.model import Group
from hetrdzv.core.rounds import reconcile
from hetrdzv.core.rounds.transitions import StepContext
from hetrdzv.core.state_machine import Transition
from hetrdzv.protocol.errors import GroupQuarantined, ServerFault, StaleRound, UnknownGroup
from hetrdzv.protocol.states import ReportKind
from hetrdzv.service import service as service_module
from hetrdzv.storage import base
from hetrdzv.storage.base import StoreContent
from tests.support.served import FaultyStore, api, join, serving, settled, started, two_nodes

BAD = "bad"
"""A node of this name leads to an impossible state, as a fault of the core would."""


@pytest.fixture
def faulty_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core with a fault: settling a group with a node called `bad` in it makes its number of restarts impossible."""
    real = service_module.step

    def step(group: Group, command: Any, now: float, leases: Any) -> Transition:
        found = real(group, command, now, leases)
        if isinstance(command, Tick) and BAD in found.group.nodes:
            return replace(found, group=replace(found.group, restarts=found.group.spec.max_restarts + 1))
        return found

    monkeypatch.setattr(service_module, "step", step)


async def loads_again(store: FaultyStore) -> None:
    """Another service on what is stored can serve all groups."""
    async with serving(FaultyStore(store.content)) as (other, _):
        assert other.quarantine_reasons() == {}


# -- before the commit -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("faulty_core")
async def test_a_turn_that_led_to_what_cannot_be_kept_is_refused_in_its_group_alone() -> None:
    async with serving() as (service, store):
        await service.execute("g", join("a", min_nodes=50))
        bad = [service.execute("g", command) for command in (join("b"), join(BAD), join("c"), Drain("a"))]
        bad.append(service.execute("new", join(BAD)))
        other = service.execute("h", join("a", min_nodes=2))
        *tried, beside = await asyncio.gather(*bad, other, return_exceptions=True)
        assert isinstance(beside, Group)
        assert [type(result) for result in tried] == [ServerFault] * 5
        assert str(tried[0]).startswith("hetserver could not store the latest changes of group 'g'")
        assert "restarts were spent of" in str(tried[0])
        assert service.group("g").nodes.keys() == {"a"}
        assert not service.group("g").drained
        with pytest.raises(UnknownGroup):
            service.group("new")
        await service.execute("g", join("b"))  # it tries again, and the other has gone
        assert service.group("g").nodes.keys() == {"a", "b"}
        await loads_again(store)


async def test_a_record_that_no_store_takes_is_refused_in_its_group_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names of nodes that have nothing in common may make a record of many megabytes."""
    monkeypatch.setattr(base, "MAX_RECORD_BYTES", 3_000)
    async with serving() as (service, _):
        for _ in range(3):  # its agents try again
            bad = [service.execute("g", join(token_hex(60), max_nodes=40, last_call_s=0)) for _ in range(40)]
            good = [service.execute(f"h{n}", join(token_hex(4), min_nodes=2)) for n in range(5)]
            done = await asyncio.gather(*bad, *good, return_exceptions=True)
            assert [type(each) for each in done[40:]] == [Group] * 5
        assert "too large" in str(done[0])


async def test_a_group_that_cannot_go_on_is_set_aside_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (service, store):
        await two_nodes(service)
        await service.execute("h", join("c"))
        real = service_module.step

        def step(group: Group, command: Any, *args: Any) -> Transition:
            if isinstance(command, Tick) and group.group_id == "g":
                raise RecursionError("maximum recursion depth exceeded")
            return real(group, command, *args)

        monkeypatch.setattr(service_module, "step", step)
        before = {key for key in store.keys if key.startswith("groups/g/")}
        service._spawn_tick_task("g")  # as its timer does
        await settled()
        assert service.quarantine_reasons() == {"g": "RecursionError: maximum recursion depth exceeded"}
        for ask in (service.execute("g", join("a")), service.execute("g", Tick())):
            with pytest.raises(
                GroupQuarantined, match=r"RecursionError.*Back up the store, then hetctl delete g"
            ):
                await ask
        with pytest.raises(GroupQuarantined):
            service.group("g")
        assert before <= store.keys
        assert service.group("h").nodes.keys() == {"c"}
        assert "hetrdzv_quarantined_groups 1.0" in service.render_metrics().decode()
        await service.delete("g")
        assert not any(key.startswith("groups/g/") for key in store.keys)
        assert (await service.execute("h", Drain("c"))).drained == {"c"}


# -- at the load -------------------------------------------------------------------------------------------


async def stored_groups(*names: str) -> dict[str, bytes]:
    """The records of some groups, each with a round that runs on two nodes."""
    store = FaultyStore()
    async with serving(store) as (service, _):
        for name in names:
            await asyncio.gather(*(service.execute(name, join(node, min_nodes=2)) for node in "ab"))
    return dict(store.content.records)


@pytest.mark.parametrize("damage", [(b"{", b""), (b'"restarts":0', b'"restarts":77')], ids=["disk", "fault"])
async def test_a_group_that_cannot_be_served_is_set_aside_alone_byte_for_byte(
    damage: tuple[bytes, bytes],
) -> None:
    stored = await stored_groups("g", "h", "i")
    stored["groups/g/group"] = stored["groups/g/group"].replace(*damage)
    before = {name: record for name, record in stored.items() if name.startswith("groups/g/")}
    async with serving(FaultyStore(StoreContent(stored, 5.0))) as (service, store):
        assert [group.group_id for group in service.groups()] == ["h", "i"]
        assert service.quarantine_reasons().keys() == {"g"}
        with pytest.raises(GroupQuarantined):
            await service.execute("g", join("a"))
        assert (await service.execute("h", Drain("a"))).drained == {"a"}
        assert {name: store.content.records[name] for name in before} == before
        await service.delete("g")
        assert not any(name.startswith("groups/g/") for name in store.keys)
        assert (await service.execute("g", join("a"))).nodes.keys() == {"a"}


async def test_people_see_a_group_that_is_set_aside_and_delete_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stored = await stored_groups("g", "h")
    stored["groups/g/nodes/a"] = b"\xff"
    async with serving(FaultyStore(StoreContent(stored, 5.0))) as (service, _), api(service) as client:
        groups = {one["group_id"]: one for one in (await client.get("/v1/groups")).json()["groups"]}
        assert groups["h"]["state"] == "waiting"
        assert groups["g"]["state"] == "quarantined"
        assert "record groups/g/nodes/a is malformed" in groups["g"]["reason"]["message"]
        poll = await client.get("/v1/groups/g/nodes/a/directive?incarnation=1")
        assert (poll.status_code, poll.json()["code"]) == (503, "group_quarantined")
        assert "hetctl delete g" in poll.json()["detail"]
        page = (await client.get("/", headers={"Accept": "text/html"})).text
        assert "quarantined" in page
        assert (await client.delete("/v1/groups/g")).status_code == 204
        assert [one["group_id"] for one in (await client.get("/v1/groups")).json()["groups"]] == ["h"]
    alone = {key: record for key, record in stored.items() if key.startswith("groups/g/")}
    async with serving(FaultyStore(StoreContent(alone, 5.0))):
        assert "loaded no groups: all are quarantined" in caplog.text


async def test_a_member_that_has_succeeded_and_joined_again_gets_no_daemon() -> None:
    """It led to a group that no server loaded: a node with a daemon and without workers."""
    async with serving() as (service, store):
        for name in "ab":
            ready = replace(join(name, min_nodes=2, max_nodes=2), wants_daemon=True)
            await service.execute("g", ready)
        await service.execute("g", replace(started("b"), kind=ReportKind.SUCCEEDED))
        await service.execute("g", replace(join("b", after_round=1), wants_daemon=True))
        daemon = StartDaemon(node_id="b", master="a", incarnation="1", round=1, words=("orted",))
        with pytest.raises(StaleRound, match=r"round 1 .* is over for node 'b'"):
            await service.execute("g", daemon)
        await loads_again(store)


async def test_a_group_whose_timer_cannot_be_set_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultyStore()
    async with serving(store) as (service, _):
        for name in ("g", "h"):
            await service.execute(name, join("a", min_nodes=2))
    real = reconcile._form_round

    def form(context: StepContext) -> None:
        if context.group.group_id == "g":
            raise IndexError("no such node")
        real(context)

    monkeypatch.setattr(reconcile, "_form_round", form)
    async with serving(FaultyStore(store.content)) as (service, _):
        async with asyncio.timeout(10):
            while "g" not in service.quarantine_reasons():
                await settled()
        assert [group.group_id for group in service.groups()] == ["h"]
        assert service._timers.keys() == {"h"}
        assert (await service.execute("h", join("b", min_nodes=2))).nodes.keys() == {"a", "b"}
