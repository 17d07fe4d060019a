"""What is made again, and sent again, when something changes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from hetrdzv.auth.policy import Permit
from hetrdzv.auth.tokens import EVERYTHING
from hetrdzv.core.commands import Cancel, Leave, NoteStall, Report, Tick
from hetrdzv.core.model import Stall
from hetrdzv.dashboard.live import EVERY_S, MOST_BYTES_PER_S, SHARE, Hub, interval_s
from hetrdzv.dashboard.overview import GroupsScene
from hetrdzv.dashboard.scenes import MAPS, GroupScene, told_until
from hetrdzv.protocol.facts.events import RoundFormed
from hetrdzv.protocol.facts.failure import Failure
from hetrdzv.protocol.pages import EventReply
from hetrdzv.protocol.rooms.progress import NodeProgress, Worker
from hetrdzv.protocol.states import ReportKind
from hetrdzv.service.service import Service
from tests.server.told import BEGAN
from tests.support.served import HandClock, join, serving, started, two_nodes
from tests.support.stalls import behind

NODES = 120


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def service(clock: HandClock) -> AsyncIterator[Service]:
    """A service with a group of many nodes that runs; its clock stands still."""
    async with serving(clock=clock) as (running, _):
        for number in range(NODES):
            await running.execute("g", join(f"n{number:03}", min_nodes=NODES, max_nodes=NODES))
        for number in range(NODES):
            await running.execute("g", started(f"n{number:03}"))
        yield running


async def test_only_what_has_changed_differs(service: Service) -> None:
    scene = GroupScene(service, "g", acts=True, wall=lambda: BEGAN)
    before = await scene.sections()
    assert await scene.sections() == before
    assert len(before["map-1"]) > 0
    assert before["map-2"].strip() == ""
    await service.execute("g", join("spare"))
    after = await scene.sections()
    assert {name for name in after if after[name] != before[name]} == {"facts", "nodes", "map-1", "history"}
    assert after.keys() >= set(MAPS)


async def test_nodes_that_need_attention_have_rows_and_all_have_them_for_who_asks(service: Service) -> None:
    await service.execute("g", join("spare"))
    await service.execute("g", Leave(node_id="spare", incarnation="1", why="power"))
    sections = await GroupScene(service, "g", acts=True).sections()
    assert sections["nodes"].count('<tr class="state-') == 1
    assert "1 left" in sections["nodes"]
    assert f"{NODES} running" in sections["nodes"]
    sections = await GroupScene(service, "g", acts=True, whole=True).sections()
    assert sections["nodes"].count('<tr class="state-') == NODES + 1
    assert sections["map-0"].strip() == ""


async def test_workers_that_are_watched_are_not_said_to_be_unseen() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _):
        await two_nodes(service)
        clock.pass_by(service, 60)
        scene = GroupScene(service, "g", acts=True)
        assert (await scene.sections())["now"].count("have not reported on them") == 1
        for rank, name in enumerate("ab"):
            told = NodeProgress(round=1, workers=(Worker(rank=rank, step=3),))
            service.progress.note("g", name, told, 60.0)
        clock.pass_by(service, 10)
        assert "not reported on" not in (await scene.sections())["now"]


async def test_who_is_not_watched_is_not_said_of_a_job_that_is_over() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _):
        await two_nodes(service)
        clock.pass_by(service, 60)
        scene = GroupScene(service, "g", acts=True)
        assert "cannot be watched" in (await scene.sections())["now"]
        await service.execute("g", Cancel())
        assert "cannot be watched" not in (await scene.sections())["now"]


async def test_steps_of_the_last_hour_are_lines_where_a_script_says_them(
    service: Service, clock: HandClock
) -> None:
    scene = GroupScene(service, "g", acts=True)
    for minute in range(6):
        told = NodeProgress(round=1, workers=(Worker(rank=0, step=60 * minute),))
        service.progress.note("g", "n000", told, 60.0)
        if minute == 2:
            assert "<polyline" not in (await scene.sections())["pace"], "too few to be a line"
        clock.pass_by(service, 60)
    pace = (await GroupScene(service, "g", acts=True).sections())["pace"]
    assert pace.count("<polyline") == 2
    assert "steps/s <b>1</b>" in pace
    assert "step <b>300</b>" in pace


async def test_a_node_says_how_its_worker_failed() -> None:
    async with serving() as (service, _):
        await two_nodes(service)
        failure = Failure(local_rank=0, rank=1, exit_code=1)
        await service.execute(
            "g", Report(node_id="b", incarnation="1", round=1, kind=ReportKind.FAILED, failure=failure)
        )
        assert "rank 1: exit code 1" in (await GroupScene(service, "g", acts=True).sections())["nodes"]


async def test_the_card_of_the_cause_is_there_where_there_is_more_than_the_headline() -> None:
    for worker_fails in (False, True):
        clock = HandClock()
        async with serving(clock=clock) as (service, _):
            if worker_fails:
                await two_nodes(service)
                failure = Failure(local_rank=0, rank=1, exit_code=1, permanent=True)
                await service.execute(
                    "g",
                    Report(node_id="b", incarnation="1", round=1, kind=ReportKind.FAILED, failure=failure),
                )
            else:
                await service.execute("g", join("a", min_nodes=2, join_timeout_s=1.0))
            clock.pass_by(service, 120.0 if worker_fails else 2.0)
            await service.execute("g", Tick())
            assert service.group("g").state.terminal
            sections = await GroupScene(service, "g", acts=True).sections()
            assert ("Root cause" in sections["cause"]) is worker_fails


async def test_a_group_that_hangs_is_said_to_and_comes_first(service: Service) -> None:
    await service.execute("b", join("b", min_nodes=2))
    stall = Stall(
        ranks=(3,),
        facts=behind(3, "n003"),
        since=0.0,
        told=True,
    )
    await service.execute("g", NoteStall(round=1, stall=stall))
    page = (await GroupsScene(service, EVERYTHING, "http://h:1").sections())["groups"]
    assert page.index('href="/groups/g"') < page.index('href="/groups/b"')
    assert "hangs" in page
    now = (await GroupScene(service, "g", acts=True).sections())["now"]
    assert "hangs" in now
    assert "<code>hetctl stacks g</code>" in now
    assert 'data-copy="hetctl restart g"' in now
    assert "Where rank 3 is" not in now
    await service.execute("g", NoteStall(round=1, stall=replace(stall, stack='File "train.py", line 7')))
    now = (await GroupScene(service, "g", acts=True).sections())["now"]
    assert "Where rank 3 is" in now
    assert "train.py" in now
    await service.execute("g", Cancel())
    now = (await GroupScene(service, "g", acts=True).sections())["now"]
    assert "Where rank 3 was" in now


@pytest.mark.parametrize(
    ("since_s", "told_s"),
    [(0.9, 0.0), (59.9, 59.0), (64.9, 60.0), (599.0, 595.0), (3_700.0, 3_660.0), (-5.0, 0.0)],
)
def test_the_past_is_told_in_longer_and_longer_steps(since_s: float, told_s: float) -> None:
    event = EventReply(
        number=1,
        at=BEGAN.isoformat(),
        kind="round_formed",
        text="",
        round=1,
        facts=RoundFormed(world_size=1, places=()),
    )
    assert told_until([event], BEGAN + timedelta(seconds=since_s)) == BEGAN + timedelta(seconds=told_s)


def test_what_takes_long_or_is_large_comes_more_rarely() -> None:
    assert interval_s(0.01, 1_000) == EVERY_S
    assert interval_s(1.0, 1_000) == 1.0 / SHARE
    assert interval_s(0.01, 10 * MOST_BYTES_PER_S) == 10.0


async def test_who_opens_a_page_that_others_look_at_sees_what_they_see(service: Service) -> None:
    hub, rendered = Hub(), 0
    scene = GroupScene(service, "g", acts=True)

    async def render() -> dict[str, str]:
        nonlocal rendered
        rendered += 1
        return dict(await scene.sections())

    permit = Permit(EVERYTHING)
    assert await hub.sections("g") == {}
    viewer = hub.watch("g", permit, lambda: (render, asyncio.sleep))
    first, *others = await asyncio.gather(anext(viewer), hub.sections("g"), hub.sections("g"))
    assert b"event: now" in first
    assert others[0] == others[1] == await scene.sections()
    assert rendered == 1
    await viewer.aclose()  # type: ignore[attr-defined]
    assert await hub.sections("g") == {}
