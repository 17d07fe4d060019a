"""Planned stops, and nodes that say when they go: workers are told before, and may save; a death cuts that short."""

from dataclasses import replace

import pytest

from hetrdzv.core.commands import Cancel, Tick
from hetrdzv.core.invariants import list_violations
from hetrdzv.core.model import EndCause, EndNotice, Group
from hetrdzv.protocol.reasons import ends, waiting
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.states import EndKind, GroupState
from tests.core.driver import bare, running
from tests.core.leases import step
from tests.core.script import fact, play

DRAINED = ReasonCode.NODE_LEAVING.reason("b", why=ReasonCode.NODE_DRAINED.reason())
SIGTERM = ReasonCode.NODE_LEAVING.reason("b", why=ReasonCode.AGENT_LEFT.reason(quote="SIGTERM"))

PLANNED: dict[str, tuple[str, Reason]] = {
    "joined": ("join z; wait 1", ReasonCode.NODES_JOINED.reason("z")),
    "drained": ("drain b", DRAINED),
    "restarted": ("restart", ReasonCode.RESTART_REQUESTED.reason()),
    "cancelled": ("cancel", ReasonCode.GROUP_CANCELLED.reason(by="somebody")),
    "left": ("leaving b grace_s=30", SIGTERM),
}


def heeding(*node_ids: str, notice_s: float = 30.0, deaf: str = "", lease_s: float = 3600.0) -> str:
    """A script: a group that runs round 1 on nodes whose agents know what a notice is, but for those that are deaf."""
    names = [*node_ids, *deaf]
    joins = "; ".join(f"join {name} takes_notice={name not in deaf}" for name in names)
    spec = f"min_nodes=1 last_call_s=1 notice_s={notice_s} lease_s={lease_s}"
    return f"group {spec}; {joins}; wait 1; started {' '.join(names)}; state = running;"


@pytest.mark.parametrize("kind", PLANNED)
def test_workers_are_told_and_the_round_ends_once_all_are_ready(kind: str) -> None:
    act, cause = PLANNED[kind]
    story = play(f"{heeding('a', 'b')} {act}")
    assert story.said("stop_announced") == [
        bare(ReasonCode.STOP_ANNOUNCED.reason(round=1, cause=cause, notice_s=30.0))
    ]
    until = story.now + 30.0
    ending = waiting.round_about_to_end(1, cause, ["a", "b"], until)
    for node_id in ("a", "b"):
        told = story.told(node_id)
        assert (told.kind, told.code, told.round, told.reason) == ("start", "notice", 1, ending)
        assert told.notice is not None
        assert (told.notice.reason, told.notice.left_s) == (cause, 30.0)
    assert story.reason == ending
    story.wait(2.0)
    story.report("a", "ready_to_stop")
    assert story.reason.nodes == ("b",)
    assert step(story.group, Tick(), until - 1e-6).group is story.group
    late = step(story.group, Tick(), until + 1e-6)
    assert ReasonCode.NOTICE_EXPIRED.reason("b", notice_s=30.0) in map(bare, late.events)
    assert over(late.group) == kind, "at the end of the notice the stop comes all the same"
    story.report("b", "ready_to_stop")
    assert over(story.group) == kind
    assert story.said("ready_to_stop") == [ReasonCode.READY_TO_STOP.reason(took_s=2.0)]
    assert story.told("a").kind == ("exit" if kind == "cancelled" else "stop")
    assert story.told("b").kind == ("exit" if kind in ("cancelled", "drained") else "stop")
    assert story.group.restarts == 0


def over(group: Group) -> str:
    """What the round has ended with."""
    if group.state is GroupState.CANCELLED:
        return "cancelled"
    return str(group.round.end.cause.kind) if group.round is not None and group.round.end is not None else ""


@pytest.mark.parametrize("kind", [kind for kind in PLANNED if kind != "left"])
def test_without_notice_s_every_planned_stop_comes_at_once(kind: str) -> None:
    story = play(f"{heeding('a', 'b', notice_s=0)} {PLANNED[kind][0]}; said stop_announced = 0")
    assert over(story.group) == kind


@pytest.mark.parametrize("kind", PLANNED)
def test_a_death_cuts_it_short_and_costs_what_it_costs_without(kind: str) -> None:
    for dies, cost, end in (("failed", 1, "failed"), ("lose", 0, "lost"), ("leave", 0, "left")):
        story = play(
            f"{heeding('a', 'b', 'c', lease_s=5)} {PLANNED[kind][0]}; report a ready_to_stop; {dies} c"
        )
        assert over(story.group) == ("cancelled" if kind == "cancelled" else end)
        if kind in ("joined", "restarted"):
            story.joins("a", "b", *(["c"] if end == "failed" else []))
            assert story.group.restarts == cost


CASES = {
    "nobody is told while the round starts, since there is nothing to save": """
        group min_nodes=2 last_call_s=1 notice_s=30; join a takes_notice=True; join b takes_notice=True; wait 1
        started a; restart; ended = restarted""",
    "agents that know no notice are not waited for, and run on meanwhile": f"""
        {heeding("a", deaf="b")} drain b; told b = start round_formed; why = stop_announced a
        report a ready_to_stop; ended = drained; told b = exit drained 4""",
    "where nobody would heed it there is none": f"{heeding(deaf='ab')} restart; ended = restarted",
    "a second person in a hurry ends the notice of a join": f"""
        {heeding("a", "b")} join z; wait 1; restart; ended = joined""",
    "of a drain": f"{heeding('a', 'b')} drain b; restart; ended = drained",
    "of a restart": f"{heeding('a', 'b')} restart; restart; ended = restarted",
    "of a cancellation": f"{heeding('a', 'b')} cancel; Refused: restart; cancel; state = cancelled",
    "a cancellation overrides what was announced, but gives no new time": f"""
        {heeding("a", "b")} join z; wait 1; wait 10; cancel; until = 20; wait 20; state = cancelled""",
    "a node that is readmitted in time stays": f"""
        {heeding("a", "b")} drain b; undrain b; said node_undrained = 1; told b = start notice
        report a ready_to_stop; report b ready_to_stop; told b = stop round_ended; joins a b; order = a b""",
    "a job that ends well meanwhile has succeeded, in that round": f"""
        {heeding("a", "b")} restart; succeeded a b; state = succeeded; order = a b""",
    "one that was told to exit does so": f"""
        {heeding("a", "b")} succeeded b; restart; drain b; told b = exit drained 4
        undrain b; told b = exit drained 4""",
    "one that has succeeded cuts no notice short by leaving": f"""
        {heeding("a", "b")} succeeded b; leaving b; restart; leaving b; ended = None; leave b; ended = None""",
    "ready to stop counts for its round only, and not without a notice": f"""
        {heeding("a", "b")} report a ready_to_stop; report b ready_to_stop; ended = None
        restart; why = stop_announced a b; report a ready_to_stop; report b ready_to_stop; report a ready_to_stop
        joins a b; started a b; restart; why = stop_announced a b""",
    "the others go on at once without a node that has saved and left": f"""
        {heeding("a", "b", "c", notice_s=0)} leaving b grace_s=20; report a ready_to_stop; report b ready_to_stop
        ended = None; report c ready_to_stop; ended = left; told b = stop round_ended; joins a c; leave b
        order = a c; last_round = 2; restarts = 0""",
    "the time counts from when the agent got the signal": f"{heeding('a', 'b')} leaving b grace_s=20 age_s=4; due = 16",
    "the smaller of what the group and the node allow counts": f"""
        {heeding("a", "b", notice_s=5)} leaving b grace_s=20; due = 5""",
    "so it does the other way round": f"{heeding('a', 'b', notice_s=60)} leaving b grace_s=20; due = 20",
    "nobody saves where there is no time": f"{heeding('a', 'b')} leaving b grace_s=20 age_s=30; ended = left",
    "or none is given": f"{heeding('a', 'b')} leaving b; ended = left",
    "or nobody would": f"{heeding(deaf='ab')} leaving b grace_s=20; ended = left; said stop_announced = 0",
    "or nothing runs yet": """
        group min_nodes=2; join a takes_notice=True; join b takes_notice=True; wait 10
        leaving b grace_s=20; ended = left""",
    "a node that goes during a planned stop hastens it": f"""
        {heeding("a", "b", "c")} drain a; due = 30; leaving b grace_s=5; due = 5
        said stop_announced = 1; leaving c; ended = left""",
    "no hang is found while workers wait for the end": f"""
        {heeding("a", "b").replace("group ", "group hang_timeout_s=5 ")} restart; stalled; wait 29; ended = None""",
    "a node that is killed before its time ends the round at once": f"""
        {heeding("a", "b", lease_s=5)} leaving b grace_s=20; lose b; ended = lost; restarts = 0""",
}


@pytest.mark.parametrize("case", CASES)
def test_notices(case: str) -> None:
    play(CASES[case])


@pytest.mark.parametrize("readmitted", ["", "undrain b;"])
def test_a_failure_in_the_notice_of_a_drain_costs_nothing_even_if_the_drained_node_only_stops(
    readmitted: str,
) -> None:
    """Its agent may have stopped by itself, or be let in again before it has exited."""
    story = play(
        f"{heeding('a', 'b')} drain b; failed a; join a; {readmitted} join b; restarts = 0; state = starting"
    )
    assert story.said("round_judged") == [
        bare(ReasonCode.ROUND_JUDGED.reason(round=1, cause=ends.departure_with_failures(DRAINED)))
    ]


@pytest.mark.parametrize("must_meet", [False, True])
def test_a_job_that_ends_while_it_is_about_to_be_cancelled_was_cancelled(must_meet: bool) -> None:
    """Its workers may have saved and exited with 0; and agents that are started again begin no new job."""
    story = play(heeding("a", "b"))
    story.do(Cancel(by="ada"))
    story.succeeded("b")
    story.report("a", "succeeded", met=0, must_meet=must_meet)  # the master: none has met another
    story.wait(1)
    assert story.join("c", spec={}).reason == ReasonCode.JOINED_TOO_LATE.reason(
        group="g", outcome="cancelled", by="ada"
    )
    assert fact(story, "told", "c") == "exit cancelled 3"


@pytest.mark.parametrize(("state", "until"), [(GroupState.WAITING, 30.0), (GroupState.RUNNING, 0.0)])
def test_an_impossible_notice_is_noticed(state: GroupState, until: float) -> None:
    story = running("a", notice_s=30.0)

    def with_notice(state: GroupState, until: float) -> Group:
        notice = EndNotice(
            cause=EndCause(kind=EndKind.RESTARTED, reason=ReasonCode.RESTART_REQUESTED.reason()),
            at=0.0,
            until=until,
        )
        return replace(story.group, state=state, round=replace(story.group.round, notice=notice))

    assert list(list_violations(with_notice(GroupState.RUNNING, 30.0))) == []
    assert any("is about to end" in wrong for wrong in list_violations(with_notice(state, until)))
