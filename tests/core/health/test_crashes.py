"""Crash loops, exit codes that end a job at once, and restarts that wait."""

from dataclasses import replace

import pytest

from hetrdzv.protocol.errors import InvalidSpec
from hetrdzv.protocol.facts import reasons
from hetrdzv.protocol.facts.causes import CrashLoop, FailedBecause, FailedWorker, WorkerFault
from hetrdzv.protocol.facts.parts import Quoted
from hetrdzv.protocol.settings import GroupSpec
from tests.core.driver import Story, running
from tests.core.explained import ready, waits_for

FAILED = FailedWorker(node_id="a", rank=0, local_rank=0, exit_code=1, said=Quoted("Traceback: boom"))


def fail(story: Story, after_s: float = 1.0, **known: object) -> None:
    """The round fails after some seconds, and the next one forms unless that is the end of it."""
    story.wait(after_s)
    story.failed("a", **known)
    story.join("a")
    if not story.group.state.terminal:
        while story.group.active_round is None:
            story.wait(1)
        story.started("a")


def cause(story: Story) -> FailedBecause:
    assert story.group.root_cause is not None
    return story.group.root_cause.reason


def test_rounds_without_a_single_collective_are_a_crash_loop() -> None:
    story = running("a", max_restarts=100)
    fail(story, collectives=0)
    fail(story, collectives=0)
    assert story.group.state == "running"
    fail(story, collectives=0)
    assert cause(story) == CrashLoop(rounds=3, worker=FAILED)
    assert story.group.restarts == 2
    assert story.told("a").exit_code == 1


def test_the_same_step_again_and_again_is_a_crash_loop() -> None:
    story = running("a", max_restarts=100)
    for _ in range(3):  # the first one got further than nothing
        fail(story, after_s=50, step=120)
    assert story.group.state == "running"
    fail(story, after_s=50, step=119)
    assert cause(story).kind == "crash_loop"


@pytest.mark.parametrize(
    ("after_s", "known"),
    [
        (90, {"step": 120}),  # the number of a step may begin at 0 again: in each epoch, after each restart
        (30, {"collectives": 500}),  # and that of the collectives does
        (5, {"collectives": 0, "exit_code": None, "signal": "SIGKILL"}),
        (5, {"step": 0, "exit_code": None, "signal": "SIGTERM"}),
    ],
)
def test_a_round_that_may_have_gone_on_from_a_checkpoint_is_none(
    after_s: float, known: dict[str, object]
) -> None:
    story = running("a", max_restarts=100)
    for _ in range(9):
        fail(story, after_s=after_s, **known)
    assert story.group.state == "running"
    assert story.group.fruitless == 0


def test_the_same_collectives_again_and_again_are_one_if_rounds_are_short() -> None:
    story = running("a", max_restarts=100)
    for _ in range(3):
        fail(story, collectives=7)
    assert story.group.state == "running"
    fail(story, collectives=6)
    assert cause(story).kind == "crash_loop"
    story = running("a", max_restarts=100)
    for _ in range(9):
        fail(story, after_s=60, collectives=7)
    assert story.group.state == "running"


def test_a_round_of_which_nothing_is_known_is_neither_progress_nor_the_lack_of_it() -> None:
    story = running("a", max_restarts=100)
    for _ in range(9):
        fail(story)
    assert (story.group.state, story.group.fruitless) == ("running", 0)
    fail(story, collectives=7)
    for _ in range(2):
        fail(story, collectives=7)
        fail(story)
    assert (story.group.state, story.group.fruitless, story.group.collectives) == ("running", 2, 7)
    fail(story, after_s=90)  # it may have gone on from a checkpoint
    assert story.group.fruitless == 0
    for _ in range(3):
        assert story.group.state == "running"
        fail(story, collectives=7)
    assert cause(story).kind == "crash_loop"


@pytest.mark.parametrize("known", [{"step": 500}, {"collectives": 900}], ids=["step", "collectives"])
def test_progress_breaks_the_row(known: dict[str, int]) -> None:
    story = running("a", max_restarts=100)
    for _ in range(3):
        fail(story, collectives=0)
        fail(story, collectives=0)
        fail(story, **known)
        known = {name: number + 1 for name, number in known.items()}
    assert story.group.state == "running"


def test_the_round_knows_what_its_furthest_worker_knows() -> None:
    story = running("a", "b", max_restarts=100)
    for _ in range(4):
        story.failed("a", collectives=0)
        story.failed("b", collectives=story.group.restarts + 1)
        story.joins("a", "b")
        story.wait(5)
    assert story.group.fruitless == 0


def test_a_row_can_be_longer_or_of_any_length() -> None:
    for rounds, ends in ((1, 1), (5, 5), (0, None)):
        story = running("a", max_restarts=100, crash_loop=rounds)
        for number in range(1, 8):
            if not story.group.state.terminal:
                fail(story, collectives=0)
                assert story.group.state.terminal == (number == ends)


def test_an_exit_code_ends_the_job_at_once() -> None:
    story = running("a", "b", max_restarts=100, no_restart_on=(2, 64))
    story.failed("a", exit_code=1)
    story.joins("a", "b")
    assert story.group.restarts == 1
    story.started("a", "b")
    story.failed("a", exit_code=64)
    story.joins("a", "b")
    assert cause(story) == WorkerFault(worker=replace(FAILED, exit_code=64), hopeless="no_restart_on")
    assert story.told("b").exit_code == 64


def test_only_the_root_cause_counts_for_that() -> None:
    story = running("a", "b", max_restarts=100, no_restart_on=[2])
    story.wait(10)
    story.failed("a", exit_code=1, age_s=3)
    story.failed("b", exit_code=2, age_s=1)
    story.joins("a", "b")
    assert story.group.restarts == 1


@pytest.mark.parametrize("codes", [(0,), (256,), ("2",), (True,)])
def test_exit_codes_are_those_that_a_program_can_have(codes: tuple[object, ...]) -> None:
    with pytest.raises(InvalidSpec, match="no_restart_on is"):
        GroupSpec(no_restart_on=codes)  # type: ignore[arg-type]


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
    resting = reasons.Resting(ready=ready(["a"], 1), restart=2, of=5, quick=2, until=story.now + 1)
    assert waits_for(story) == resting
    assert story.told("a").kind == "wait"
    story.wait(1)
    assert story.group.state == "starting"


@pytest.mark.parametrize("after", [{"after_s": 60}, {"step": 1}], ids=["long", "progress"])
def test_the_next_one_does_not_after_a_long_round_or_progress(after: dict[str, float]) -> None:
    story = running("a", max_restarts=100)
    for _ in range(4):
        fail(story)
    fail(story, **after)  # type: ignore[arg-type]
    assert story.group.rests_until is None
    story.failed("a")
    story.join("a")
    assert waits_for(story).until == pytest.approx(story.now + 1)


def test_restarts_need_not_wait() -> None:
    story = running("a", max_restarts=100, restart_wait_s=0)
    for _ in range(9):
        story.failed("a")
        story.join("a")
        assert story.group.state == "starting"
        story.started("a")


def test_a_loss_is_no_failure_and_its_next_round_does_not_wait() -> None:
    story = running("a", "b", max_restarts=100)
    for inc in range(2, 4):
        story.failed("a")
        story.joins("a")
        story.leave("b")
        story.join("b", inc=f"b-{inc}")
        assert story.group.rests_until is None
        story.wait(1)  # the last call
        story.started("a", "b")
    assert story.group.quick == story.group.restarts == 0
