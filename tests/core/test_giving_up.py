"""A node whose agent gives up after a failure, as torch's does without restarts left: the failure stays the cause."""

from collections.abc import Callable
from typing import Any

import pytest

from hetrdzv.protocol.failure import Ended
from hetrdzv.protocol.reasons import ends, events
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.texts.who import Nodes
from tests.core.driver import Story, running
from tests.core.explained import failed

FIRST = failed("a")


def gives_up(story: Story, node_id: str, **how: object) -> None:
    """Its workers fail, and its agent leaves."""
    story.failed(node_id, final=True, **how)
    story.leave(node_id, "its agent gave up")


def assert_failed_with(story: Story, reason: Reason, *node_ids: str) -> None:
    """The group failed, and every one of these nodes is told why."""
    assert story.group.state == "failed", story.why
    assert story.root_cause.reason == reason
    for node_id in node_ids:
        told = story.told(node_id)
        assert (told.kind, told.root_cause) == ("exit", story.group.root_cause)


def test_too_few_are_left() -> None:
    story = running("a", "b", max_restarts=1000)
    gives_up(story, "a")
    assert story.group.state == "waiting"  # b's workers may say something else yet
    story.join("b")
    assert_failed_with(story, FIRST, "b")
    gave_up = events.group_failed(FIRST, Nodes.of(["a"]))
    assert story.said("group_failed") == [gave_up]
    assert story.group.restarts == 0


def test_enough_are_left() -> None:
    story = running("a", "b", "c", min_nodes=2, max_restarts=1000)
    gives_up(story, "a")
    story.joins("b", "c")
    assert story.group.state == "starting"
    assert story.order == ["b", "c"]
    assert story.said("restart_spent") == [events.restart_spent(FIRST, 1, 1000)]


def test_a_spare_takes_the_place() -> None:
    story = running("a", "b", max_nodes=2, max_restarts=1000)
    story.join("spare")
    gives_up(story, "a")
    story.join("b")
    assert story.order == ["spare", "b"]


def test_a_node_that_cannot_start_workers_costs_no_restart() -> None:
    story = running("a", "b", min_nodes=1, max_restarts=0)
    gives_up(story, "b", rank=-1, local_rank=-1, exit_code=None, message="Too many open files")
    story.join("a")
    story.wait(story.group.spec.last_call_s)
    assert story.order == ["a"]
    assert story.group.restarts == 0
    assert story.round.restarted_by is None


@pytest.mark.parametrize("how", ["lose", "drain", "replace"])
def test_whatever_becomes_of_its_agent(how: str) -> None:
    """It crashes before it has left, a person takes it out, or it is started again at once."""
    story = running("a", "b", max_restarts=1000)
    story.failed("a", final=True)
    match how:
        case "lose":
            story.lose("a")
        case "drain":
            story.drain("a")
            story.leave("a")
        case "replace":
            story.leave("a", "its agent gave up")
            story.join("a", inc="a-2")
    story.join("b")
    if how == "replace":
        assert story.group.state == "starting"
        assert story.said("restart_spent") == [events.restart_spent(FIRST, 1, 1000)]
    else:
        assert_failed_with(story, FIRST, "b")


@pytest.mark.parametrize(
    ("how", "kind", "cause"),
    [
        (Story.lose, "node_lost", ends.node_lost("b", ends.departed(ReasonCode.CONNECTION_LOST))),
        (Story.leave, "node_left", ends.node_left("b", ends.agent_left())),
    ],
)
def test_a_loss_behind_the_failure_is_the_cause(
    how: Callable[[Story, str], None], kind: Any, cause: Reason
) -> None:
    """b's machine dies: a's workers fail of it, and a has no restart to spend."""
    story = running("a", "b", max_restarts=1000)
    gives_up(story, "a")
    how(story, "b")
    assert_failed_with(story, ends.consequences(cause))
    assert (story.root_cause.reason.code, story.root_cause.node_id) == (kind, "b")


def test_a_round_that_a_joiner_ended() -> None:
    """a's workers fell because their peers were stopped for c; the failure is all that explains the end of the job."""
    story = running("a", "b", max_nodes=3, max_restarts=1000)
    story.join("c")
    story.wait(1)
    assert story.ended == "joined"
    gives_up(story, "a")
    story.drain("c")
    story.leave("c")
    story.join("b")
    assert_failed_with(story, FIRST, "b")


def test_the_budget_of_the_group_counts_as_well() -> None:
    story = running("a", "b", "c", min_nodes=2, max_restarts=0)
    gives_up(story, "a")
    story.joins("b", "c")
    used_up = ends.without_restart(FIRST, "used_up", 0)
    assert_failed_with(story, used_up, "b", "c")
    assert story.said("group_failed") == [events.group_failed(used_up)]


def test_who_comes_back_has_not_given_up() -> None:
    story = running("a", "b", max_restarts=1000)
    story.failed("a", final=True)
    story.joins("a", "b")
    assert story.group.state == "starting"
    assert story.group.restarts == 1


def test_who_came_back_waits_for_the_others() -> None:
    story = running("a", "b", max_restarts=1000)
    story.failed("a", final=True)
    story.join("a")
    story.drain("b")
    story.leave("b")
    assert story.group.state == "waiting"


def test_a_master_that_succeeded_and_goes_explains_no_failure_before() -> None:
    """torch's agent cannot run again after its exit barrier, so it leaves once it hears that another node failed."""
    story = running("a", "b", max_restarts=1000)
    story.succeeded("a")
    story.failed("b", rank=1, final=True)
    story.leave("a", "its agent has finished")
    story.leave("b", "its agent gave up")
    assert_failed_with(story, failed("b", 1, before=Ended(node_id="a", rank=0)))


def test_an_agent_that_gave_up_but_never_goes_is_not_waited_for() -> None:
    story = running("a", "b", max_restarts=1000, stop_timeout_s=1.0)
    story.failed("a", final=True)
    story.join("b")
    story.renew("a")
    story.wait(6.1)
    assert_failed_with(story, FIRST, "a", "b")


# -- failures that a restart would repeat --------------------------------------------------------------------------


def test_a_hopeless_script_fails_the_group_at_once() -> None:
    story = running("a", "b", max_restarts=3)
    story.failed("b", permanent=True, rank=1, exit_code=2)
    story.joins("a", "b")
    hopeless = ends.without_restart(failed("b", 1, 2), "permanent")
    assert_failed_with(story, hopeless, "a", "b")
    assert story.group.restarts == 0
    assert story.told("a").exit_code == 1, "as torchrun's"


def test_it_is_the_root_cause_even_if_another_failure_was_seen_earlier() -> None:
    story = running("a", "b", max_restarts=3)
    story.failed("a", age_s=0.5)
    story.failed("b", permanent=True, rank=1)
    story.joins("a", "b")
    assert story.group.state == "failed"
    assert story.root_cause.node_id == "b"


def test_a_job_that_has_run_does_not_end_with_a_joiner_that_cannot() -> None:
    story = running("a", "b", max_restarts=3, min_nodes=2, max_nodes=None)
    story.join("c")
    story.wait(10.1)
    story.joins("a", "b")
    story.started("a", "b", "c")
    assert story.round.number == 2
    story.failed("c", permanent=True, rank=2)
    story.joins("a", "b", "c")
    assert not story.group.state.terminal
    assert story.group.restarts == 1


def test_a_first_round_without_workers_does_not_count() -> None:
    story = Story(min_nodes=2)
    story.joins("a", "b")
    story.wait(10.1)
    story.started("a")
    story.unreachable("b")
    story.joins("a", "b")
    story.started("a", "b")
    story.failed("b", permanent=True)
    story.joins("a", "b")
    assert story.group.state == "failed"


def test_a_restart_says_what_it_is_for() -> None:
    story = running("a", "b", max_restarts=3)
    assert story.told("a").start is not None
    story.failed("b", rank=1)
    story.joins("a", "b")
    for node_id in ("a", "b"):
        start = story.start(node_id)
        assert start.restarted_by == failed("b", 1)
    story.restart()
    story.joins("a", "b")
    start = story.start("a")
    assert start.restarted_by is None, "a person's wish costs no restart"
