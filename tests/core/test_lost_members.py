"""A running round names nodes that it lost, where it would take them in again."""

import pytest

from hetrdzv.protocol.settings import OnJoin
from hetrdzv.protocol.states import NodePhase
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
            elif told.kind == "start" and node.phase is NodePhase.STARTING:
                story.started(node.node_id)
        story.wait(1.0)


def without_b(**spec: object) -> Story:
    story = running("a", "b", min_nodes=1, **spec)
    assert lost(story) == ()
    story.lose("b")
    goes_on(story)
    return story


@pytest.mark.parametrize(
    ("spec", "is_missed"),
    [
        ({"max_nodes": 2}, True),
        ({}, True),
        ({"on_join": OnJoin.SPARE}, False),
    ],
)
def test_a_lost_node_is_missed_where_there_is_room_for_it(spec: dict[str, object], is_missed: bool) -> None:
    story = without_b(**spec)
    assert lost(story) == (("b",) if is_missed else ())


def test_it_is_missed_until_it_or_another_comes() -> None:
    for comes in ("b", "c"):
        story = without_b(max_nodes=2)
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


@pytest.mark.parametrize("end", ["leave", "leaving", "drain", "drained later"])
def test_a_node_that_was_meant_to_go_is_not_missed(end: str) -> None:
    story = running("a", "b", min_nodes=1, max_nodes=2)
    match end:
        case "leave":
            story.leave("b")
        case "leaving":
            story.leaving("b")
            story.lose("b")
        case "drain":
            story.drain("b")
            story.lose("b")
        case "drained later":
            story.lose("b")
            story.drain("b")
    goes_on(story)
    assert lost(story) == ()
