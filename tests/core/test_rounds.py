"""When a round forms, who is told what, and how it ends well (rules 1, 2, 3, 7, 9)."""

import pytest

from hetrdzv.core.commands import Renew, Tick
from hetrdzv.core.why import why_ended
from hetrdzv.protocol.errors import StaleRound
from hetrdzv.protocol.reasons import ends, events, waiting
from hetrdzv.protocol.reasons.reason import ReasonCode
from tests.core.driver import LEASE_S, Story, bare, running
from tests.core.explained import ready, waits_for
from tests.core.leases import step


def test_first_round_waits_for_the_last_call() -> None:
    story = Story(min_nodes=2)
    told = story.join("a", 8)
    assert (told.kind, told.code) == ("wait", "waiting")
    assert told.reason == waiting.too_few(ready("a", 2), 1, until=story.now + 600)
    assert story.join("b", 4).reason == waiting.last_call(ready("ab", 2), story.now + 10)
    story.wait(9.99)
    assert story.group.state == "waiting"
    story.wait(0.01)
    assert story.group.state == "starting"
    a, b = story.told("a"), story.told("b")
    assert a.kind == b.kind == "start"
    assert a.start is not None
    assert b.start is not None
    assert (a.start.group_rank, a.start.rank_offset) == (0, 0)
    assert (b.start.group_rank, b.start.rank_offset) == (1, 8)
    assert a.start.world_size == b.start.world_size == 12
    assert a.start.master == b.start.master
    assert a.start.master.node_id == "a"


def test_full_group_starts_at_once() -> None:
    story = Story(min_nodes=1, max_nodes=2)
    story.join("a")
    assert waits_for(story) == waiting.last_call(ready=ready("a", 1), until=story.now + 10)
    assert story.join("b").kind == "start"


def test_unbounded_job_says_so() -> None:
    story = Story(last_call_s=0)
    story.join("a")
    assert story.said("started_unbounded") == [events.started_unbounded(1, restarts=True)]
    bounded = Story(last_call_s=0, max_nodes=1)
    bounded.join("a")
    assert bounded.said("started_unbounded") == []


def test_round_waits_for_a_suspect() -> None:
    story = Story(min_nodes=1)
    story.joins("a", "b")
    story.wait(9.5)
    story.cut("b")
    story.wait(0.5)
    assert story.group.state == "waiting"
    what = waits_for(story)
    assert what.code == "reconnecting"
    assert what.nodes == ("b",)
    assert story.deadline_in == pytest.approx(0.5)
    story.wait(0.5)
    assert story.group.state == "waiting"
    story.pass_by(0.01)
    assert story.order == ["a"]


def test_join_timeout() -> None:
    story = Story(min_nodes=3, join_timeout_s=60)
    story.joins("a", "b")
    story.wait(59.9)
    assert story.group.state == "waiting"
    story.wait(0.1)
    told = story.told("a")
    assert (told.kind, told.outcome, told.exit_code) == ("exit", "failed", 1)
    assert told.reason == ends.join_timeout(60, waiting.too_few(ready(["a", "b"], 3), 1))
    assert told.root_cause is not None
    assert told.root_cause.reason.code == "join_timeout"


def test_join_timeout_counts_only_with_a_node() -> None:
    story = Story(min_nodes=2, join_timeout_s=60)
    story.put(min_nodes=2, join_timeout_s=60)
    story.pass_by(1000)
    assert story.group.state == "waiting"
    assert story.deadline_in is None
    story.join("a")
    story.wait(59)
    story.leave("a")
    story.join("b")
    story.wait(59)
    assert story.group.state == "waiting"


def test_hung_node_does_not_hang_the_group() -> None:
    story = running("a", join_timeout_s=60, stop_timeout_s=10)
    story.restart()
    story.renew("a")
    story.wait(15)  # a is heard, but its workers never end
    assert story.round.end is not None
    assert story.round.end.judged
    assert story.told("a").kind == "stop"
    story.wait(60)
    assert story.group.state == "failed"


def test_all_members_start_and_succeed() -> None:
    story = Story(min_nodes=2, last_call_s=0)
    story.joins("a", "b")
    story.started("a")
    assert story.group.state == "starting"
    assert story.reason == waiting.round_starting(1, "b")
    story.started("b")
    assert story.group.state == "running"
    assert story.reason == waiting.round_running(1, 2, 2)
    story.succeeded("a")
    assert story.told("a").kind == "start"  # the outcome is the exit barrier
    assert story.group.state == "running"
    story.succeeded("b")
    assert story.group.state == "succeeded"
    for node_id in ("a", "b"):
        told = story.told(node_id)
        assert (told.kind, told.outcome, told.exit_code) == ("exit", "succeeded", 0)


@pytest.mark.parametrize("end", ["fail", "lose", "leave", "leaving", "drain", "restart", "withdraw"])
def test_any_end_stops_all_members_at_once(end: str) -> None:
    story = running("a", "b", "c")
    match end:
        case "fail":
            story.failed("b")
        case "lose":
            story.lose("b")
        case "leave":
            story.leave("b")
        case "leaving":
            story.leaving("b")
        case "drain":
            story.drain("b")
        case "restart":
            story.restart()
        case "withdraw":
            story.join("b")
    for node_id in ("a", "c"):
        told = story.told(node_id)
        assert (told.kind, told.code, told.round) == ("stop", "round_ended", 1)
        assert story.round.end is not None
        assert told.reason == why_ended(1, story.round.end)
    assert len(story.said("round_ended")) == 1


def test_silent_node_lives_at_its_lease_and_not_past_it() -> None:
    story = running("a", "b")
    story.now += LEASE_S
    story.renew("a")
    story.tick()
    assert story.ended is None
    story.pass_by(0.001)
    assert story.ended == "lost"
    assert bare(story.told("a").reason) == ends.node_lost("b", ends.lease_expired(5.0))


def test_cut_node_has_a_grace() -> None:
    story = running("a", "b")
    story.cut("b")
    story.pass_by(1.0)
    assert story.ended is None
    story.pass_by(0.001)
    assert story.ended == "lost"
    assert bare(story.told("a").reason) == ends.node_lost("b", ends.departed(ReasonCode.CONNECTION_LOST))


def test_next_round_waits_for_every_stop() -> None:
    story = running("a", "b", "c")
    story.failed("b")
    assert story.join("b").kind == "wait"
    assert waits_for(story) == waiting.stopping("ac"), "they are not told yet"
    story.renew("a", "c")
    assert waits_for(story) == waiting.stopping("ac", until=story.now + 35)
    story.join("a")
    assert story.group.state == "waiting"
    story.join("c")
    assert story.group.state == "starting"
    assert (story.round.number, story.round.restart_count) == (2, 1)


def test_overdue_member_is_not_waited_for() -> None:
    story = running("a", "b", min_nodes=1, stop_timeout_s=10)
    story.failed("a")
    story.renew("b")  # which tells it to stop
    story.join("a")
    story.wait(14.9)
    assert story.ended == "failed"
    assert story.group.state == "waiting"
    story.wait(0.1)
    assert story.order == ["a"]
    assert story.told("b").kind == "stop"
    assert story.told("b").code == "round_over"
    assert story.join("b").kind == "wait"


def test_overdue_suspect_is_not_waited_for() -> None:
    story = running("a", "b", min_nodes=1, stop_timeout_s=0)
    story.failed("a")
    story.renew("b")
    story.join("a")
    story.wait(4.5)
    story.cut("b")
    story.wait(0.5)
    assert story.order == ["a"]


def test_member_that_was_not_told_to_stop_is_waited_for_until_its_lease_ends() -> None:
    story = running("a", "b", min_nodes=1, stop_timeout_s=2, lease_s=40, max_restarts=0)
    heard_at = story.node("b").heard_at
    story.failed("a")
    story.join("a")
    story.wait(heard_at + 40 - story.now, silent=("b",))
    assert story.group.state == "waiting", "b may run workers for as long as its lease"
    what = waits_for(story)
    assert what.code == "stopping"
    assert (what.nodes, what.until) == (("b",), None), "nobody knows when it will be told"
    story.pass_by(0.01)
    assert story.order == ["a"]
    assert story.group.restarts == 0, "the loss of b was the cause"


def test_member_that_is_told_to_stop_late_has_its_whole_stop_timeout() -> None:
    story = running("a", "b", min_nodes=1, stop_timeout_s=2, lease_s=40)
    story.failed("a")
    story.join("a")
    story.wait(30, silent=("b",))
    story.renew("b")
    assert story.deadline_in == pytest.approx(7)
    story.wait(6.9)
    assert story.group.state == "waiting"
    what = waits_for(story)
    assert what.code == "stopping"
    assert (what.nodes, what.until) == (("b",), pytest.approx(story.now, abs=0.2))
    story.wait(0.1)
    assert story.order == ["a"]


def test_who_was_told_of_one_end_was_not_told_of_the_next() -> None:
    story = running("a", "b", min_nodes=1, stop_timeout_s=2, lease_s=40)
    story.failed("a")
    story.renew("b")
    story.joins("a", "b")
    story.started("a", "b")
    story.failed("a")
    story.join("a")
    story.wait(8, silent=("b",))
    assert story.group.state == "waiting"
    assert story.node("b").stop_acked_at is None


def test_who_was_sent_the_end_of_its_round_may_not_have_got_it() -> None:
    story = running("a", "b", min_nodes=1, stop_timeout_s=2, lease_s=40)
    story.failed("a")
    story.do(Renew("b", "b-1"))  # the answer is lost, and so is all that follows
    story.join("a")
    story.wait(39, silent=("b",))
    assert story.group.state == "waiting"
    story.wait(2, silent=("b",))
    assert story.order == ["a"]


def test_loss_waits_for_a_replacement() -> None:
    story = running("a", "b", min_nodes=1, replace_wait_s=20)
    story.leave("b")
    story.join("a")
    what = waits_for(story)
    assert what == waiting.last_call(ready("a", 1), what.until, replacement=True)
    assert what.until == pytest.approx(story.now + 20)
    story.wait(19.9)
    assert story.group.state == "waiting"
    story.wait(0.1)
    assert story.order == ["a"]


def test_replacement_ends_the_wait() -> None:
    story = running("a", "b", min_nodes=1, replace_wait_s=20)
    story.leave("a")
    story.join("b")
    story.wait(3)
    story.join("z")
    assert story.order == ["z", "b"]


def test_last_call_after_having_been_below_the_minimum() -> None:
    story = Story(min_nodes=2, last_call_s=7)
    story.joins("a", "b")
    story.wait(7)
    story.started("a", "b")
    story.leave("b")
    story.join("a")
    few = waiting.too_few(ready("a", 2), 1, until=story.now + 600)
    assert waits_for(story) == waiting.in_place_of(few, ["b"])
    story.join("c")
    what = waits_for(story)
    assert what == waiting.last_call(ready("ac", 2), what.until)
    assert what.until == pytest.approx(story.now + 7)
    story.wait(7)
    assert story.order == ["a", "c"]


def test_succeeded_node_that_vanishes_still_counts() -> None:
    story = running("a", "b")
    story.succeeded("b")
    story.lose("b")
    assert story.ended is None
    story.succeeded("a")
    assert story.group.state == "succeeded"


def test_succeeded_node_that_leaves_or_is_drained_still_counts() -> None:
    story = running("a", "b", "c")
    story.succeeded("b", "c")
    story.leaving("b")
    story.drain("c")
    assert story.told("c").exit_code == 4
    story.leave("b")
    story.leave("c")
    assert story.ended is None
    story.succeeded("a")
    assert story.group.state == "succeeded"


def test_succeeded_node_that_stops_by_itself_still_counts() -> None:
    story = running("a", "b")
    story.succeeded("b")
    story.join("b")
    assert story.ended is None
    story.succeeded("a")
    assert story.group.state == "succeeded"


def test_succeeded_master_that_vanishes_while_others_run_ends_the_round() -> None:
    story = running("a", "b")
    story.succeeded("a")
    story.lose("a")
    assert story.ended == "lost"


def test_succeeded_master_may_go_when_all_have_succeeded() -> None:
    story = running("a", "b", "c")
    story.succeeded("a", "b")
    story.lose("b")
    story.succeeded("c")
    assert story.group.state == "succeeded"


def test_failure_after_a_success_makes_all_run_again() -> None:
    story = running("a", "b")
    story.succeeded("b")
    story.failed("a")
    assert story.told("b").kind == "stop"
    story.joins("a", "b")
    assert story.order == ["a", "b"]
    assert story.group.restarts == 1


def test_lost_and_succeeded_node_that_returns_waits_for_the_outcome() -> None:
    story = running("a", "b")
    story.succeeded("b")
    story.lose("b")
    assert story.told("b").kind == "stop"
    told = story.join("b", after=1)
    assert told.kind == "wait"
    assert told.reason == waiting.left_out(1, "b", waiting.spare(ReasonCode.OTHERS_SUCCEEDED, "b"))
    story.wait(30)
    assert story.ended is None
    story.succeeded("a")
    assert story.told("b").exit_code == 0


def test_cancel() -> None:
    story = running("a", "b")
    story.cancel()
    assert [story.told(n).exit_code for n in ("a", "b")] == [3, 3]
    assert story.reason == ends.cancelled()
    before = story.group
    story.cancel()
    assert story.group is before
    with pytest.raises(StaleRound):
        story.failed("a")


def test_reports_of_an_older_round_change_nothing() -> None:
    story = running("a", "b")
    story.restart()
    story.joins("a", "b")
    for kind in ("started", "succeeded", "failed", "master_unreachable"):
        with pytest.raises(StaleRound, match="'a'"):
            story.report("a", kind, round=1)
    assert story.ended is None


@pytest.mark.parametrize("kind", ["started", "succeeded", "master_unreachable"])
def test_reports_of_an_ended_round_change_nothing(kind: str) -> None:
    story = running("a", "b")
    story.restart()
    with pytest.raises(StaleRound, match="is over"):
        story.report("a", kind)


def test_step_that_changes_nothing_returns_the_same_group() -> None:
    story = running("a", "b")
    assert step(story.group, Tick(), story.now).group is story.group
    waiting = Story(min_nodes=2)
    waiting.join("a")
    assert step(waiting.group, Tick(), waiting.now).group is waiting.group
