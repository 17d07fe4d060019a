"""A stall in the state machine: when it is told, and when it ends its round."""

from dataclasses import replace
from typing import Any

import pytest

from hetrdzv.core.commands import RecordStall
from hetrdzv.core.model import Stall
from hetrdzv.protocol.errors import StaleRound
from hetrdzv.protocol.reasons import ends, events, hangs
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.states import StallKind
from hetrdzv.storage.records import make_group_changes
from tests.core.driver import Story, bare
from tests.core.script import play
from tests.support.hangs import behind, of_nobody
from tests.support.restored import restore, stored_records


def job(**spec: Any) -> Story:
    """Round 1 runs on a and b, with two workers each."""
    story = Story(min_nodes=2, max_nodes=2, **spec)
    story.join("a", 2)
    story.join("b", 2)
    story.started("a", "b")
    return story


CASES = {
    "a stall is told once it has lasted": """
        {}; stalled; why = round_running; wait 14; said stalled = 0; wait 1; said stalled = 1; why = behind b
        wait 25; said stalled = 1; goes_on; said progress_resumed = 1; why = round_running""",
    "seen again a little later it is the same": """
        {} lease_s=100; stalled 60; later 7; unchanged: tick; since = 67; unchanged: stalled 66.5""",
    "a node that is lost meanwhile is the cause": """
        {} hang_timeout_s=5 max_restarts=0; stalled; wait 4; cut a; later 0.999; tick; state = running
        pass_by 0.5; ended = lost; restarts = 0""",
    "a suspect that is heard again is no excuse": """
        {} hang_timeout_s=5; stalled; wait 4.5; cut a; later 0.7; tick; ended = None; renew a; tick; ended = failed""",
    "a node lost while it stops is the cause of the hang": """
        {} hang_timeout_s=5 max_restarts=0; stalled; wait 5; ended = failed; join a; lose b; ended = lost
        state = waiting""",
    "a job that is over does not hang": """
        {} lease_s=1000 hang_timeout_s=30; succeeded a; stalled; later 31; succeeded b; state = succeeded""",
}


@pytest.mark.parametrize("case", CASES)
def test_stalls(case: str) -> None:
    play(CASES[case].replace("{}", "running a b max_nodes=2"))


def test_the_stack_of_a_worker_is_kept_while_it_is_waited_for_since_then_or_longer() -> None:
    story = job(hang_timeout_s=6.0, max_restarts=0)
    story.stalled(for_s=1, stack="in load")
    story.stalled(for_s=9)  # more is known now: the round ends at once, and nobody can take the stack again
    story.joins("a", "b")
    cause = story.root_cause
    assert cause.failure is not None
    assert cause.failure.message == "in load"


def test_more_who_are_behind_are_no_news_but_another_is() -> None:
    story = job()
    story.stalled(for_s=60)
    story.stalled(for_s=60, hang=replace(behind(2, "b"), ranks=(2, 3)))
    assert len(story.said("stalled")) == 1
    assert story.reason.ranks == ((2, 3),)
    story.stalled(for_s=60, hang=behind(0, "a", waiting=[1]))
    assert story.said("stalled")[1:] == [
        bare(hangs.stall_reported(1, replace(behind(0, "a", waiting=[1]), for_s=60.0)))
    ]


def test_a_hang_ends_the_round_as_a_failure_of_the_culprit() -> None:
    story = job(hang_timeout_s=30, max_restarts=1)
    story.stalled(stack="File train.py, line 7, in <module>")
    story.wait(20)
    assert (story.reason.since, story.reason.until) == (story.now - 20, story.now + 10)
    story.wait(9)
    assert story.group.state == "running"
    story.wait(1)
    hang = ends.workers_hang(replace(behind(2, "b"), for_s=30.0))
    assert story.said("round_ended") == [
        bare(ReasonCode.ROUND_ENDED.reason(round=1, cause=hang, kind="failed"))
    ]
    assert story.told("a").kind == story.told("b").kind == "stop"
    story.failed("a", rank=0, age_s=100, exit_code=7)  # what stopped workers report replaces nothing
    story.failed("b", rank=2, exit_code=None, signal="SIGTERM")
    story.joins("a", "b")
    assert story.said("restart_spent") == [events.restart_spent(hang, 1, 1)]
    assert (story.round.number, story.round.restarted_by) == (2, hang)

    story.started("a", "b")
    stall = Stall(hang=behind(3, "b", stopped=True), since=story.now, stack="line 9")
    story.do(RecordStall(2, stall))
    story.wait(30)
    story.joins("a", "b")
    cause = story.root_cause
    assert cause.failure is not None
    assert (cause.reason.code, cause.node_id, cause.round) == ("no_answer", "b", 2)
    assert (cause.failure.rank, cause.failure.local_rank, cause.failure.message) == (3, 1, "line 9")
    assert story.told("a").root_cause == cause
    assert story.told("a").exit_code == 1
    hang = ends.workers_hang(replace(stall.hang, for_s=30.0))
    assert cause.reason == ends.failure_without_restart(hang, "used_up", 1)


@pytest.mark.parametrize("kind", [StallKind.NOTHING_COMPLETES, StallKind.MISMATCH])
def test_a_hang_of_nobody_in_particular_blames_no_node(kind: StallKind) -> None:
    hang = of_nobody(*range(4), kind=kind)
    story = job(hang_timeout_s=5, max_restarts=0)
    story.stalled(for_s=4, hang=hang)
    assert story.said("stalled") == []
    story.wait(1)
    assert story.said("stalled") == [bare(hangs.stall_reported(1, replace(hang, for_s=5.0)))]
    story.joins("a", "b")
    cause = story.root_cause
    assert (cause.reason.code, cause.node_id, cause.failure) == (hang.kind, None, None)
    hang = replace(hang, for_s=5.0)
    assert cause.reason == ends.failure_without_restart(ends.workers_hang(hang), "used_up", 0)


def test_a_stall_of_another_round_or_of_none_changes_nothing() -> None:
    story = job()
    before = story.group
    story.do(RecordStall(7, Stall(hang=behind(0, "a", waiting=(1,)), since=0.0)))
    assert story.group is before
    story.restart()
    before = story.group
    story.do(RecordStall(1, Stall(hang=behind(0, "a", waiting=(1,)), since=0.0)))
    assert story.group is before
    with pytest.raises(StaleRound):
        story.succeeded("a")


def test_a_stall_is_not_stored() -> None:
    """The table that it comes from is empty after a restart of the server."""
    story = job()
    bare = story.group
    story.stalled(for_s=60)
    assert make_group_changes(bare, story.group) == {}
    stored = restore(stored_records(story.group)).groups["g"]
    assert stored.round == bare.round
