"""The deadline of a group in its several states: nothing happens before it, something past it."""

from dataclasses import replace

import pytest

from hetrdzv.core.commands import NoteStall, Tick
from hetrdzv.core.model import Stall
from tests.core.driver import LEASE_S, Story, running
from tests.core.explained import waits_for
from tests.core.leases import deadline, step
from tests.support.hangs import behind

OF_A = behind(0, "a", waiting=(1,))


def first_call() -> Story:
    story = Story(min_nodes=1, last_call_s=3)
    story.join("a")
    return story


def too_few() -> Story:
    story = Story(min_nodes=2, join_timeout_s=2)
    story.join("a")
    return story


def stopping() -> Story:
    story = running("a", "b", stop_timeout_s=0, lease_s=100)
    story.failed("a")
    story.renew("a", "b")  # which tells them to stop
    return story


def stopping_unheard() -> Story:
    story = running("a", "b", stop_timeout_s=0, lease_s=7)
    story.failed("a")
    story.renew("a")
    return story


def replacing() -> Story:
    story = running("a", "b", min_nodes=1, replace_wait_s=4)
    story.leave("b")
    story.join("a")
    return story


def joining() -> Story:
    story = running("a", last_call_s=4)
    story.join("b")
    return story


def cut() -> Story:
    story = running("a", "b")
    story.cut("a")
    return story


def lapsing() -> Story:
    return running("a", "b")


def stalling() -> Story:
    story = running("a", "b", lease_s=100)
    story.do(NoteStall(1, Stall(hang=OF_A, since=story.now - 5)))
    return story


def hanging() -> Story:
    story = running("a", "b", lease_s=100, hang_timeout_s=30)
    story.do(NoteStall(1, Stall(hang=OF_A, since=story.now - 20)))
    return story


def finished() -> Story:
    story = running("a", "b")
    story.succeeded("a", "b")
    return story


CASES = [
    (first_call, 3.0, "starting"),
    (too_few, 2.0, "failed"),
    (stopping, 5.0, "waiting"),
    (stopping_unheard, 7.0, "waiting"),
    (replacing, 4.0, "starting"),
    (joining, 4.0, "waiting"),
    (cut, 1.0, "waiting"),
    (lapsing, LEASE_S, "waiting"),
    (stalling, 10.0, "running"),
    (hanging, 10.0, "waiting"),
    (finished, LEASE_S, "succeeded"),
]


@pytest.mark.parametrize(("make", "due_s", "state"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_nothing_before_and_something_past_it(make, due_s: float, state: str) -> None:  # type: ignore[no-untyped-def]
    story = make()
    at = deadline(story.group)
    assert at == pytest.approx(story.now + due_s)
    assert step(story.group, Tick(), at - 1e-6).group is story.group
    past = step(story.group, Tick(), at + 1e-6).group
    assert past is not story.group
    assert past.state == state
    later = deadline(past)
    assert later is None or later > at


def test_nobody_there_nothing_due() -> None:
    story = running("a")
    story.leave("a")
    assert deadline(story.group) is None


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
