"""The deadline of a group in its several states: nothing happens before it, something past it."""

from dataclasses import replace

import pytest

from hetrdzv.core.commands import Tick
from tests.core.leases import deadline, step
from tests.core.script import play

CASES = [
    ("group min_nodes=1 last_call_s=3; join a", 3.0, "starting"),
    ("group min_nodes=2 join_timeout_s=2; join a", 2.0, "failed"),
    ("running a b stop_timeout_s=0 lease_s=100; failed a; renew a b", 5.0, "waiting"),
    ("running a b stop_timeout_s=0 lease_s=7; failed a; renew a", 7.0, "waiting"),
    ("running a b min_nodes=1 replace_wait_s=4; leave b; join a", 4.0, "starting"),
    ("running a last_call_s=4; join b", 4.0, "waiting"),
    ("running a b; cut a", 1.0, "waiting"),
    ("running a b", 5.0, "waiting"),
    ("running a b; succeeded a b", 5.0, "succeeded"),
    ("running a b lease_s=100; stalled 5", 10.0, "running"),
    ("running a b lease_s=100 hang_timeout_s=15; stalled 5", 10.0, "waiting"),
]


@pytest.mark.parametrize(("script", "due_s", "state"), CASES)
def test_nothing_before_and_something_past_it(script: str, due_s: float, state: str) -> None:
    story = play(script)
    at = deadline(story.group, story.now)
    assert at == pytest.approx(story.now + due_s)
    assert step(story.group, Tick(), at - 1e-6).group is story.group
    past = step(story.group, Tick(), at + 1e-6).group
    assert past is not story.group
    assert past.state == state
    later = deadline(past, at + 1e-6)
    assert later is None or later > at


def test_a_server_that_takes_over_judges_a_round_that_waited_for_a_suspect_only() -> None:
    """Who was suspect is not stored: after a load nobody is left to wait for, and no command need come."""
    story = play("running a b max_restarts=1; failed a; join a; cut a; join b; why = stopping a")
    story.group = story.group.with_node(replace(story.node("a"), heard_at=story.now, disconnected_at=None))
    assert story.deadline_in == 0
    story.tick()
    assert story.group.restarts == 1
