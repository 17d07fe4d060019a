"""The page with all groups: what comes first, and what is folded away."""

import pytest

from hetrdzv.auth.tokens import EVERYTHING
from hetrdzv.core.commands import Report
from hetrdzv.dashboard.overview import overview
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.pages import RECENT_S
from hetrdzv.protocol.states import ReportKind
from hetrdzv.service.service import Service
from tests.support.served import HandClock, join, serving, two_nodes


def shown(service: Service, token_file: str = "") -> str:
    return overview(service, EVERYTHING, "http://h:1", token_file)()["groups"]


async def fail(service: Service, group_id: str) -> None:
    """Run a job until its worker dies."""
    await service.execute(group_id, join("a", max_restarts=0, max_nodes=1))
    failure = Failure(local_rank=0, rank=0, exit_code=1, message="boom")
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
        page = shown(service)
        places = [
            page.index(f'href="/groups/{name}"')
            for name in ("failed-last", "failed-first", "waits", "runs-3", "runs-12")
        ]
        assert places == sorted(places)
        assert "2 failed" in page
        assert "<details" not in page

        clock.pass_by(service, RECENT_S - 10)
        recent, fold, older = shown(service).partition("<details")
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
        page = shown(service, token_file)
    assert f"<pre>{command}</pre>" in page
    assert ("On other machines" in page) is bool(token_file)
