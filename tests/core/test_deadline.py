"""The deadline of a group in its several states: nothing happens before it, something past it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hetrdzv.core.commands import NoteStall, Tick
from hetrdzv.core.model import Stall
from tests.core.driver import LEASE_S, Story, running
from tests.core.explained import waits_for
from tests.core.leases import deadline, step
from tests.support.hangs import behind

OF_A = behind(0, "a", waiting=(1,))


def stalled(story: Story, for_s: float) -> None:
    story.do(NoteStall(1, Stall(hang=OF_A, since=story.now - for_s)))


def pair(**spec: Any) -> Callable[[], Story]:
    """A group that runs on a and b."""
    return lambda: running("a", "b", **spec)


CASES: dict[str, tuple[Callable[[], Story], Callable[[Story], object], float, str]] = {
    "first call": (lambda: Story(min_nodes=1, last_call_s=3), lambda story: story.join("a"), 3.0, "starting"),
    "too few": (lambda: Story(min_nodes=2, join_timeout_s=2), lambda story: story.join("a"), 2.0, "failed"),
    "told to stop": (
        pair(stop_timeout_s=0, lease_s=100),
        lambda story: (story.failed("a"), story.renew("a", "b")),
        5.0,
        "waiting",
    ),
    "not told to stop": (
        pair(stop_timeout_s=0, lease_s=7),
        lambda story: (story.failed("a"), story.renew("a")),
        7.0,
        "waiting",
    ),
    "replaced": (
        pair(min_nodes=1, replace_wait_s=4),
        lambda story: (story.leave("b"), story.join("a")),
        4.0,
        "starting",
    ),
    "joined": (lambda: running("a", last_call_s=4), lambda story: story.join("b"), 4.0, "waiting"),
    "cut": (pair(), lambda story: story.cut("a"), 1.0, "waiting"),
    "silent": (pair(), lambda story: None, LEASE_S, "waiting"),
    "stalls": (pair(lease_s=100), lambda story: stalled(story, 5), 10.0, "running"),
    "hangs": (pair(lease_s=100, hang_timeout_s=30), lambda story: stalled(story, 20), 10.0, "waiting"),
    "finished": (pair(), lambda story: story.succeeded("a", "b"), LEASE_S, "succeeded"),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_before_and_something_past_it(case: str) -> None:
    make, act, due_s, state = CASES[case]
    story = make()
    act(story)
    at = deadline(story.group, story.now)
    assert at == pytest.approx(story.now + due_s)
    assert step(story.group, Tick(), at - 1e-6).group is story.group
    past = step(story.group, Tick(), at + 1e-6).group
    assert past is not story.group
    assert past.state == state
    later = deadline(past, at + 1e-6)
    assert later is None or later > at


def test_nobody_there_nothing_due() -> None:
    story = running("a")
    story.leave("a")
    assert deadline(story.group, story.now) is None


def test_a_server_that_takes_over_judges_a_round_that_waited_for_a_suspect_only() -> None:
    """Who was suspect is not stored: after a load nobody is left to wait for, and no command need come."""
    story = running("a", "b", max_restarts=1)
    story.failed("a")
    story.join("a")
    story.cut("a")
    story.join("b")
    assert waits_for(story).nodes == ("a",)
    story.group = story.group.with_node(replace(story.node("a"), heard_at=story.now, disconnected_at=None))
    assert waits_for(story).nodes == ()
    assert story.deadline_in is not None
    assert story.deadline_in <= 0
    story.tick()
    assert story.group.restarts == 1
