"""The master of a round has other members run its launcher's daemon: who may, what, for how long."""

from dataclasses import replace

import pytest

from hetrdzv.core.commands import StartDaemon
from hetrdzv.protocol.errors import NotFound, Refused, StaleIncarnation, StaleRound
from hetrdzv.protocol.reasons.reason import ReasonCode
from tests.core.driver import Story

ORTED = ("orted", "-mca", "ess_base_vpid", "1")


def begun(*node_ids: str, wanting: bool = True) -> Story:
    """A group in round 1, whose master is the first node and whose nodes were all started for a launcher."""
    story = Story(min_nodes=len(node_ids), max_nodes=8, last_call_s=0.0)
    for slots, node_id in enumerate(node_ids, 1):
        story.join(node_id, slots, wants_members=wanting and node_id != "b", wants_daemon=wanting)
    story.tick()
    assert story.order == [*node_ids]
    return story


def ask(story: Story, node_id: str = "b", words: tuple[str, ...] = ORTED, **more: object) -> None:
    fields = {"master": "a", "incarnation": "a-1", "round": 1, **more}
    story.do(StartDaemon(node_id=node_id, words=words, **fields))  # type: ignore[arg-type]


def test_a_member_is_told_to_run_it_in_its_round_and_nobody_else_is() -> None:
    story = begun("a", "b", "c")
    before = {node_id: story.told(node_id) for node_id in "abc"}
    members = story.start("a").members
    assert members == story.start("c").members is not None
    assert story.start("b").members is None, "it did not ask"
    assert [(m.node_id, m.slots, m.rank_offset) for m in members or ()] == [
        ("a", 1, 0),
        ("b", 2, 1),
        ("c", 3, 3),
    ]
    ask(story)
    told = story.told("b")
    assert (told.kind, told.round, told.code) == ("start", 1, "daemon")
    assert told.version != before["b"].version
    assert story.start("b").daemon == ORTED
    assert replace(story.start("b"), daemon=None) == before["b"].start
    assert [story.told(node_id) for node_id in "ac"] == [before[node_id] for node_id in "ac"]
    assert story.said("daemon_started") == [ReasonCode.DAEMON_STARTED.reason("a", program="orted")]
    ask(story)
    assert (story.told("b").version, len(story.said("daemon_started"))) == (told.version, 1), "the same again"
    with pytest.raises(Refused, match="another daemon"):
        ask(story, words=(*ORTED, "-mca"))
    assert story.node("b").daemon == ORTED


def test_after_the_end_of_the_round_there_is_none() -> None:
    story = begun("a", "b")
    ask(story)
    story.failed("a")
    assert story.told("b").start is None
    with pytest.raises(StaleRound):
        ask(story)
    story.join("b")
    assert story.node("b").daemon == ()
    story.join("a")
    assert (story.told("b").code, story.start("b").daemon) == ("round_formed", None)
    with pytest.raises(StaleRound):
        ask(story)
    ask(story, words=("orted", "anew"), round=2)
    assert story.node("b").daemon == ("orted", "anew")
    story.lose("b")
    assert story.node("b").daemon == ()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"round": 2}, StaleRound, "round 2 of group 'g' is over for node 'a'"),
        ({"round": 0}, StaleRound, "round 0"),
        ({"incarnation": "a-0"}, StaleIncarnation, "now belongs to another agent"),
        ({"master": "x"}, NotFound, "no node 'x'"),
        (
            {"master": "c", "incarnation": "c-1"},
            Refused,
            "'c' is not the master of round 1 of group 'g', which is 'a'",
        ),
        ({"node_id": "a"}, NotFound, "'a' is not another member of round 1"),
        ({"node_id": "x"}, NotFound, "'x' is not another member of round 1"),
    ],
)
def test_what_is_refused_changes_nothing(change: dict[str, object], error: type[Refused], says: str) -> None:
    story = begun("a", "b", "c")
    before = story.group
    with pytest.raises(error, match=says):
        ask(story, **change)  # type: ignore[arg-type]
    assert story.group is before
    story.cancel()
    with pytest.raises(StaleRound):
        ask(story)


def test_an_agent_that_was_not_started_for_it_is_never_given_one() -> None:
    with pytest.raises(Refused, match="--launch"):
        ask(begun("a", "b", wanting=False))
