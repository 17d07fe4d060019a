"""A node that has to go and says when: the workers of its round may save, it leaves, and the others go on."""

import pytest

from hetrdzv.protocol.reasons import ends, events
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.states import GroupState
from tests.core.driver import Story, bare
from tests.core.leases import deadline
from tests.core.test_notice import heeding


def leaves(node_id: str) -> Reason:
    """What ends the round."""
    return ends.node_leaving(node_id, ends.agent_left("SIGTERM", leaving=True))


def test_all_workers_may_save_before_the_node_goes_and_the_others_go_on_at_once() -> None:
    story = heeding("a", "b", "c", notice_s=0.0)
    story.leaving("b", grace_s=20.0)
    assert story.said("stop_announced") == [bare(events.stop_announced(1, leaves("b"), 20.0))]
    for node_id in ("a", "b", "c"):
        told = story.told(node_id)
        assert (told.kind, told.code, told.round) == ("start", "notice", 1)
        assert told.notice is not None
        assert (told.notice.reason, told.notice.left_s) == (leaves("b"), 20.0)
    for node_id in ("a", "b", "c"):
        assert story.ended is None
        story.report(node_id, "ready_to_stop")
    assert story.ended == "left"
    assert [story.told(node_id).kind for node_id in ("a", "b", "c")] == ["stop"] * 3
    story.joins("a", "c")
    story.leave("b")
    assert (story.order, story.group.last_round, story.group.restarts) == (["a", "c"], 2, 0)


@pytest.mark.parametrize(
    ("notice_s", "grace_s", "least"), [(0.0, 20.0, 20.0), (5.0, 20.0, 5.0), (60.0, 20.0, 20.0)]
)
def test_the_smaller_of_what_the_group_and_the_node_allow_counts(
    notice_s: float, grace_s: float, least: float
) -> None:
    story = heeding("a", "b", notice_s=notice_s)
    story.leaving("b", grace_s=grace_s)
    story.report("b", "ready_to_stop")
    assert deadline(story.group, story.now) == pytest.approx(story.now + least)
    story.pass_by(least)
    assert story.ended == "left"
    assert story.said("notice_expired") == [events.notice_expired(["a"], least)]


def test_the_time_counts_from_when_the_agent_got_the_signal() -> None:
    story = heeding("a", "b")
    story.leaving("b", grace_s=20.0, age_s=4.0)
    assert deadline(story.group, story.now) == pytest.approx(story.now + 16.0)


def test_nobody_saves_where_there_is_no_time_or_nobody_who_would() -> None:
    late, deaf, plain = heeding("a", "b"), heeding(deaf=("a", "b")), heeding("a", "b")
    late.leaving("b", grace_s=20.0, age_s=30.0)
    deaf.leaving("b", grace_s=20.0)
    plain.leaving("b")
    starting = Story(min_nodes=2, lease_s=3600.0)
    starting.join("a", takes_notice=True)
    starting.join("b", takes_notice=True)
    starting.wait(10.0)
    assert starting.group.state is GroupState.STARTING
    starting.leaving("b", grace_s=20.0)
    for story in (late, deaf, plain, starting):
        assert story.ended == "left"
        assert story.said("stop_announced") == []


def test_a_node_that_goes_during_a_planned_stop_hastens_it() -> None:
    story = heeding("a", "b", "c")
    story.drain("a")
    story.leaving("a", grace_s=25.0)
    assert deadline(story.group, story.now) == pytest.approx(story.now + 25.0)
    story.leaving("b", grace_s=5.0)
    assert deadline(story.group, story.now) == pytest.approx(story.now + 5.0)
    assert story.said("stop_announced") == [
        bare(events.stop_announced(1, ends.node_leaving("a", ends.departed(ReasonCode.NODE_DRAINED)), 30.0))
    ]
    story.leaving("c")
    assert story.ended == "left", "the workers of c are being stopped"


def test_a_drained_node_that_goes_by_itself_is_gone_whoever_lets_it_back() -> None:
    story = heeding("a", "b")
    story.drain("b")
    story.leaving("b", grace_s=20.0)
    story.undrain("b")
    assert story.node("b").leaving == ends.agent_left("SIGTERM")


def test_a_node_that_is_killed_before_its_time_ends_the_round_at_once() -> None:
    story = heeding("a", "b", lease_s=5.0)
    story.leaving("b", grace_s=20.0)
    story.lose("b")
    assert (story.ended, story.group.restarts) == ("lost", 0)
