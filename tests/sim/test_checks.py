"""Each check of the simulation that no planted fault trips (test_planted.py), shown what it must not let pass."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hetrdzv.core import commands
from hetrdzv.core.model import Stall
from hetrdzv.core.rounds.timers import STALL_REPORTED_AFTER_S
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.rounds import WorkerFailure
from hetrdzv.protocol.states import ReportKind, StallKind
from tests.core.driver import Story
from tests.sim.checks import Checks, Violation
from tests.sim.timeline import Timeline
from tests.sim.workers import Fate, Workers
from tests.support.hangs import of_kind
from tests.support.restored import stored_records


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
    (raw,) = (value for key, value in stored_records(story.group).items() if key.endswith("/round"))
    record: dict[str, Any] = json.loads(raw)
    return record


def told(story: Story, node_id: str) -> Directive:
    """What the server tells a node."""
    return replace(story.told(node_id), poll_s=2.5, lease_s=5.0)


def workers(node_id: str, number: int) -> Workers:
    return Workers(node_id, f"{node_id}-1", number, Fate.NONE, 0.0, 0.1)


def starts(story: Story, checks: Checks, newest: int = 1, **lies: Any) -> None:
    right = told(story, "b")
    assert right.start is not None
    checks.acts_on_start("b", "b-1", replace(right, start=replace(right.start, **lies)), newest)


def heeds(story: Story, checks: Checks, code: str = "round_formed", **lies: Any) -> None:
    right = told(story, "b")
    assert right.start is not None
    news = replace(right, code=code, start=replace(right.start, **lies))
    checks.heeds("b", "b-1", news, takes_notice=True)


def is_stored_again(story: Story, checks: Checks) -> None:
    record = stored_round(story)
    checks.round_is_durable({**record, "members": record["members"][:1]})


def starts_what_nobody_stored(story: Story, checks: Checks) -> None:
    story.restart()
    story.joins("a", "b")
    starts(story, checks, newest=2)


def starts_twice(story: Story, checks: Checks) -> None:
    checks.workers_started(workers("a", 1))
    checks.workers_started(workers("a", 2))


def is_charged(story: Story, checks: Checks) -> None:
    failure = WorkerFailure(local_rank=0, rank=2, exit_code=1)
    story.do(
        commands.Report(node_id="b", incarnation="b-1", round=1, kind=ReportKind.FAILED, failure=failure)
    )
    story.join("a")
    old = story.group
    story.join("b")
    assert story.group.restarts == 1
    checks._charges(old, story.group, story.now)


WRONG: list[tuple[Callable[[Story, Checks], None], str]] = [
    (partial(starts, newest=2), "only the newest start"),
    (partial(starts, rank_offset=1), "members agree"),
    (partial(starts, group_rank=0), "members agree"),
    (partial(starts, world_size=4), "members agree"),
    (partial(starts, nnodes=1), "members agree"),
    (partial(starts, restart_count=1), "members agree"),
    (starts_what_nobody_stored, "a round is decided once"),
    (is_stored_again, "a round is decided once"),
    (partial(heeds, code="notice"), "a round starts once"),
    (partial(heeds, rank_offset=1), "members agree"),
    (starts_twice, "old workers end first on a node"),
    (is_charged, "failures are true"),
]


@pytest.mark.parametrize(("act", "check"), WRONG)
def test_what_is_wrong_is_found(
    story: Story, checks: Checks, act: Callable[[Story, Checks], None], check: str
) -> None:
    act(story, checks)
    with pytest.raises(Violation, match=f"^{check}: "):
        checks.require_ok()


def test_what_is_right_passes(story: Story, checks: Checks) -> None:
    for node_id in "ab":
        checks.acts_on_start(node_id, f"{node_id}-1", told(story, node_id), 1)
        checks.workers_started(workers(node_id, 1))
    checks.round_is_durable(stored_round(story))
    story.started("a", "b")
    stall = Stall(hang=of_kind(StallKind.BEHIND, 2, "b"), since=story.now)
    story.do(commands.RecordStall(1, stall))
    story.wait(STALL_REPORTED_AFTER_S + 1)
    hangs = told(story, "b")
    assert hangs.code == "stalled"
    story.do(commands.RecordStall(1, None))
    for news in (hangs, told(story, "b")):
        checks.heeds("b", "b-1", news, takes_notice=False)
    checks.worker_failed("b", 1, "exit code 1")
    is_charged(story, checks)
    checks.require_ok()
