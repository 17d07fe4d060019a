"""Planned stops: the workers are told before and may save; a death cuts that short and costs what it always does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hetrdzv.core.commands import Cancel, NoteStall, Tick
from hetrdzv.core.invariants import violations
from hetrdzv.core.model import Cause, Group, Notice, Stall
from hetrdzv.protocol.errors import Refused
from hetrdzv.protocol.reasons import ends, events, waiting
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.states import EndKind, GroupState
from tests.core.driver import Story, bare, running
from tests.core.leases import deadline, step
from tests.support.hangs import behind

Act = Callable[[Story], None]


def heeding(*node_ids: str, deaf: tuple[str, ...] = (), **spec: Any) -> Story:
    """A group that gives 30 s of notice and runs round 1 on these nodes, whose agents know what that is."""
    story = Story(**{"min_nodes": 1, "last_call_s": 1.0, "notice_s": 30.0, "lease_s": 3600.0, **spec})
    for node_id in (*node_ids, *deaf):
        story.join(node_id, takes_notice=node_id not in deaf)
    story.wait(1.0)
    story.started(*node_ids, *deaf)
    assert story.group.state is GroupState.RUNNING
    return story


def joins(story: Story) -> None:
    story.join("z")
    story.wait(1.0)


PLANNED: dict[str, tuple[Act, Reason]] = {
    "joined": (joins, ends.nodes_joined(["z"])),
    "drained": (
        lambda story: story.drain("b"),
        ends.node_leaving("b", ends.departed(ReasonCode.NODE_DRAINED)),
    ),
    "restarted": (lambda story: story.restart(), ends.restart_requested()),
    "cancelled": (lambda story: story.cancel(), ends.cancelled()),
}


@pytest.fixture(params=PLANNED)
def planned(request: pytest.FixtureRequest) -> tuple[str, Act, Reason]:
    """A planned stop: its kind, what makes it, and its cause."""
    return (request.param, *PLANNED[request.param])


def over(story: Story) -> str:
    """What the round has ended with."""
    return "cancelled" if story.group.state is GroupState.CANCELLED else str(story.ended)


def test_without_notice_s_every_planned_stop_comes_at_once(planned: tuple[str, Act, Reason]) -> None:
    kind, act, _ = planned
    story = heeding("a", "b", notice_s=0.0)
    act(story)
    assert over(story) == kind
    assert story.said("stop_announced") == []


def test_the_workers_are_told_and_the_round_ends_once_all_are_ready(planned: tuple[str, Act, Reason]) -> None:
    kind, act, cause = planned
    story = heeding("a", "b")
    act(story)
    assert story.said("stop_announced") == [bare(events.stop_announced(1, cause, 30.0))]
    for node_id in ("a", "b"):
        told = story.told(node_id)
        assert (told.kind, told.code, told.round) == ("start", "notice", 1)
        assert told.notice is not None
        assert (told.notice.reason, told.notice.left_s) == (cause, 30.0)
    until = story.now + 30.0
    ending = waiting.about_to_end(1, cause, ["a", "b"], until)
    assert story.reason == story.told("a").reason == ending
    story.wait(2.0)
    story.report("a", "ready_to_stop")
    assert story.reason.nodes == ("b",)
    story.report("b", "ready_to_stop")
    assert over(story) == kind
    assert story.said("ready_to_stop") == [events.ready_to_stop(2.0)]
    assert story.told("a").kind == ("exit" if kind == "cancelled" else "stop")
    assert story.told("b").kind == ("exit" if kind in ("cancelled", "drained") else "stop")
    assert story.group.restarts == 0


def test_at_the_end_of_the_notice_the_stop_comes_all_the_same(planned: tuple[str, Act, Reason]) -> None:
    kind, act, _ = planned
    story = heeding("a", "b")
    act(story)
    story.report("a", "ready_to_stop")
    at = deadline(story.group, story.now)
    assert at == pytest.approx(story.now + 30)
    assert step(story.group, Tick(), at - 1e-6).group is story.group
    story.pass_by(30.0)
    assert over(story) == kind
    assert story.said("notice_expired") == [events.notice_expired(["b"], 30.0)]


def test_a_death_cuts_it_short_and_costs_what_it_costs_without(planned: tuple[str, Act, Reason]) -> None:
    kind, act, _ = planned
    for dies, cost, end in ((Story.failed, 1, "failed"), (Story.lose, 0, "lost"), (Story.leave, 0, "left")):
        story = heeding("a", "b", "c", lease_s=5.0)
        act(story)
        story.report("a", "ready_to_stop")
        dies(story, "c")
        assert over(story) == ("cancelled" if kind == "cancelled" else end)
        if kind not in ("cancelled", "drained"):
            story.joins("a", "b", *(["c"] if end == "failed" else []))
            assert story.group.restarts == cost


def test_nobody_is_told_while_the_round_starts_since_there_is_nothing_to_save() -> None:
    story = Story(min_nodes=2, last_call_s=1.0, notice_s=30.0)
    for node_id in ("a", "b"):
        story.join(node_id, takes_notice=True)
    story.wait(1.0)
    story.started("a")
    story.restart()
    assert story.ended == "restarted"


def test_agents_that_know_no_notice_are_not_waited_for_and_run_on_meanwhile() -> None:
    story = heeding("a", deaf=("b",))
    story.drain("b")
    assert story.told("b").code == "round_formed"
    assert story.told("b").notice is None
    assert story.reason.nodes == ("a",)
    story.report("a", "ready_to_stop")
    assert (story.ended, story.told("b").kind) == ("drained", "exit")
    older = heeding(deaf=("a", "b"))
    older.restart()
    assert older.ended == "restarted", "nobody would heed it"


def test_a_second_person_in_a_hurry_ends_the_notice() -> None:
    for act in (joins, lambda story: story.drain("b"), lambda story: story.restart()):
        story = heeding("a", "b")
        act(story)
        story.restart()
        assert story.ended in ("joined", "drained", "restarted")
    story = heeding("a", "b")
    story.cancel()
    with pytest.raises(Refused, match="about to be cancelled"):
        story.restart()
    story.cancel()
    assert story.group.state is GroupState.CANCELLED


def test_a_cancellation_overrides_what_was_announced_but_gives_no_new_time() -> None:
    story = heeding("a", "b")
    joins(story)
    story.wait(10.0)
    story.cancel()
    assert story.told("a").notice is not None
    assert story.told("a").notice.left_s == pytest.approx(20.0)  # type: ignore[union-attr]
    story.wait(20.0)
    assert story.group.state is GroupState.CANCELLED


def test_a_drained_node_whose_agent_gets_sigterm_cannot_wait() -> None:
    story = heeding("a", "b")
    story.drain("b")
    story.leaving("b")
    assert (story.ended, story.told("a").kind, story.told("b").kind) == ("drained", "stop", "exit")


@pytest.mark.parametrize("readmitted", [False, True])
def test_a_failure_in_the_notice_of_a_drain_costs_nothing_even_if_the_drained_node_only_stops(
    readmitted: bool,
) -> None:
    """Its agent may have stopped by itself, or be let in again before it has exited."""
    story = heeding("a", "b", no_restart_on=(1,))
    story.drain("b")
    story.failed("a")
    story.join("a")
    if readmitted:
        story.undrain("b")
    story.join("b")
    assert (story.group.restarts, story.group.state) == (0, "starting")
    assert story.said("round_judged") == [
        bare(events.round_judged(1, ends.node_leaving("b", ends.departed(ReasonCode.NODE_DRAINED))))
    ]


def test_a_node_that_is_readmitted_in_time_stays() -> None:
    story = heeding("a", "b")
    story.drain("b")
    story.undrain("b")
    assert len(story.said("node_undrained")) == 1
    assert (story.told("b").kind, story.told("b").code) == ("start", "notice")
    story.report("a", "ready_to_stop")
    story.report("b", "ready_to_stop")
    assert (story.told("b").kind, bare(story.told("b").reason)) == (
        "stop",
        ends.node_leaving("b", ends.departed(ReasonCode.NODE_DRAINED)),
    )
    story.joins("a", "b")
    assert story.order == ["a", "b"]


def test_a_readmitted_node_that_was_told_to_exit_does_so() -> None:
    story = heeding("a", "b")
    story.succeeded("b")
    story.restart()
    story.drain("b")
    assert (story.told("b").kind, story.told("b").code) == ("exit", "drained")
    story.undrain("b")
    assert (story.told("b").kind, story.told("b").code) == ("exit", "drained")


def test_a_node_that_has_succeeded_cuts_no_notice_short_by_leaving() -> None:
    story = heeding("a", "b")
    story.succeeded("b")
    story.leaving("b")
    story.restart()
    story.leaving("b")  # it came again: the reply was lost
    assert story.ended is None
    story.leave("b")
    assert story.ended is None


@pytest.mark.parametrize("must_meet", [False, True])
def test_a_job_that_ends_while_it_is_about_to_be_cancelled_was_cancelled(must_meet: bool) -> None:
    """Its workers may have saved and exited with 0; and agents that are started again begin no new job."""
    story = heeding("a", "b")
    story.do(Cancel(by="ada"))
    story.succeeded("b")
    story.report("a", "succeeded", met=0, must_meet=must_meet)  # the master: none has met another
    assert story.group.state is GroupState.CANCELLED
    story.wait(1)
    told = story.join("c", spec={})
    assert told.kind == "exit"
    assert told.reason == waiting.came_late(group_id="g", outcome="cancelled", by="ada")


def test_ready_to_stop_counts_for_its_round_only_and_not_without_a_notice() -> None:
    story = heeding("a", "b")
    story.report("a", "ready_to_stop")
    story.report("b", "ready_to_stop")
    assert story.ended is None
    story.restart()
    assert story.reason.nodes == ("a", "b")
    story.report("a", "ready_to_stop")
    story.report("b", "ready_to_stop")
    story.report("a", "ready_to_stop")  # it came again, late
    story.joins("a", "b")
    story.started("a", "b")
    story.restart()
    assert story.reason.nodes == ("a", "b")


def test_no_hang_is_found_while_workers_wait_for_the_end() -> None:
    story = heeding("a", "b", hang_timeout_s=5.0)
    story.restart()
    stall = Stall(hang=behind(0, "a", waiting=(1,)), since=story.now)
    story.do(NoteStall(1, stall))
    story.wait(29.0)
    assert story.ended is None


@pytest.mark.parametrize(("state", "until"), [(GroupState.WAITING, 30.0), (GroupState.RUNNING, 0.0)])
def test_an_impossible_notice_is_noticed(state: GroupState, until: float) -> None:
    story = running("a", notice_s=30.0)

    def with_notice(state: GroupState, until: float) -> Group:
        notice = Notice(
            cause=Cause(kind=EndKind.RESTARTED, reason=ends.restart_requested()), at=0.0, until=until
        )
        return replace(story.group, state=state, round=replace(story.group.round, notice=notice))

    assert list(violations(with_notice(GroupState.RUNNING, 30.0))) == []
    assert any("is about to end" in wrong for wrong in violations(with_notice(state, until)))
