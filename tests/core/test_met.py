"""Workers that end well but never met: the group says so, and fails where that was asked for."""

from hetrdzv.protocol.reasons import ends, events, waiting
from tests.core.driver import Story, running

NOBODY_MET = ends.never_met(0, 3)


def three() -> Story:
    return running("a", "b", "c", max_restarts=3)


def test_nobody_met() -> None:
    story = three()
    story.report("a", "started", met=0)
    assert story.reason == waiting.round_running(1, 3, 3, NOBODY_MET)
    story.report("a", "succeeded", met=0)
    story.succeeded("b", "c")
    assert story.group.state == "succeeded"
    assert story.said("never_met") == [NOBODY_MET]
    assert story.said("group_succeeded") == [events.group_succeeded(NOBODY_MET)]
    assert story.told("c").reason == events.group_succeeded(NOBODY_MET)


def test_some_met() -> None:
    story = three()
    story.report("a", "succeeded", met=2)
    story.succeeded("b", "c")
    assert story.reason == events.group_succeeded(ends.never_met(2, 3))


def test_only_the_master_can_tell() -> None:
    story = three()
    story.report("b", "succeeded", met=0, must_meet=True)
    story.succeeded("a", "c")
    assert story.reason == events.group_succeeded()


def test_where_it_is_required_it_is_a_failure() -> None:
    story = three()
    story.report("a", "succeeded", met=0, must_meet=True)
    assert story.group.state == "failed"
    assert story.group.restarts == 0
    for node_id in ("a", "b", "c"):
        told = story.told(node_id)
        assert (told.kind, told.reason, told.exit_code) == ("exit", NOBODY_MET, 1)


def test_where_it_is_required_and_so_it_is_well() -> None:
    story = three()
    story.report("a", "succeeded", met=3, must_meet=True)
    story.succeeded("b", "c")
    assert story.reason == events.group_succeeded()
