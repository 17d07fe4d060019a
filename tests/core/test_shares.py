"""How much of the work each rank of a round gets: by the weights that people gave."""

from hetrdzv.protocol.directive import Shares
from tests.core.driver import Story, running


def told(story: Story, node_id: str) -> Shares | None:
    start = story.start(node_id)
    assert start.shares == story.round.shares
    return start.shares


def test_the_weights_of_a_node_are_those_of_its_newest_join() -> None:
    story = running("a", "b")
    assert told(story, "a") is told(story, "b") is None
    story.restart()
    story.join("a", weight=2.0)
    story.join("b")
    assert told(story, "a") == told(story, "b") == Shares(round=2, weights=((1, 2.0), (1, 1.0)))
    story.restart()
    story.join("a", weight=None)
    story.join("b")
    assert told(story, "a") is None


def test_a_weight_counts_for_each_slot_and_nodes_without_have_1() -> None:
    story = Story(min_nodes=3, max_nodes=3)
    story.join("a", slots=2, weight=2.0)
    story.join("b", slots=3)
    story.join("c")
    found = told(story, "a")
    assert found is not None
    assert found.weights == ((2, 2.0), (4, 1.0))
    assert found.of_ranks() == [2.0, 2.0, 1.0, 1.0, 1.0, 1.0]


def test_a_node_that_waits_may_change_its_weight_and_weight_1_is_one() -> None:
    story = Story(min_nodes=2, max_nodes=2)
    story.join("a", weight=4.0)
    story.join("a", weight=1.0)
    story.join("b")
    assert told(story, "a") == Shares(round=1, weights=((2, 1.0),))
