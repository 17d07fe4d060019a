"""What an end costs, whose fault it was, and masters that are not reached (rules 5 and 6)."""

from dataclasses import replace

import pytest

from hetrdzv.core.commands import Renew
from hetrdzv.core.rounds.transitions import GONE_NODES_KEPT
from hetrdzv.protocol.errors import NotFound, StaleIncarnation, StaleRound
from hetrdzv.protocol.failure import Ended
from hetrdzv.protocol.reasons import ends, events, waiting
from hetrdzv.protocol.reasons.reason import Reason
from tests.core.driver import Story, bare, running
from tests.core.explained import failed, left_out

FAILED = failed("a")


def joined(node_id: str) -> Reason:
    return ends.nodes_joined([node_id])


def test_failure_costs_one_restart() -> None:
    story = running("a", "b", max_restarts=1)
    story.failed("a")
    story.failed("b")
    assert story.group.restarts == 0  # not judged yet
    story.joins("a", "b")
    assert story.group.restarts == 1
    assert story.said("restart_spent") == [events.restart_spent(FAILED, 1, 1)]


def test_budget_spent_fails_the_group_for_everybody_alike() -> None:
    story = running("a", "b", "c", max_restarts=0)
    story.now += 3
    story.failed("c", exit_code=9, rank=2)
    story.failed("b", age_s=0.5, exit_code=7, rank=1, local_rank=0)
    story.joins("a", "b")
    assert story.group.state == "waiting"
    story.join("c")
    assert story.group.state == "failed"
    of_b = ends.without_restart(failed("b", 1, 7), "used_up", 0)
    for node_id in ("a", "b", "c"):
        told = story.told(node_id)
        assert told.exit_code == 7
        assert told.root_cause is not None
        assert told.root_cause.node_id == "b"
        assert told.root_cause.failure is not None
        assert told.root_cause.failure.message == "Traceback: boom"
        assert told.reason == of_b
    assert story.said("group_failed") == [events.group_failed(of_b)]


def test_failure_by_signal() -> None:
    story = running("a", max_restarts=0)
    story.failed("a", exit_code=None, signal="SIGKILL")
    story.join("a")
    assert story.told("a").reason.data["signal"] == "SIGKILL"
    assert story.told("a").exit_code == 1


def test_workers_that_could_not_be_started() -> None:
    story = running("a", max_restarts=0)
    story.report("a", "failed", message="no such file: train.py")
    story.join("a")
    assert (story.reason.code, story.reason.quote) == ("start_failed", "no such file: train.py")


def test_root_cause_is_the_earliest_failure_whatever_the_order_of_the_reports() -> None:
    for first, second in [(("a", 0.1), ("b", 2.0)), (("b", 2.0), ("a", 0.1))]:
        story = running("a", "b", max_restarts=0)
        story.wait(10)
        for node_id, age_s in (first, second):
            story.failed(node_id, age_s=age_s)
        story.joins("a", "b")
        assert story.root_cause.node_id == "b"


def test_failure_reported_after_the_acknowledgement_counts() -> None:
    story = running("a", "b", max_restarts=0)
    story.wait(10)
    story.failed("a")
    story.join("b")
    story.failed("b", age_s=1.0)
    story.join("a")
    assert story.root_cause.node_id == "b"


def test_doubled_failure_counts_once_and_keeps_its_time() -> None:
    story = running("a", "b")
    story.failed("a")
    at = story.node("a").failure
    story.now += 1
    story.failed("a")
    assert story.node("a").failure == at
    assert len(story.said("worker_failed")) == 1
    story.joins("a", "b")
    with pytest.raises(StaleRound):
        story.report("a", "failed", round=1)
    assert story.group.restarts == 1


@pytest.mark.parametrize("how", ["lose", "leave", "leaving", "drain", "replace"])
def test_loss_behind_a_failure_costs_nothing(how: str) -> None:
    story = running("a", "b", "c", min_nodes=2)
    story.failed("a")
    story.joins("a", "c")
    assert story.group.restarts == 0
    match how:
        case "lose":
            story.lose("b")
        case "leave":
            story.leave("b")
        case "leaving":
            story.leaving("b")
            story.leave("b")
        case "drain":
            story.drain("b")
            story.leave("b")
        case "replace":
            story.cut("b")
            story.join("b", inc="b-2")
    assert story.group.restarts == 0
    assert story.group.state == "starting"
    assert len(story.said("round_judged")) == 1


def test_loss_counts_although_the_node_returned_before_the_judgement() -> None:
    story = running("a", "b", "c")
    story.failed("a")
    story.lose("b")
    story.join("b", after=1)
    story.joins("a", "c")
    assert story.group.restarts == 0
    assert story.order == ["a", "b", "c"]


def test_judgement_waits_for_a_suspect() -> None:
    story = running("a", "b", min_nodes=1)
    story.failed("a")
    story.join("b")
    story.cut("b")
    story.join("a")
    assert story.group.state == "waiting"
    story.wait(1.0)
    assert story.group.restarts == 0
    story.pass_by(0.001)
    assert story.group.restarts == 0
    assert story.ended is None
    assert story.order == ["a"]


def test_suspect_that_is_heard_lets_the_failure_count() -> None:
    story = running("a", "b")
    story.failed("a")
    story.join("b")
    story.cut("b")
    story.join("a")
    story.now += 0.5
    story.renew("b")
    assert story.group.restarts == 1


def test_succeeded_member_that_goes_is_not_behind_a_failure() -> None:
    for how in ("lose", "leave", "drain"):
        story = running("a", "b", "c", min_nodes=2)
        story.succeeded("b")
        story.failed("c")
        getattr(story, how)("b")
        if how == "drain":
            story.leave("b")
        story.joins("a", "c")
        assert story.group.restarts == 1, how


@pytest.mark.parametrize("how", ["lose", "leave", "leaving", "drain", "restart", "joiner", "withdraw"])
def test_only_failures_cost(how: str) -> None:
    story = running("a", "b", min_nodes=1, max_restarts=0)
    match how:
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
        case "joiner":
            story.join("c")
            story.wait(1)
        case "withdraw":
            story.join("b")
    assert story.ended is not None
    story.failed("a")  # its workers fall because their peers were stopped
    story.join("a")
    if story.node("b").leaving is not None:
        story.leave("b")
    elif story.group.state == "waiting" and not story.node("b").gone:
        story.join("b")
    assert story.group.state == "starting"
    assert story.group.restarts == 0


def test_unreachable_master_is_replaced_without_cost() -> None:
    story = Story(min_nodes=3, last_call_s=0)
    story.joins("a", "b", "c")
    story.unreachable("c")
    cut_off = ends.master_unreachable("c", "a", "connection refused")
    assert bare(story.told("a").reason) == cut_off
    story.joins("a", "b", "c")
    assert story.order == ["b", "a", "c"]
    assert story.group.restarts == 0
    story.started("a", "b", "c")
    story.failed("a")
    story.joins("a", "b", "c")
    assert story.order == ["b", "a", "c"]  # c reaches a no better than before


def test_a_late_report_on_a_master_says_nothing_of_its_next_agent() -> None:
    story = Story(min_nodes=3, last_call_s=0)
    story.joins("a", "b", "c")
    story.unreachable("b")
    story.unreachable("c")
    assert story.group.unreachable == {("b", "a"), ("c", "a")}
    story.leave("a")
    story.join("a", inc="a-2")
    with pytest.raises(StaleRound):
        story.unreachable("c")  # the same again
    assert story.group.unreachable == set()
    story.joins("b", "c")
    assert story.order[0] == "a"


def test_all_masters_unreachable_fails_with_the_matrix() -> None:
    story = Story(min_nodes=2, last_call_s=0)
    story.joins("a", "b")
    story.unreachable("b")
    story.joins("a", "b")
    story.unreachable("a")
    story.joins("a", "b")
    assert story.group.state == "failed"
    assert story.reason == ends.no_node_can_be_master({"a": ["b"], "b": ["a"]})
    assert story.group.restarts == 0


def test_a_group_behind_firewalls_gives_up_after_three_masters() -> None:
    story = Story(min_nodes=64, last_call_s=0.0, max_nodes=64)
    nodes = [f"n{number}" for number in range(64)]
    story.joins(*nodes)
    for rounds in (1, 2, 3):
        assert (story.group.state, story.group.last_round) == ("starting", rounds)
        story.unreachable(story.order[-1])
        story.joins(*nodes)
    assert (story.group.state, story.group.last_round) == ("failed", 3)
    assert len(story.why) < 600


def test_one_node_that_reaches_nobody_is_left_out_where_the_bounds_allow() -> None:
    story = Story(min_nodes=2, max_nodes=3, last_call_s=5.0)
    story.joins("a", "b", "c")
    story.started("b")
    story.unreachable("c")  # a
    story.joins("a", "b", "c")
    story.started("a")
    story.unreachable("c")  # b
    story.joins("a", "b", "c")
    assert story.order == ["c", "a", "b"]
    story.unreachable("a")
    story.unreachable("b")
    story.joins("a", "b", "c")
    assert story.order == ["a", "b"]
    assert left_out(story, "c") == waiting.out_of_reach("c", "a", "10.0.0.1")
    story.started("a", "b")
    story.wait(30.0)
    assert (story.group.state, story.ended) == ("running", None)
    assert story.group.restarts == 0
    story.leave("c")
    story.join("c", inc="c-2", after=0)  # mended, perhaps
    assert story.ended == "joined"
    story.joins("a", "b")
    assert story.order[0] == "a"
    assert set(story.order) == {"a", "b", "c"}


def alone(**spec: object) -> Story:
    """Round of a and b; c is a spare, since it reaches nobody and nobody reaches it."""
    story = Story(**{"min_nodes": 2, "max_nodes": 4, "last_call_s": 1.0, "stop_timeout_s": 2.0} | spec)
    story.joins("a", "b", "c")
    story.wait(1.0)
    for reached, speakers in (("b", "c"), ("a", "c"), ("", "ab")):
        story.started(*reached)
        for name in speakers:
            story.unreachable(name)
        story.joins("a", "b", "c")
    assert story.order == ["a", "b"]
    story.started("a", "b")
    return story


def test_joiners_without_a_way_to_the_members_end_no_round_that_could_not_grow() -> None:
    story = Story(min_nodes=2, max_nodes=4, last_call_s=1.0, stop_timeout_s=2.0)
    story.joins("a", "b", "c", "d")
    ways = {("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")}
    while len(story.order) == 4:
        master = story.order[0]
        story.started(*(name for name in story.order[1:] if (name, master) in ways))
        for name in story.order[1:]:
            if (name, master) not in ways:
                story.unreachable(name)
        story.joins("a", "b", "c", "d")
    assert story.order == ["a", "b"]
    story.started("a", "b")
    story.failed("a")
    story.wait(12.0)
    assert story.order == ["c", "d"]  # a and b did not stop in time
    story.started("c", "d")
    story.joins("a", "b")
    story.wait(30.0)
    assert (story.group.state, story.ended) == ("running", None)


def test_nodes_that_no_master_serves_wait_until_the_join_timeout() -> None:
    story = alone(join_timeout_s=20.0)
    story.leave("b")
    story.join("a")
    story.wait(20.0)
    assert story.group.state == "failed"
    assert (story.reason.code, story.reason.nodes) == ("no_master", ("a", "c"))


def test_store_that_closed_at_a_stop_is_not_unreachable() -> None:
    story = Story(min_nodes=2, last_call_s=0)
    story.joins("a", "b")
    story.failed("a")
    with pytest.raises(StaleRound):
        story.unreachable("b")
    assert story.group.unreachable == frozenset()


def test_new_agent_is_tried_as_master_again() -> None:
    story = Story(min_nodes=2, last_call_s=0)
    story.joins("a", "b")
    story.unreachable("b")
    story.leave("a")
    story.join("b")
    story.join("a", inc="a-2")
    assert story.order == ["a", "b"]


def test_speakers_that_are_not_known() -> None:
    story = running("a")
    with pytest.raises(NotFound, match="'x'"):
        story.do(Renew("x", "x-1"))
    with pytest.raises(StaleIncarnation, match="--node-id"):
        story.report("a", "started", incarnation="other")
    with pytest.raises(NotFound, match="its nodes: a"):
        story.drain("x")


def test_who_is_forgotten_is_no_longer_out_of_reach() -> None:
    """A job whose nodes have a new name each time keeps no list of all that ever failed."""
    story = Story(min_nodes=2, max_nodes=2, last_call_s=0)
    story.join("a")
    for number in range(GONE_NODES_KEPT + 10):
        name = f"x{number}"
        story.join(name)
        story.unreachable(story.order[1])
        story.joins("a", name)
        story.leave(name)
        story.join("a")
    assert len(story.group.nodes) <= GONE_NODES_KEPT + 3
    assert {node_id for pair in story.group.unreachable for node_id in pair} <= story.group.nodes.keys()


def test_who_had_ended_well_before_the_failure_is_named_with_it() -> None:
    """Its node succeeded, or tells of it once the round is over; whoever ended later explains nothing."""
    of_c = Ended(node_id="c", rank=2)
    story = running("a", "b", "c", max_restarts=0)
    story.succeeded("c")
    story.failed("a")
    story.joins("a", "b", "c")
    assert _before(story) == of_c
    for reported, told in ((1.0, of_c), (0.1, None)):
        story = running("a", "b", "c", max_restarts=0)
        story.failed("a", age_s=0.5)
        for _ in range(2):  # the answer to the first was lost
            story.report("c", "ended", ended=replace(of_c, before_s=reported))
        story.joins("a", "b", "c")
        assert _before(story) == told


def _before(story: Story) -> Ended | None:
    assert story.round.end is not None
    return story.round.end.before
