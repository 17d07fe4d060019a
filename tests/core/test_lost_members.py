"""A running round names nodes that it lost, where it has room for them."""

import pytest

from tests.core.driver import Story, running


def lost(story: Story) -> tuple[str, ...]:
    assert story.reason.code == "round_running", story.reason
    return story.reason.nodes


def goes_on(story: Story) -> None:
    """Everybody does what it is told, for a minute."""
    for _ in range(60):
        for node in story.group.live:
            told = story.told(node.node_id)
            if told.kind == "stop":
                story.join(node.node_id)
            elif told.kind == "start" and node.phase == "starting":
                story.started(node.node_id)
        story.wait(1.0)


@pytest.mark.parametrize(
    ("spec", "is_missed"), [({"max_nodes": 2}, True), ({}, True), ({"on_join": "spare"}, False)]
)
def test_a_lost_node_is_missed_where_there_is_room_until_it_or_another_comes(
    spec: dict[str, object], is_missed: bool
) -> None:
    for comes in ("b", "c"):
        story = running("a", "b", min_nodes=1, **spec)
        assert lost(story) == ()
        story.lose("b")
        goes_on(story)
        assert lost(story) == (("b",) if is_missed else ())
        story.join(comes, inc="again")
        goes_on(story)
        assert lost(story) == ()


def test_another_in_its_place_is_no_other_agent_of_a_node_that_was_there() -> None:
    story = running("a", "b", "c", min_nodes=1)
    story.lose("b")
    goes_on(story)
    story.lose("c")
    story.join("c", inc="again")
    goes_on(story)
    assert lost(story) == ("b",)


@pytest.mark.parametrize("end", ["leave", "leaving", "drain"])
def test_a_node_that_was_meant_to_go_is_not_missed(end: str) -> None:
    story = running("a", "b", min_nodes=1, max_nodes=2)
    getattr(story, end)("b")
    if end != "leave":
        story.lose("b")
    goes_on(story)
    assert lost(story) == ()
