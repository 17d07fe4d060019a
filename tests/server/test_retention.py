"""Which groups a server forgets, and when; how many groups and nodes there may be."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from hetrdzv.core.commands import Cancel, Command, Drain, Leave, PutSpec, Restart, Tick, Undrain
from hetrdzv.protocol.errors import Refused, StorageError
from hetrdzv.protocol.states import ReportKind
from hetrdzv.service import retention
from hetrdzv.service import service as service_module
from hetrdzv.service.service import SWEEP_INTERVAL_S, Service
from tests.support.served import FaultyStore, HandClock, join, serving, settled, started, two_nodes

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEEP_IDLE_S", 100.0)
    monkeypatch.setattr(retention, "MAX_NODES_PER_GROUP", 2)
    monkeypatch.setattr(service_module, "MAX_GROUPS", 3)


async def all_leave(service: Service, group_id: str = "g") -> None:
    for node in service.group(group_id).live_nodes:
        await service.execute(group_id, Leave(node_id=node.node_id, incarnation=node.incarnation))


async def left(service: Service, group_id: str = "g", by: Command | None = None) -> None:
    """A group whose agents have all left, after this command if any."""
    await two_nodes(service, group_id)
    if by is not None:
        await service.execute(group_id, by)
    await all_leave(service, group_id)


async def swept(service: Service, clock: HandClock, seconds: float = 0.0) -> list[str]:
    """The groups that are left after some time and a sweep."""
    clock.pass_by(service, seconds + SWEEP_INTERVAL_S)
    service._forget_outdated_groups(service.now())
    await settled()
    return [group.group_id for group in service.groups()]


# -- groups that all agents left ---------------------------------------------------------------------------


async def test_groups_that_all_agents_left_make_room_for_others() -> None:
    """As on Slurm, where every job has a group of its own and ends with scancel."""
    clock = HandClock()
    async with serving(clock=clock, keep_finished_s=50.0) as (service, store):
        for name in ("a", "b", "c"):
            await left(service, name)
        with pytest.raises(Refused, match="--keep-finished"):
            await service.execute("next", join("x"))
        assert await swept(service, clock, 90.0) == ["a", "b", "c"]
        assert await swept(service, clock, 10.0) == []
        assert store.keys == set()
        await service.execute("next", join("x"))


async def test_a_group_whose_nodes_are_lost_is_idle_from_the_loss_on() -> None:
    clock = HandClock()
    async with serving(clock=clock, keep_finished_s=50.0) as (service, _):
        await two_nodes(service)
        clock.pass_by(service, 200.0)
        assert not any(node.is_gone for node in service.group("g").nodes.values()), "nothing ticked yet"
        assert all(node.is_gone for node in (await service.execute("g", Tick())).nodes.values())
        assert await swept(service, clock, 90.0) == ["g"]
        assert await swept(service, clock, 10.0) == []


async def test_a_group_with_a_live_node_and_one_that_a_person_made_are_kept() -> None:
    clock = HandClock()
    async with serving(clock=clock, keep_finished_s=50.0) as (service, _):
        await service.execute("new", PutSpec({"command": ("train.py",)}))
        await service.execute("used", PutSpec({"command": ("train.py",), "min_nodes": 2, "max_nodes": 2}))
        await left(service, "used")
        await service.execute("g", join("a", min_nodes=2, lease_s=3600.0, join_timeout_s=DAY_S))
        assert await swept(service, clock, 1000.0) == ["g", "new", "used"]


async def test_a_finished_group_that_a_person_restarts_is_not_idle_yet() -> None:
    clock = HandClock()
    async with serving(clock=clock, keep_finished_s=DAY_S) as (service, _):
        await left(service, by=Cancel())
        clock.pass_by(service, 1000.0)
        assert not (await service.execute("g", Restart())).state.is_terminal
        assert await swept(service, clock, 90.0) == ["g"]
        assert await swept(service, clock, 10.0) == []


async def test_an_agent_that_joins_as_its_idle_group_is_swept_finds_a_group() -> None:
    clock = HandClock()
    async with serving(clock=clock, keep_finished_s=50.0) as (service, _):
        await left(service)
        clock.pass_by(service, 200.0)
        service._forget_outdated_groups(service.now())
        assert [node.node_id for node in (await service.execute("g", join("c"))).live_nodes] == ["c"]
        await settled()
        assert [node.node_id for node in service.group("g").live_nodes] == ["c"]


async def test_time_in_which_no_server_ran_does_not_count() -> None:
    clock = HandClock()
    async with serving(clock=clock, keep_finished_s=50.0) as (service, store):
        await left(service)
        clock.pass_by(service, 60.0)
    clock.at += DAY_S
    async with serving(FaultyStore(store.content), clock, keep_finished_s=50.0) as (service, _):
        assert await swept(service, clock, 30.0) == ["g"]
        assert await swept(service, clock, 10.0) == []


# -- finished groups ---------------------------------------------------------------------------------------


async def test_a_finished_group_is_forgotten_when_its_time_is_over_and_its_nodes_are_gone() -> None:
    clock = HandClock()
    async with serving(clock=clock, keep_finished_s=50.0) as (service, store):
        await left(service, "gone", by=Cancel())
        await two_nodes(service, "used", lease_s=3600.0)
        await service.execute("used", Cancel())
        assert await swept(service, clock, 40.0) == ["gone", "used"]
        assert await swept(service, clock, 10.0) == ["used"]
        assert not [key for key in store.keys if key.startswith("groups/gone/")]


async def test_a_group_is_not_forgotten_while_nobody_knows_what_is_stored() -> None:
    """The commit of a new job failed, or so it seemed: it had been stored."""
    clock = HandClock()
    async with serving(clock=clock, keep_finished_s=1.0) as (service, store):
        await two_nodes(service)
        for node_id in "ab":
            await service.execute("g", replace(started(node_id), kind=ReportKind.SUCCEEDED))
        await all_leave(service)
        clock.pass_by(service, 2.0)
        store.is_written = True
        store.failures.append(StorageError("timed out"))
        store.load_failures.append(StorageError("timed out"))
        with pytest.raises(StorageError):
            await service.execute("g", join("c"))
        service._forget_outdated_groups(service.now())
        store.load_failures.clear()
        async with asyncio.timeout(20):
            while True:
                with suppress(StorageError):
                    service.groups()
                    break
                await asyncio.sleep(0.01)
        await settled()
        assert service.group("g").job == 2


# -- how many ----------------------------------------------------------------------------------------------


async def test_groups_are_counted_whoever_makes_them() -> None:
    async with serving() as (service, _):
        made = await asyncio.gather(
            *(service.execute(f"g{n}", PutSpec({}) if n % 2 else join("a")) for n in range(5)),
            return_exceptions=True,
        )
        assert [type(one).__name__ for one in made] == ["Group"] * 3 + ["Refused"] * 2
        with pytest.raises(Refused, match=r"keeps 3 groups .*hetctl delete.*--keep-finished"):
            await service.execute("more", join("a"))
        await service.execute("g0", join("b"))
        await service.execute("g1", Cancel())
        await service.delete("g1")
        await service.execute("more", PutSpec({}))


async def test_nodes_are_counted_while_they_live() -> None:
    async with serving() as (service, _):
        await service.execute("g", join("a", min_nodes=9))
        await service.execute("g", join("b"))
        with pytest.raises(Refused, match=r"group 'g' may have 2 nodes .*another group"):
            await service.execute("g", join("c"))
        await service.execute("g", join("a"))  # said twice
        await service.execute("other", join("c"))
        await service.execute("g", Leave(node_id="a", incarnation="1"))
        await service.execute("g", join("c"))
        with pytest.raises(Refused):
            await service.execute("g", join("a", "2"))
        for node_id in ("b", "c", "b"):
            await service.execute("g", Drain(node_id))
        with pytest.raises(Refused):
            await service.execute("g", Drain("a"))
        await service.execute("g", Undrain("b"))
        await service.execute("g", Drain("a"))
