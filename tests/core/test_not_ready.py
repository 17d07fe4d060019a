"""A node that is here but not ready: shown with its reason, in no round, and waited for no longer than it has said."""

import pytest

from hetrdzv.protocol.reasons import events, waiting
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.states import GroupState, NodePhase
from hetrdzv.protocol.texts.who import Nodes
from tests.core.driver import Story
from tests.core.explained import left_out, ready, waits_for

WHY = "node check failed (exit status 1): GPU 2: Xid 79"


def kinds(story: Story) -> list[str]:
    return [event.code for event in story.events]


def test_a_node_that_is_not_ready_is_shown_and_takes_part_once_it_is() -> None:
    story = Story(min_nodes=2, max_nodes=2)
    story.join("a")
    assert story.join("b", not_ready=WHY).code == "not_ready"
    assert story.said("node_joined")[-1] == events.node_joined("b", 1, "10.0.0.1", WHY)
    waits = waiting.too_few(ready(["a"], 2), 1, until=story.now + 600)
    assert story.reason == waiting.also_not_ready(waits, waiting.not_ready(Nodes.of(["b"]), WHY))
    assert story.told("a").reason == story.reason
    assert story.join("b").kind == "start"
    assert story.said("node_ready") == [events.of_node(ReasonCode.NODE_READY, "b")]
    assert story.order == ["a", "b"]


def test_without_it_the_others_begin_and_it_is_taken_in_later() -> None:
    story = Story(last_call_s=10.0)
    story.join("a")
    story.join("b", not_ready=WHY)
    story.wait(10.1)
    story.started("a")
    assert story.order == ["a"]
    assert left_out(story, "b") == waiting.not_ready(Nodes.of(["b"]), WHY)
    story.join("b")
    assert left_out(story, "b").code == "joins_next_round"
    story.wait(10.1)
    assert story.told("a").kind == "stop"


def test_a_spare_that_is_no_longer_ready_restarts_nobody_and_fills_no_gap() -> None:
    story = Story(max_nodes=2)
    story.joins("a", "b")
    story.started("a", "b")
    story.join("c")
    assert story.join("c", not_ready=WHY).code == "not_ready"
    assert story.said("node_not_ready") == [events.node_not_ready("c", WHY)]
    story.leave("b")
    story.join("a")
    assert story.order == ["a"]


def test_who_joins_as_ready_is_withdrawn_before_a_round_forms_not_after() -> None:
    story = Story(min_nodes=2, max_nodes=2)
    story.join("a")
    story.join("a", not_ready=WHY)
    story.join("b")
    assert story.group.state is GroupState.WAITING
    story.join("a")
    assert story.group.state is GroupState.STARTING
    assert story.join("a", after=0, not_ready=WHY).kind == "start", "the round had formed before it was sent"
    assert story.group.nodes["a"].not_ready == ""
    assert story.group.nodes["a"].phase is NodePhase.STARTING


def test_a_survivor_that_is_not_ready_has_stopped_all_the_same() -> None:
    story = Story(min_nodes=1)
    story.joins("a", "b")
    story.wait(10.1)
    story.started("a", "b")
    story.failed("b")
    story.join("b", not_ready=WHY)
    assert story.group.restarts == 0, "a has not stopped yet"
    story.join("a")
    assert (story.group.restarts, story.order) == (1, ["a"])


def test_a_survivor_that_is_being_checked_is_waited_for_as_long_as_it_has_said() -> None:
    story = Story(min_nodes=1, stop_timeout_s=30.0, lease_s=3600.0)
    story.join("a")
    story.join("b", ready_within_s=60.0)
    story.wait(10.1)
    story.started("a", "b")
    story.failed("a")
    story.renew("a", "b")
    story.join("a")
    story.wait(94.9)
    assert story.group.state is GroupState.WAITING
    assert waits_for(story) == waiting.stopping(["b"], until=pytest.approx(story.now, abs=0.2))
    story.wait(0.2)
    assert story.order == ["a"]
