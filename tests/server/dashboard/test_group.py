"""The sections of the pages of a group and of all groups: what they show, and when they are made again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

import pytest

from hetrdzv.auth.tokens import FULL_GRANT
from hetrdzv.core.commands import Cancel, Leave, RecordStall, Report, Tick
from hetrdzv.core.model import Stall
from hetrdzv.dashboard import cache as cache_module
from hetrdzv.dashboard.cache import MAX_CACHED_PAGES, MAX_RENDER_CPU_SHARE, SectionCache
from hetrdzv.dashboard.group_page import group_sections, make_timeline_bars
from hetrdzv.dashboard.pages import overview_section
from hetrdzv.protocol.progress import NodeProgress, WorkerProgress
from hetrdzv.protocol.replies import RECENTLY_FINISHED_S
from hetrdzv.protocol.rounds import RoundRecord, WorkerFailure
from hetrdzv.protocol.states import ReportKind
from hetrdzv.service.service import Service
from tests.support.hangs import behind
from tests.support.served import HandClock, join, serving, started, two_nodes

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


def shown(service: Service, name: str, *, whole: bool = False) -> str:
    """A section as it is now."""
    return group_sections(service, service.group("g"), acts=True, whole=whole)()[name]


async def test_nodes_that_need_attention_have_rows_and_all_have_them_for_who_asks(service: Service) -> None:
    await service.execute("g", join("spare"))
    await service.execute("g", Leave(node_id="spare", incarnation="1", why="power"))
    nodes = shown(service, "nodes")
    assert nodes.count('<tr class="state-') == 1
    assert nodes.count("<i ") == NODES + 1
    assert "1 left" in nodes
    assert f"{NODES} running" in nodes
    nodes = shown(service, "nodes", whole=True)
    assert nodes.count('<tr class="state-') == NODES + 1
    assert "<i " not in nodes


@pytest.mark.parametrize("over", [False, True])
async def test_workers_that_nobody_watches_are_named_until_they_are_watched_or_the_job_is_over(
    over: bool,
) -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _):
        await two_nodes(service)
        clock.pass_by(service, 60)
        assert shown(service, "now").count("the agent has not reported") == 1
        if over:
            await service.execute("g", Cancel())
        else:
            for rank, name in enumerate("ab"):
                told = NodeProgress(round=1, workers=(WorkerProgress(rank=rank, step=3),))
                service.progress.record_progress("g", name, told, 60.0)
            clock.pass_by(service, 10)
        now = shown(service, "now")
        assert "not reported" not in now
        assert "cannot be watched" not in now


async def test_the_card_of_the_cause_is_there_where_there_is_more_than_the_headline() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _):
        await two_nodes(service)
        failure = WorkerFailure(local_rank=0, rank=1, exit_code=1, permanent=True)
        report = Report(node_id="b", incarnation="1", round=1, kind=ReportKind.FAILED, failure=failure)
        await service.execute("g", report)
        assert "rank 1: exit code 1" in shown(service, "nodes")
        clock.pass_by(service, 120.0)
        await service.execute("g", Tick())
        assert service.group("g").state.is_terminal
        assert "Root cause" in shown(service, "cause")
    async with serving(clock=clock) as (service, _):
        await service.execute("g", join("a", min_nodes=2, join_timeout_s=1.0))
        clock.pass_by(service, 2.0)
        await service.execute("g", Tick())
        assert service.group("g").state.is_terminal
        assert "Root cause" not in shown(service, "cause")


async def test_a_group_that_hangs_is_said_to_and_comes_first(service: Service) -> None:
    await service.execute("b", join("b", min_nodes=2))
    stall = Stall(hang=behind(3, "n003"), since=0.0, reported=True)
    await service.execute("g", RecordStall(round=1, stall=stall))
    page = overview_section(service, FULL_GRANT, "http://h:1")()["groups"]
    assert page.index('href="/groups/g"') < page.index('href="/groups/b"')
    assert "hangs" in page
    now = shown(service, "now")
    assert "hangs" in now
    assert "hetctl stacks g" in now
    assert "hetctl restart g" in now
    assert "Where rank 3 is" not in now
    await service.execute("g", RecordStall(round=1, stall=replace(stall, stack='File "train.py", line 7')))
    now = shown(service, "now")
    assert "Where rank 3 is" in now
    assert "train.py" in now
    await service.execute("g", Cancel())
    now = shown(service, "now")
    assert "Where rank 3 was" in now


def test_bars_fill_the_width_and_none_is_too_thin_to_be_seen() -> None:
    time = {"starting_up": 2.0, "training": 2_000.0, "noticing": 0.5}
    rounds = [RoundRecord(number=1, world_size=2, time=time), RoundRecord(number=2, world_size=2, time=time)]
    drawn = make_timeline_bars(rounds)
    assert [(bar.phase, bar.length, bar.round) for bar in drawn[:4]] == [
        ("starting_up", 2.0, 1),
        ("training", 2_000.0, 1),
        ("noticing", 0.5, 1),
        ("starting_up", 2.0, 2),
    ]
    assert min(bar.width for bar in drawn) == 2
    assert drawn[3].x == pytest.approx(500)
    assert make_timeline_bars([]) == make_timeline_bars([RoundRecord(number=1, world_size=2)]) == []


# -- the cache ---------------------------------------------------------------------------------------------


class Making:
    """Makes sections and counts; it takes so long (seconds)."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.now, self.made, self._takes_s = 0.0, 0, takes_s

    def begin(self) -> Callable[[], Mapping[str, str]]:
        return self._make

    def _make(self) -> Mapping[str, str]:
        self.now += self._takes_s
        self.made += 1
        return {"now": str(self.made), "rounds": "none"}


async def test_a_version_is_made_once_however_many_look_and_only_what_changed_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    making = Making()
    monkeypatch.setattr(cache_module, "monotonic", lambda: making.now)
    cache = SectionCache()
    several = [cache.get("g", 1, making.begin, in_thread=True) for _ in range(5)]
    assert {each.html["now"] for each in await asyncio.gather(*several)} == {"1"}
    first = await cache.get("g", 1, making.begin, in_thread=False)
    making.now += 1.0
    second = await cache.get("g", 2, making.begin, in_thread=False)
    assert second.changed_since(first.etag) == {"now": "2"}
    assert second.changed_since(second.etag) == {}
    assert second.changed_since("") == second.changed_since('"of another version"') == second.html
    assert (await cache.get("other", 2, making.begin, in_thread=False)).html["now"] == "3"


async def test_what_takes_long_is_made_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    making = Making(takes_s=1.0)
    monkeypatch.setattr(cache_module, "monotonic", lambda: making.now)
    cache = SectionCache()
    await cache.get("g", 0, making.begin, in_thread=False)
    began = making.now
    for version, (at_s, made) in enumerate(
        [(0.0, 2), (1.0 / MAX_RENDER_CPU_SHARE - 0.01, 2), (1.0 / MAX_RENDER_CPU_SHARE, 3)], 1
    ):
        making.now = began + at_s
        await cache.get("g", version, making.begin, in_thread=False)
        assert making.made == made


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    making = Making()
    monkeypatch.setattr(cache_module, "monotonic", lambda: making.now)
    cache = SectionCache()
    for number in (0, *range(MAX_CACHED_PAGES), 0, MAX_CACHED_PAGES + 1, 1):
        await cache.get(number, 1, making.begin, in_thread=False)
    assert making.made == MAX_CACHED_PAGES + 2, "the first was asked for again, so the second went"


# -- the page with all groups: what comes first, and what is folded away -------------------------------------


def listed(service: Service, token_file: str = "") -> str:
    return overview_section(service, FULL_GRANT, "http://h:1", token_file)()["groups"]


async def fail(service: Service, group_id: str) -> None:
    """Run a job until its worker dies."""
    await service.execute(group_id, join("a", max_restarts=0, max_nodes=1))
    failure = WorkerFailure(local_rank=0, rank=0, exit_code=1, message="boom")
    report = Report(node_id="a", incarnation="1", round=1, kind=ReportKind.FAILED, failure=failure)
    await service.execute(group_id, report)
    await service.execute(group_id, join("a", after_round=1, max_restarts=0, max_nodes=1))


async def test_failures_of_an_hour_come_first_and_older_ones_are_folded_away() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _):
        await fail(service, "failed-first")
        clock.pass_by(service, 20)
        await fail(service, "failed-last")
        await two_nodes(service, "runs-12")
        await two_nodes(service, "runs-3")
        await service.execute("waits", join("c", min_nodes=2))
        page = listed(service)
        places = [
            page.index(f'href="/groups/{name}"')
            for name in ("failed-last", "failed-first", "waits", "runs-3", "runs-12")
        ]
        assert places == sorted(places)
        assert "2 failed" in page
        assert "<details" not in page

        clock.pass_by(service, RECENTLY_FINISHED_S - 10)
        recent, fold, older = listed(service).partition("<details")
        assert "/groups/failed-last" in recent
        assert "/groups/failed-first" not in recent
        assert "/groups/failed-first" in older
        assert "2 failed" in recent, "all are counted"
        assert fold
        assert "open" not in older.partition(">")[0]


@pytest.mark.parametrize(
    ("token_file", "command"),
    [
        ("", "hetagent --server http://h:1 --group NAME train.py"),
        (
            "/a b/token",
            "hetagent --server http://h:1 --token-file &#39;/a b/token&#39; --group NAME train.py",
        ),
    ],
)
async def test_the_empty_page_shows_a_command_that_works_here(token_file: str, command: str) -> None:
    async with serving() as (service, _):
        page = listed(service, token_file)
    assert f"<pre>{command}</pre>" in page
    assert ("On other machines" in page) is bool(token_file)
