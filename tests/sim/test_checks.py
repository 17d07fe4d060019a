"""Each check of the simulation that no planted fault trips (test_planted.py), shown what it must not let pass."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hetrdzv.core import commands
from hetrdzv.core.model import Stall
from hetrdzv.core.rounds.timers import STALL_REPORTED_S
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.states import ReportKind, StallKind
from hetrdzv.storage import records
from tests.core.driver import Story
from tests.sim.checks import Checks, Violation
from tests.sim.timeline import Timeline
from tests.sim.workers import Fate, Workers
from tests.support.hangs import of_kind


@pytest.fixture
def story() -> Story:
    """Round 1 was formed on a (2 slots) and b."""
    made = Story(min_nodes=2, max_nodes=2)
    made.join("a", 2)
    made.join("b", 1)
    return made


@pytest.fixture
def checks(story: Story) -> Checks:
    """They know round 1, as it was stored."""
    made = Checks(Timeline(), separate=True)
    made.round_is_durable(stored_round(story))
    return made


def stored_round(story: Story) -> dict[str, Any]:
    """The record of the newest round."""
    puts, _ = records.changes(None, story.group)
    (raw,) = (value for key, value in puts.items() if key.endswith("/round"))
    record: dict[str, Any] = json.loads(raw)
    return record


def told(story: Story, node_id: str) -> Directive:
    """What the server tells a node."""
    return replace(story.told(node_id), poll_s=2.5, lease_s=5.0)


def workers(node_id: str, number: int) -> Workers:
    return Workers(node_id, f"{node_id}-1", number, Fate.NONE, 0.0, 0.1)


def complains(checks: Checks, of: str) -> None:
    """That check, and it first, has failed."""
    with pytest.raises(Violation, match=f"^{of}: "):
        checks.require_ok()


def test_what_is_right_passes(story: Story, checks: Checks) -> None:
    for node_id in "ab":
        checks.acts_on_start(node_id, f"{node_id}-1", told(story, node_id), 1)
        checks.workers_started(workers(node_id, 1))
    checks.round_is_durable(stored_round(story))
    checks.require_ok()


def test_an_old_start(story: Story, checks: Checks) -> None:
    checks.acts_on_start("b", "b-1", told(story, "b"), 2)
    complains(checks, "only the newest start")


@pytest.mark.parametrize(
    "lie", [{"rank_offset": 1}, {"group_rank": 0}, {"world_size": 4}, {"nnodes": 1}, {"restart_count": 1}]
)
def test_a_member_that_is_told_something_else(story: Story, checks: Checks, lie: dict[str, int]) -> None:
    right = told(story, "b")
    assert right.start is not None
    wrong = replace(right, start=replace(right.start, **lie))
    checks.acts_on_start("b", "b-1", wrong, 1)
    complains(checks, "members agree")


def test_news_of_a_round_that_runs_start_nothing(story: Story, checks: Checks) -> None:
    """It hangs, and goes on: who takes no notice is told that, too."""
    story.started("a", "b")
    stall = Stall(hang=of_kind(StallKind.BEHIND, 2, "b"), since=story.now)
    story.do(commands.NoteStall(1, stall))
    story.wait(STALL_REPORTED_S + 1)
    hangs = told(story, "b")
    assert hangs.code == "stalled"
    story.do(commands.NoteStall(1, None))
    for news in (hangs, told(story, "b")):
        checks.heeds("b", "b-1", news, takes_notice=False)
    checks.require_ok()


def test_news_that_are_none_for_this_member(story: Story, checks: Checks) -> None:
    checks.heeds("b", "b-1", replace(told(story, "b"), code="notice"), takes_notice=True)
    complains(checks, "a round starts once")


def test_another_start_in_a_round_that_runs(story: Story, checks: Checks) -> None:
    right = told(story, "b")
    assert right.start is not None
    checks.heeds("b", "b-1", replace(right, start=replace(right.start, rank_offset=1)), takes_notice=True)
    complains(checks, "members agree")


def test_a_round_that_is_stored_twice_with_other_members(story: Story, checks: Checks) -> None:
    record = stored_round(story)
    checks.round_is_durable({**record, "members": record["members"][:1]})
    complains(checks, "a round is decided once")


def test_a_round_that_nobody_stored(story: Story) -> None:
    checks = Checks(Timeline(), separate=False)
    checks.acts_on_start("b", "b-1", told(story, "b"), 1)
    complains(checks, "a round is decided once")


def test_old_workers_on_the_same_node(checks: Checks) -> None:
    checks.workers_started(workers("a", 1))
    checks.workers_started(workers("a", 2))
    complains(checks, "old workers end first on a node")


def test_a_failure_that_never_was(story: Story, checks: Checks) -> None:
    before = story.group
    failure = Failure(local_rank=0, rank=2, exit_code=1)
    report = commands.Report(node_id="b", incarnation="b-1", round=1, kind=ReportKind.FAILED, failure=failure)
    story.do(report)
    story.join("a")
    old = story.group
    story.join("b")
    assert story.group.restarts == before.restarts + 1
    checks._charges(old, story.group, story.now)
    complains(checks, "failures are true")
    honest = Checks(Timeline(), separate=True)
    honest.worker_failed("b", 1, "exit code 1")
    honest._charges(old, story.group, story.now)
    honest.require_ok()
