"""A stall in the state machine: when it is told, and when it ends its round."""

from dataclasses import replace

import pytest

from hetrdzv.core.commands import NoteStall
from hetrdzv.core.model import Stall
from hetrdzv.protocol.errors import StaleRound
from hetrdzv.protocol.reasons import ends, events, hangs
from hetrdzv.protocol.reasons.hangs import culprits_of
from hetrdzv.protocol.states import StallKind
from hetrdzv.storage.records import changes
from tests.core.driver import Story, bare
from tests.support.hangs import behind, of_nobody
from tests.support.restored import restore

OF_A = Stall(hang=behind(0, "a", waiting=(1,)), since=0.0)


def stalled(story: Story, for_s: float = 0.0, **more: object) -> Stall:
    """The service sees that the first worker of b is waited for."""
    stall = Stall(hang=behind(2, "b"), since=story.now - for_s)
    stall = replace(stall, **more)  # type: ignore[arg-type]
    story.do(NoteStall(1, stall))
    return stall


def job(**spec: object) -> Story:
    story = Story(min_nodes=2, max_nodes=2, **spec)
    story.join("a", 2)
    story.join("b", 2)
    story.started("a", "b")
    return story


def test_a_stall_is_told_once_it_has_lasted() -> None:
    story = job()
    stalled(story)
    assert story.reason.code == "round_running"
    story.wait(14)
    assert story.said("stalled") == []
    story.wait(1)
    assert story.said("stalled") == [bare(hangs.stalled(1, replace(behind(2, "b"), for_s=15.0)))]
    waits = hangs.hang(1, behind(2, "b"), story.now - 15)
    assert story.reason == waits
    story.wait(25)
    assert story.reason == waits
    assert len(story.said("stalled")) == 1
    story.do(NoteStall(1, None))
    assert story.said("goes_on") == [bare(hangs.goes_on(1, replace(behind(2, "b"), for_s=40.0)))]
    assert story.reason.code == "round_running"


def test_what_a_person_ends_is_said_to_have_hung() -> None:
    story = job(notice_s=0.0)
    stalled(story)
    story.wait(5)
    story.restart()
    (ended,) = story.said("round_ended")
    assert ended.cause == ends.restart_requested(), "nobody was told of a hang"
    story.join("a", 2)
    story.join("b", 2)
    story.started("a", "b")
    story.do(NoteStall(2, Stall(hang=behind(2, "b"), since=story.now)))
    story.wait(20)
    hang = replace(behind(2, "b"), for_s=20.0)
    story.restart()
    assert story.said("round_ended")[-1].cause == ends.restart_requested(hang=hang)
    story = job()
    stalled(story)
    story.wait(20)
    story.cancel()
    assert story.reason == ends.cancelled(hang=hang)
    assert story.said("group_cancelled") == [ends.cancelled(hang=hang)]


def test_seconds_commit_nothing() -> None:
    story = job(lease_s=100)
    stalled(story, for_s=60)
    before = story.group
    story.now += 7
    story.tick()
    assert story.group is before
    assert story.reason.since == story.now - 67
    stalled(story, for_s=66.5)  # seen again, a little later
    assert story.group is before


def test_the_stack_of_a_worker_is_kept_while_it_is_waited_for_since_then_or_longer() -> None:
    story = job(hang_timeout_s=6.0, max_restarts=0)
    stalled(story, for_s=1, stack="in load")
    stalled(story, for_s=9)  # more is known now: the round ends at once, and nobody can take the stack again
    story.joins("a", "b")
    cause = story.root_cause
    assert cause.failure is not None
    assert cause.failure.message == "in load"


def test_more_who_are_behind_are_no_news_but_another_is() -> None:
    story = job()
    stalled(story, for_s=60)
    stalled(story, for_s=60, hang=replace(behind(2, "b"), culprits=culprits_of([("b", 2), ("b", 3)])))
    assert len(story.said("stalled")) == 1
    assert story.reason.ranks == ((2, 3),)
    stalled(story, for_s=60, hang=behind(0, "a", waiting=[1]))
    assert story.said("stalled")[1:] == [
        bare(hangs.stalled(1, replace(behind(0, "a", waiting=[1]), for_s=60.0)))
    ]


def test_a_hang_ends_the_round_as_a_failure_of_the_culprit() -> None:
    story = job(hang_timeout_s=30, max_restarts=1)
    stalled(story, stack="File train.py, line 7, in <module>")
    story.wait(20)
    assert (story.reason.since, story.reason.until) == (story.now - 20, story.now + 10)
    story.wait(9)
    assert story.group.state == "running"
    story.wait(1)
    hang = ends.hangs(replace(behind(2, "b"), for_s=30.0), "b", 2)
    assert story.said("round_ended") == [bare(events.round_ended(1, hang, "failed"))]
    assert story.told("a").kind == story.told("b").kind == "stop"
    story.failed("a", rank=0, age_s=100, exit_code=7)  # what stopped workers report replaces nothing
    story.failed("b", rank=2, exit_code=None, signal="SIGTERM")
    story.joins("a", "b")
    assert story.said("restart_spent") == [events.restart_spent(hang, 1, 1)]
    assert (story.round.number, story.round.restarted_by) == (2, hang)

    story.started("a", "b")
    stall = Stall(hang=behind(3, "b", stopped=True), since=story.now, stack="line 9")
    story.do(NoteStall(2, stall))
    story.wait(30)
    story.joins("a", "b")
    cause = story.root_cause
    assert cause.failure is not None
    assert (cause.reason.code, cause.node_id, cause.round) == ("no_answer", "b", 2)
    assert (cause.failure.rank, cause.failure.local_rank, cause.failure.message) == (3, 1, "line 9")
    assert story.told("a").root_cause == cause
    assert story.told("a").exit_code == 1
    hang = ends.hangs(replace(stall.hang, for_s=30.0), "b", 3)
    assert cause.reason == ends.without_restart(hang, "used_up", 1)


@pytest.mark.parametrize("kind", [StallKind.NOTHING_COMPLETES, StallKind.MISMATCH])
def test_a_hang_of_nobody_in_particular_blames_no_node(kind: StallKind) -> None:
    hang = of_nobody(*range(4), kind=kind)
    story = job(hang_timeout_s=5, max_restarts=0)
    stalled(story, for_s=4, hang=hang)
    assert story.said("stalled") == []
    story.wait(1)
    assert story.said("stalled") == [bare(hangs.stalled(1, replace(hang, for_s=5.0)))]
    story.joins("a", "b")
    cause = story.root_cause
    assert (cause.reason.code, cause.node_id, cause.failure) == (hang.kind, None, None)
    hang = replace(hang, for_s=5.0)
    assert cause.reason == ends.without_restart(ends.hangs(hang), "used_up", 0)


def test_a_node_that_is_lost_meanwhile_is_the_cause() -> None:
    story = job(hang_timeout_s=5, max_restarts=0)
    stalled(story)
    story.wait(4)
    story.cut("a")
    assert story.deadline_in is not None
    story.now += 0.999
    story.tick()
    assert story.group.state == "running"
    story.pass_by(0.5)  # its second of grace is over
    assert story.ended == "lost"
    assert story.group.restarts == 0


def test_a_suspect_that_is_heard_again_is_no_excuse() -> None:
    story = job(hang_timeout_s=5)
    stalled(story)
    story.wait(4.5)
    story.cut("a")
    story.now += 0.7
    story.tick()
    assert story.ended is None
    story.renew("a")
    story.tick()
    assert story.ended == "failed"


def test_a_node_lost_while_it_stops_is_the_cause_of_the_hang() -> None:
    story = job(hang_timeout_s=5, max_restarts=0)
    stalled(story)
    story.wait(5)
    assert story.ended == "failed"
    story.join("a")
    story.lose("b")
    assert story.ended == "lost"
    assert story.group.state == "waiting"


def test_a_stall_of_another_round_or_of_none_changes_nothing() -> None:
    story = job()
    before = story.group
    story.do(NoteStall(7, Stall(hang=behind(0, "a", waiting=(1,)), since=0.0)))
    assert story.group is before
    story.restart()
    before = story.group
    story.do(NoteStall(1, Stall(hang=behind(0, "a", waiting=(1,)), since=0.0)))
    assert story.group is before
    with pytest.raises(StaleRound):
        story.succeeded("a")


def test_a_stall_is_not_stored() -> None:
    """The table that it comes from is empty after a restart of the server."""
    story = job()
    bare = story.group
    stalled(story, for_s=60)
    assert changes(bare, story.group) == ({}, set())
    stored = restore(changes(None, story.group)[0], story.now).groups["g"]
    assert stored.round == bare.round


def test_a_job_that_is_over_does_not_hang() -> None:
    """The last word comes when the time-out is over already, and its tick is late."""
    story = job(lease_s=1000, hang_timeout_s=30)
    story.succeeded("a")
    stalled(story)
    story.now += 31
    story.succeeded("b")
    assert story.group.state == "succeeded"
