"""Trying again: whose settings a group has once nobody is left in it, and what a refusal says while somebody is."""

import pytest

from hetrdzv.core.commands import Cancel
from hetrdzv.protocol.errors import Difference, InvalidSpec, SpecConflict
from hetrdzv.protocol.reasons import ends, events, waiting
from tests.core.driver import LEASE_S, Story, running

MANY = {"min_nodes": 1_000}


def left_behind(*node_ids: str, **spec: object) -> Story:
    """A group whose nodes were all stopped with Ctrl-C in round 1."""
    story = running(*node_ids, **{"min_nodes": len(node_ids), "max_nodes": len(node_ids), **spec})
    for node_id in node_ids:
        story.leave(node_id, "its agent got SIGINT")
    return story


def again(story: Story, node_id: str, **spec: object) -> None:
    """A new agent of a node joins with settings of its own."""
    story.join(node_id, inc=f"{node_id}-2", spec=spec)


def test_a_group_without_live_nodes_takes_the_settings_of_the_next_joiner() -> None:
    story = left_behind("a", "b")
    again(story, "a", min_nodes=1, max_nodes=1)
    assert (story.group.spec.min_nodes, story.group.spec.max_nodes) == (1, 1)
    start = story.told("a").start
    assert start is not None, story.why
    assert (story.told("a").round, story.group.job, start.world_size) == (2, 1, 1)
    differ = (Difference("min_nodes", "2", "1"), Difference("max_nodes", "2", "1"))
    assert story.said("settings_changed") == [events.settings_changed("a", differ)]


def test_the_job_goes_on_otherwise() -> None:
    story = running("a", "b", max_restarts=3)
    story.failed("b")
    story.joins("a", "b")
    story.started("a", "b")
    assert story.group.restarts == 1
    for node_id in ("a", "b"):
        story.leave(node_id)
    again(story, "b", min_nodes=2, lease_s=9.0)
    again(story, "a", min_nodes=2, lease_s=9.0)
    story.wait(1)
    start = story.start("a")
    assert (story.told("a").round, story.group.job, start.restart_count) == (3, 1, 1)
    assert story.order == ["a", "b"], "the seats are kept"
    assert story.group.spec.lease_s == 9.0
    assert story.group.spec.max_restarts == 3, "what is not given stays"
    assert len(story.said("settings_changed")) == 1, "the second one agrees with the first"


def test_one_node_that_is_left_holds_the_group_to_its_settings() -> None:
    story = running("a", "b", max_nodes=2)
    story.leave("b")
    before = story.group
    with pytest.raises(SpecConflict) as refused:
        again(story, "b", min_nodes=1, max_nodes=1)
    assert story.group is before
    conflict = refused.value.conflict
    assert conflict.differences == (Difference("min_nodes", "2", "1"), Difference("max_nodes", "2", "1"))
    assert str(refused.value).endswith("use another group, or wait until its job is over")
    assert conflict.nodes == ("a",)
    assert conflict.retry_for_s is None


def test_nodes_that_are_overdue_are_not_left() -> None:
    story = running("a", "b")
    story.now += LEASE_S
    with pytest.raises(SpecConflict):
        story.join("c", spec={"min_nodes": 1})
    story.now += 0.01  # no tick has come yet
    story.join("c", spec={"min_nodes": 1})
    assert story.group.spec.min_nodes == 1


@pytest.mark.parametrize(
    ("leaving", "cut", "retry_for_s"), [("a", "b", 40.0), (None, "ab", 40.0), ("a", "", None)]
)
def test_nodes_on_their_way_out_are_worth_a_wait(
    leaving: str | None, cut: str, retry_for_s: float | None
) -> None:
    story = running("a", "b")
    if leaving is not None:
        story.leaving(leaving)
    for node_id in cut:
        story.cut(node_id)
    with pytest.raises(SpecConflict) as refused:
        story.join("c", spec={"min_nodes": 1})
    assert refused.value.conflict.retry_for_s == (None if retry_for_s is None else pytest.approx(retry_for_s))


def test_a_group_made_on_purpose_keeps_its_settings() -> None:
    story = Story()
    story.put(min_nodes=2)
    with pytest.raises(SpecConflict, match=r": hetctl delete g$") as refused:
        again(story, "a", min_nodes=1)
    assert refused.value.conflict.by_put
    with pytest.raises(SpecConflict, match=r": hetctl delete g$"):
        story.put(min_nodes=1)


def test_a_person_may_name_other_settings_too_once_nobody_is_left() -> None:
    story = left_behind("a", "b")
    story.put(min_nodes=1, max_nodes=1)
    assert (story.group.spec.min_nodes, story.group.by_put, story.group.job) == (1, True, 1)
    assert [one.nodes for one in story.events if one.code == "settings_changed"] == [()]


def test_bounds_that_contradict_what_is_left_are_refused() -> None:
    story = left_behind("a", "b")
    with pytest.raises(InvalidSpec) as refused:
        again(story, "a", max_nodes=1)
    assert refused.value.field == "max_nodes"


def test_a_job_that_fails_with_its_last_node_is_followed_by_a_new_one() -> None:
    story = running("a", max_restarts=0)
    story.failed("a")
    story.now += LEASE_S + 0.01  # it is lost, and its failure is judged when the next one joins
    again(story, "a", max_restarts=5)
    assert story.group.spec.max_restarts == 5
    assert story.group.state == "waiting"


def test_a_cancelled_group_says_so_to_who_comes_later() -> None:
    story = running("a")
    story.do(Cancel("an admin at 10.0.0.9"))
    assert story.told("a").reason == ends.cancelled(by="an admin at 10.0.0.9")
    story.leave("a")
    story.wait(60)
    told = story.join("a", inc="a-2")
    assert (told.kind, told.exit_code) == ("exit", 3)
    assert told.reason == waiting.came_late(group_id="g", outcome="cancelled", by="an admin at 10.0.0.9")
    assert told.came_late
    story.leave("a")
    story.restart()
    assert story.group.cancellation is None


def test_a_node_that_is_drained_changes_no_settings() -> None:
    story = left_behind("a", "b")
    story.drain("a")
    story.join("a", inc="a-2", spec={"min_nodes": 1, "max_nodes": 1})
    assert (story.told("a").kind, story.told("a").code) == ("exit", "drained")
    assert story.group.spec.min_nodes == 2
    again(story, "b", min_nodes=1, max_nodes=3)
    assert story.group.spec.max_nodes == 3, "nor does it hold the group to them"


def test_a_long_command_is_not_repeated_in_full() -> None:
    story = Story(command=["train.py", *("word" for _ in range(1000))])
    story.join("a")
    story.leave("a")
    again(story, "a", command=["train.py", *("other" for _ in range(1000))])
    assert story.group.spec.command is not None
    assert len(story.group.spec.command) == 1001
    [event] = [one for one in story.events if one.code == "settings_changed"]
    assert len(event.message) <= 300


@pytest.mark.parametrize("more", [{"min_nodes": 2}, {"world_size_multiple": 2}])
def test_bounds_cannot_change_under_a_round(more: dict[str, int]) -> None:
    """An agent without a script may bring the command in its settings; the others are fixed once a round forms."""
    story = Story(command=["train.py"], last_call_s=0.0)
    story.join("a", wants_command=True)
    story.wait(1)
    assert story.order == ["a"]
    with pytest.raises(SpecConflict):
        story.join("b", spec=more)


# -- another script ------------------------------------------------------------------------------------------


def test_another_script_is_refused_while_a_node_of_the_role_lives() -> None:
    story = Story()
    story.join("a", script="train.py")
    before = story.group
    with pytest.raises(SpecConflict, match=r"has script=train\.py, and script=eval\.py was given") as no:
        story.join("b", script="eval.py")
    assert story.group is before
    assert (no.value.conflict.differences, no.value.conflict.nodes) == (
        (Difference("script", "train.py", "eval.py"),),
        ("a",),
    )
    story.join("b", script="train.py")
    story.join("c", script="eval.py", role="eval")
    story.join("d")
    with pytest.raises(SpecConflict):
        story.join("e", script="train.py", role="eval")
