"""What becomes of a finished group (rule 10)."""

import pytest

from hetrdzv.protocol.errors import GroupFinishing, SpecConflict
from hetrdzv.protocol.reasons import waiting
from tests.core.driver import LEASE_S, Story, running


def done(*node_ids: str, by_put: bool = False) -> Story:
    story = Story(min_nodes=len(node_ids), last_call_s=0)
    if by_put:
        story.put(min_nodes=len(node_ids), last_call_s=0)
    story.joins(*node_ids)
    story.succeeded(*node_ids)
    assert story.group.state == "succeeded"
    return story


def test_new_agent_begins_a_new_job_once_the_old_ones_are_gone() -> None:
    story = done("a", "b")
    story.leave("a")
    before = story.group
    with pytest.raises(GroupFinishing, match=": b;"):
        story.join("a", inc="a-2")
    assert story.group is before
    story.leave("b")
    story.spec = {"min_nodes": 1, "max_nodes": 1, "max_restarts": 7}
    told = story.join("a", inc="a-2")
    assert told.start is not None
    assert (told.round, told.start.restart_count, told.start.max_restarts) == (2, 0, 7)
    assert story.group.job == 2
    assert story.group.restarts == 0


def test_new_agent_begins_a_new_job_once_the_old_ones_expired() -> None:
    story = done("a", "b")
    story.now += LEASE_S
    with pytest.raises(GroupFinishing):
        story.join("c")
    story.now += 0.001  # no tick has come yet
    story.join("c")
    assert story.group.job == 2


def test_failed_job_is_followed_by_a_new_one() -> None:
    story = running("a", max_restarts=1)
    for _ in range(2):
        story.failed("a")
        story.join("a")
    assert story.group.state == "failed"
    story.leave("a")
    story.join("a", inc="a-2")
    story.wait(1)
    assert (story.group.state, story.group.restarts) == ("starting", 0)
    assert story.group.root_cause is None


def test_finished_group_answers_its_nodes_again_and_again() -> None:
    story = done("a", "b")
    for _ in range(2):
        story.renew("a")
        assert story.join("a", after=1).exit_code == 0
    story.pass_by(LEASE_S + 1)
    assert story.told("a").exit_code == 0


def test_old_node_that_comes_late_hears_how_its_job_ended() -> None:
    story = done("a", "b")
    story.pass_by(LEASE_S + 1)
    story.join("a", inc="a-2")
    told = story.join("b", after=1)
    assert (told.kind, told.outcome, told.exit_code) == ("exit", "succeeded", 0)
    assert told.reason == waiting.earlier_job("succeeded")
    assert story.node("b").gone


def test_group_made_by_put_stays_finished_until_its_restart() -> None:
    story = done("a", by_put=True)
    story.leave("a")
    for number in (2, 3):
        told = story.join("a", inc=f"a-{number}")
        assert (told.kind, told.outcome) == ("exit", "succeeded")
        story.leave("a")
    assert story.group.job == 1
    story.restart()
    assert (story.group.state, story.group.job) == ("waiting", 2)
    story.join("a", inc="a-4")
    assert story.round.number == 2


def test_restart_does_not_wait_for_agents_that_came_after_the_end() -> None:
    story = done("a", by_put=True)
    story.leave("a")
    story.wait(1)
    story.join("b")
    story.restart()
    assert story.group.state == "waiting"
    told = story.told("b")
    assert (told.kind, told.outcome) == ("exit", "succeeded")
    story.wait(30)
    assert story.group.state == "waiting"


def test_restart_waits_for_agents_of_the_job() -> None:
    story = done("a", by_put=True)
    with pytest.raises(GroupFinishing):
        story.restart()


def test_cancelled_group_stays_cancelled_until_its_restart() -> None:
    story = running("a")
    story.cancel()
    story.leave("a")
    assert story.join("a", inc="a-2").exit_code == 3
    story.leave("a")
    story.put(min_nodes=1)
    assert story.group.state == "cancelled"
    story.restart()
    story.join("a", inc="a-3")
    story.wait(1)
    assert story.group.state == "starting"


def test_put_creates_once() -> None:
    story = Story()
    story.put(min_nodes=2)
    before = story.group
    story.put(min_nodes=2)
    assert story.group is before
    assert len(story.said("group_created")) == 1
    with pytest.raises(SpecConflict):
        story.put(min_nodes=3)


def test_put_on_a_finished_group_that_agents_made_begins_a_new_job() -> None:
    story = done("a")
    story.leave("a")
    story.put(min_nodes=3)
    assert (story.group.state, story.group.job, story.group.spec.min_nodes) == ("waiting", 2, 3)
