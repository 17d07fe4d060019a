"""The master of a round has other members run its launcher's daemon: who may, what, for how long."""

from dataclasses import replace

import pytest

from hetrdzv.core.commands import StartDaemon
from hetrdzv.protocol.errors import (
    DaemonRefused,
    NotFound,
    Refused,
    StaleIncarnation,
    StaleRound,
)
from hetrdzv.protocol.reasons import events
from tests.core.driver import Story

ORTED = ("orted", "-mca", "ess_base_vpid", "1")


def begun(*node_ids: str, wanting: bool = True, **spec: object) -> Story:
    """A group in round 1, whose master is the first node and whose nodes were all started for a launcher."""
    story = Story(min_nodes=len(node_ids), max_nodes=8, last_call_s=0.0, **spec)
    for slots, node_id in enumerate(node_ids, 1):
        story.join(node_id, slots, wants_members=wanting, wants_daemon=wanting)
    story.tick()
    assert story.order == [*node_ids]
    return story


def ask(
    story: Story,
    node_id: str = "b",
    words: tuple[str, ...] = ORTED,
    *,
    master: str = "a",
    inc: str = "a-1",
    nr: int = 1,
) -> None:
    story.do(StartDaemon(node_id=node_id, master=master, incarnation=inc, round=nr, words=words))


def test_a_start_names_all_members_to_who_asked_and_to_nobody_else() -> None:
    story = Story(min_nodes=3, last_call_s=0.0)
    story.join("a", 2, wants_members=True)
    story.join("b", 1)
    story.join("c", 3, wants_members=True)
    story.tick()
    for node_id in ("a", "c"):
        start = story.start(node_id)
        assert start.members is not None
        assert [(m.node_id, m.slots, m.rank_offset, m.group_rank) for m in start.members] == [
            ("a", 2, 0, 0),
            ("b", 1, 2, 1),
            ("c", 3, 3, 2),
        ]
        assert start.daemon is None
    start = story.start("b")
    assert start.members is None


def test_the_member_is_told_to_run_it_in_the_same_round_and_nobody_else_is() -> None:
    story = begun("a", "b", "c")
    before = {node_id: story.told(node_id) for node_id in "abc"}
    ask(story)
    told = story.told("b")
    assert (told.kind, told.round, told.code) == ("start", 1, "daemon")
    assert told.version != before["b"].version
    assert told.start is not None
    assert told.start.daemon == ORTED
    assert replace(told.start, daemon=None) == before["b"].start
    assert {node_id: story.told(node_id) for node_id in "ac"} == {
        node_id: before[node_id] for node_id in "ac"
    }
    assert story.said("daemon_started") == [events.daemon_started("a", "orted")]


def test_the_same_again_changes_nothing_and_other_words_are_refused() -> None:
    story = begun("a", "b")
    ask(story)
    version, events = story.told("b").version, len(story.events)
    ask(story)
    assert (story.told("b").version, len(story.events)) == (version, events)
    with pytest.raises(DaemonRefused, match="another daemon"):
        ask(story, words=(*ORTED, "-mca"))
    assert story.node("b").daemon == ORTED


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"nr": 2}, StaleRound, "round 2 of group 'g' is over for node 'a'"),
        ({"nr": 0}, StaleRound, "round 0"),
        ({"inc": "a-0"}, StaleIncarnation, "now belongs to another agent"),
        ({"master": "x"}, NotFound, "no node 'x'"),
        (
            {"master": "c", "inc": "c-1"},
            DaemonRefused,
            "'c' is not the master of round 1 of group 'g', which is 'a'",
        ),
        ({"node_id": "a"}, NotFound, "'a' is not another member of round 1"),
        ({"node_id": "x"}, NotFound, "'x' is not another member of round 1"),
    ],
)
def test_what_is_refused_changes_nothing(change: dict[str, object], error: type[Refused], says: str) -> None:
    story = begun("a", "b", "c")
    before = story.group
    with pytest.raises(error, match=says.replace("(", r"\(")) as caught:
        ask(story, **change)  # type: ignore[arg-type]
    assert caught.type is error
    assert story.group is before


def test_an_agent_that_was_not_started_for_it_is_never_given_one() -> None:
    story = begun("a", "b", wanting=False)
    with pytest.raises(DaemonRefused, match="--launch"):
        ask(story)


def test_after_the_end_of_the_round_there_is_none() -> None:
    story = begun("a", "b")
    ask(story)
    story.failed("a")
    told = story.told("b")
    assert (told.kind, told.start) == ("stop", None)
    with pytest.raises(StaleRound):
        ask(story)
    story.join("b")
    assert story.node("b").daemon == ()
    story.join("a")
    told = story.told("b")
    assert (told.kind, told.round, told.code) == ("start", 2, "round_formed")
    assert told.start is not None
    assert told.start.daemon is None
    with pytest.raises(StaleRound):
        ask(story)
    ask(story, nr=2, words=("orted", "anew"))
    assert story.node("b").daemon == ("orted", "anew")


def test_a_cancelled_group_takes_none() -> None:
    story = begun("a", "b")
    story.cancel()
    with pytest.raises(StaleRound):
        ask(story)


def test_a_node_that_is_gone_keeps_none() -> None:
    story = begun("a", "b")
    ask(story)
    story.lose("b")
    assert story.node("b").daemon == ()
