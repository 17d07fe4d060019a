"""When a round forms, who is told what, and how it ends well (rules 1, 2, 3, 7, 9)."""

from dataclasses import replace

import pytest

from hetrdzv.core.commands import RenewLease, Tick
from hetrdzv.core.explanations import explain_round_end
from hetrdzv.protocol.reasons.reason import ReasonCode
from tests.core.driver import Story, running
from tests.core.leases import heard, step
from tests.core.script import fact, play

CASES = {
    "a full group starts at once": """
        group min_nodes=1 max_nodes=2
        join a; why = last_call a; until = 10
        join b; told b = start round_formed; said started_unbounded = 0""",
    "the first round waits for the last call": """
        group min_nodes=2; join a 8; told a = wait waiting; why = too_few_nodes; until = 600; join b 4
        why a = last_call a b; until = 10; wait 9.99; state = waiting; wait 0.01; order = a b; world = 12""",
    "ranks are counted in their roles as well": """
        group min_nodes=3 last_call_s=0; join a 2; join b 1 role='eval'; join c 4
        role a = 0 of 6; role b = 0 of 1; role c = 2 of 6""",
    "an unbounded one says so": "group last_call_s=0; join a; said started_unbounded = 1",
    "a suspect is waited for": """
        group min_nodes=1; joins a b; wait 9.5; cut b; wait 0.5
        state = waiting; why = reconnecting b; due = 0.5
        wait 0.5; state = waiting
        pass_by 0.01; order = a""",
    "too few nodes for too long": """
        group min_nodes=3 join_timeout_s=60; joins a b; wait 59.9; state = waiting
        wait 0.1; told a = exit failed 1; cause = join_timeout""",
    "the time for that counts only with a node": """
        group; put min_nodes=2 join_timeout_s=60; pass_by 1000; state = waiting; due = never
        join a; wait 59; leave a; join b; wait 59; state = waiting""",
    "a hung node does not hang the group": """
        running a join_timeout_s=60 stop_timeout_s=10; restart; renew a
        wait 15; why = too_few_nodes; told a = stop round_ended
        wait 60; state = failed""",
    "all start, and succeed": """
        group min_nodes=2 last_call_s=0; joins a b; started a; state = starting; why = round_starting b
        started b; state = running; why = round_running
        succeeded a; told a = start round_formed; state = running
        succeeded b; state = succeeded; told a = exit succeeded 0; told b = exit succeeded 0""",
    "a silent node lives at its lease, and not past it": """
        running a b; later 5; renew a; tick; ended = None
        pass_by 0.001; ended = lost; why a = node_lost b; said lease_expired = 0""",
    "a node that was cut off has a grace": """
        running a b; cut b; pass_by 1; ended = None; pass_by 0.001; ended = lost; why a = node_lost b""",
    "the next round waits for every stop": """
        running a b c; failed b; join b; told b = wait waiting; why = stopping a c; until = unknown
        renew a c; why = stopping a c; until = 35
        join a; state = waiting
        join c; state = starting; last_round = 2; restarts = 1""",
    "an overdue member is not waited for": """
        running a b min_nodes=1 stop_timeout_s=10; failed a; renew b; join a
        wait 14.9; ended = failed; state = waiting
        wait 0.1; order = a; told b = stop round_over
        join b; told b = wait waiting""",
    "nor is an overdue suspect": """
        running a b min_nodes=1 stop_timeout_s=0; failed a; renew b; join a; wait 4.5; cut b; wait 0.5; order = a""",
    "who was not told to stop is waited for until its lease ends": """
        running a b min_nodes=1 stop_timeout_s=2 lease_s=40 max_restarts=0
        failed a; join a; wait 39 silent=('b',); state = waiting; why = stopping b; until = unknown
        wait 1.1 silent=('b',); order = a; restarts = 0  # its loss was the cause""",
    "who is told late has its whole time": """
        running a b min_nodes=1 stop_timeout_s=2 lease_s=40; failed a; join a; wait 30 silent=('b',)
        renew b; due = 7; wait 6.9; state = waiting; why = stopping b; until = 0.1
        wait 0.1; order = a""",
    "who was told of one end was not told of the next": """
        running a b min_nodes=1 stop_timeout_s=2 lease_s=40; failed a; renew b; joins a b; started a b
        failed a; join a; wait 8 silent=('b',); state = waiting; until = unknown""",
    "a loss waits for a replacement": """
        running a b min_nodes=1 replace_wait_s=20; leave b; join a; why = replacement_wait a; until = 20
        wait 19.9; state = waiting; wait 0.1; order = a""",
    "which ends the wait": """
        running a b min_nodes=1 replace_wait_s=20; leave a; join b; wait 3; join z; order = z b""",
    "after too few nodes there is a last call again": """
        group min_nodes=2 last_call_s=7; joins a b; wait 7; started a b
        leave b; join a; why = too_few_nodes b; ended_by = node_left b
        join c; why = last_call a c; until = 7; wait 7; order = a c""",
    "who has succeeded and goes still counts": """
        running a b c d e; succeeded a b c d; lose b; leaving c; drain d; told d = exit drained 4
        leave c; leave d; ended = None; succeeded e; state = succeeded""",
    "so does who stops by itself": """
        running a b; succeeded b; join b; ended = None; succeeded a; state = succeeded""",
    "a master that has succeeded is needed while others run": """
        running a b; succeeded a; lose a; ended = lost""",
    "but not once all have succeeded": """
        running a b c; succeeded a b; lose b; succeeded c; state = succeeded""",
    "a failure after a success makes all run again": """
        running a b; succeeded b; failed a; told b = stop round_ended; joins a b; order = a b; restarts = 1""",
    "who succeeded, was lost and returns waits for the outcome": """
        running a b; succeeded b; lose b; told b = stop lost
        join b after=1; left b = others_succeeded b; wait 30; ended = None
        succeeded a; told b = exit succeeded 0""",
    "a cancelled job is over for all": """
        running a b; cancel; told a = exit cancelled 3; told b = exit cancelled 3; why = group_cancelled
        StaleRound: failed a""",
    "reports of an older round change nothing": """
        running a b; restart
        StaleRound: started a; StaleRound: succeeded a; StaleRound: unreachable a
        joins a b
        StaleRound: report a started round=1; StaleRound: report a succeeded round=1
        StaleRound: report a failed round=1; StaleRound: report a master_unreachable round=1""",
    "why says since when nobody is here": """
        group; put min_nodes=3; joins a b; leave a; wait 1; leave b; pass_by 10
        why = too_few_nodes; since = 10""",
    "a round whose workers have not met says so": """
        running a b c; report a started met=0; report a succeeded met=0; said partially_connected = 1
        succeeded b c; state = succeeded""",
    "where they must meet the job has failed": """
        running a b c; report b succeeded met=0 must_meet=True; state = running  # only the master can tell
        report a succeeded met=0 must_meet=True; state = failed; restarts = 0; cause = partially_connected
        told c = exit failed 1""",
    "and has not where they met": """
        running a b c; report a succeeded met=3 must_meet=True; succeeded b c; state = succeeded""",
}


@pytest.mark.parametrize("case", CASES)
def test_rounds(case: str) -> None:
    play(CASES[case])


@pytest.mark.parametrize(
    "end", ["failed b", "lose b", "leave b", "leaving b", "drain b", "restart", "join b"]
)
def test_any_end_stops_all_members_at_once(end: str) -> None:
    story = play(f"running a b c; {end}; said round_ended = 1")
    assert story.round.end is not None
    for node_id in ("a", "c"):
        assert fact(story, "told", node_id) == "stop round_ended"
        assert story.told(node_id).reason == explain_round_end(1, story.round.end)


def test_who_was_sent_the_end_of_its_round_may_not_have_got_it() -> None:
    story = running("a", "b", min_nodes=1, stop_timeout_s=2, lease_s=40)
    story.failed("a")
    story.do(RenewLease("b", "b-1"))  # the answer is lost, and so is all that follows
    story.join("a")
    story.wait(39, silent=("b",))
    assert story.group.state == "waiting"
    story.wait(2, silent=("b",))
    assert story.order == ["a"]


def test_a_server_that_takes_over_judges_a_round_that_waited_for_a_suspect_only() -> None:
    """Who was suspect is not stored: after a load nobody is left to wait for, and no command need come."""
    story = play("running a b max_restarts=1; failed a; join a; cut a; join b; why = stopping a")
    story.group = story.group.with_node(heard(replace(story.node("a"), disconnected_at=None), story.now))
    assert story.deadline_in == 0
    story.tick()
    assert story.group.restarts == 1


def test_step_that_changes_nothing_returns_the_same_group() -> None:
    story = running("a", "b")
    assert step(story.group, Tick(), story.now).group is story.group
    waiting = Story(min_nodes=2)
    waiting.join("a")
    assert step(waiting.group, Tick(), waiting.now).group is waiting.group


def test_nodes_that_change_in_a_turn_are_among_the_others_once_it_is_over() -> None:
    story = running("a", "b")
    before = story.group.nodes
    other = replace(before["a"], node_id="c", incarnation="new")
    turn = story.group.with_node(replace(before["b"], ready_to_stop=1)).with_node(other)
    assert [*turn.nodes] == ["a", "b", "c"]
    assert len(turn.nodes) == 3
    assert turn.nodes["b"].ready_to_stop == 1
    assert before["b"].ready_to_stop == 0
    over = step(turn, Tick(), story.now).group.nodes
    assert over == turn.nodes
    assert isinstance(over, dict)


def test_all_of_many_nodes_are_lost_in_one_step() -> None:
    story = running(*(f"n{number}" for number in range(600)))
    over = step(story.group, Tick(), story.now + 1_000.0)
    assert [*over.group.nodes] == [*story.group.nodes]
    assert not over.group.live_nodes
    assert sum(event.code is ReasonCode.NODE_LOST for event in over.events) == 600


def test_the_version_of_a_directive_changes_with_its_kind_round_and_code_and_not_with_its_reason() -> None:
    story = Story(min_nodes=3)
    first = story.join("a")
    story.join("b")
    assert story.reason != first.reason
    assert story.told("a").version == first.version
    versions = set()
    story = running("a", "b")
    for act in ("tick", "restart", "join a", "join b", "lose a", "cancel"):
        verb, *names = act.split()
        getattr(story, verb)(*names)
        versions.add(story.told("a").version)
    assert len(versions) == 6
