"""Exit codes that end a job at once, and restarts that wait."""

import pytest

from hetrdzv.protocol.reasons import ends, waiting
from hetrdzv.protocol.reasons.reason import Reason
from tests.core.driver import Story, running
from tests.core.explained import failed, ready, waits_for


def fail(story: Story, after_s: float = 1.0) -> None:
    """The round fails after some seconds, and the next one forms unless that is the end of it."""
    story.wait(after_s)
    story.failed("a")
    story.join("a")
    if not story.group.state.terminal:
        while story.group.active_round is None:
            story.wait(1)
        story.started("a")


def cause(story: Story) -> Reason:
    return story.root_cause.reason


def test_an_exit_code_ends_the_job_at_once() -> None:
    story = running("a", "b", max_restarts=100, no_restart_on=(2, 64))
    story.failed("a", exit_code=1)
    story.joins("a", "b")
    assert story.group.restarts == 1
    story.started("a", "b")
    story.failed("a", exit_code=64)
    story.joins("a", "b")
    assert cause(story) == ends.without_restart(failed("a", exit_code=64), "no_restart_on")
    assert story.told("b").exit_code == 64


def test_only_the_root_cause_counts_for_that() -> None:
    story = running("a", "b", max_restarts=100, no_restart_on=[2])
    story.wait(10)
    story.failed("a", exit_code=1, age_s=3)
    story.failed("b", exit_code=2, age_s=1)
    story.joins("a", "b")
    assert story.group.restarts == 1


def test_restarts_in_quick_succession_wait() -> None:
    story = running("a", "b", max_restarts=100, lease_s=1000)
    waits = []
    for _ in range(9):
        story.failed("a")
        story.joins("a", "b")
        at = story.now
        while story.group.active_round is None:
            due = story.deadline_in
            assert due is not None
            story.pass_by(due)
        waits.append(story.now - at)
        story.started("a", "b")
        story.renew("a", "b")
    assert waits == pytest.approx([0, 1, 2, 4, 8, 16, 32, 60, 60])


def test_the_state_says_that_a_restart_waits() -> None:
    story = running("a", max_restarts=5)
    for _ in range(2):
        story.failed("a")
        story.join("a")
        if story.group.active_round is not None:
            story.started("a")
    resting = waiting.restart_backoff(ready(["a"], 1), 2, 5, 2, story.now + 1)
    assert waits_for(story) == resting
    assert story.told("a").kind == "wait"
    story.wait(1)
    assert story.group.state == "starting"


def test_the_next_one_does_not_after_a_long_round() -> None:
    story = running("a", max_restarts=100)
    for _ in range(4):
        fail(story)
    fail(story, after_s=60)
    assert story.group.backoff_until is None
    story.failed("a")
    story.join("a")
    assert waits_for(story).until == pytest.approx(story.now + 1)


def test_a_loss_is_no_failure_and_its_next_round_does_not_wait() -> None:
    story = running("a", "b", max_restarts=100)
    for inc in range(2, 4):
        story.failed("a")
        story.joins("a")
        story.leave("b")
        story.join("b", inc=f"b-{inc}")
        assert story.group.backoff_until is None
        story.wait(1)  # the last call
        story.started("a", "b")
    assert story.group.quick == story.group.restarts == 0
