"""Workers that end well but never met: the group says so, and fails where that was asked for."""

from hetrdzv.protocol.facts import parts, reasons
from hetrdzv.protocol.facts.causes import WorkersApart
from hetrdzv.protocol.facts.events import GroupSucceeded, NeverMet
from hetrdzv.protocol.facts.parts import Apart
from tests.core.driver import Story, running

FAILED = reasons.Failed(cause=WorkersApart(apart=Apart(met=0, world_size=3)))


def three() -> Story:
    return running("a", "b", "c", max_restarts=3)


def test_nobody_met() -> None:
    story = three()
    story.report("a", "started", met=0)
    assert story.reason == reasons.Runs(
        round=1, nodes=3, world_size=3, apart=parts.Apart(met=0, world_size=3)
    )
    story.report("a", "succeeded", met=0)
    story.succeeded("b", "c")
    assert story.group.state == "succeeded"
    apart = Apart(met=0, world_size=3)
    assert story.facts("never_met") == [NeverMet(apart=apart)]
    assert story.facts("group_succeeded") == [GroupSucceeded(apart=apart)]
    assert story.told("c").reason == reasons.Succeeded(apart=parts.Apart(met=0, world_size=3))


def test_some_met() -> None:
    story = three()
    story.report("a", "succeeded", met=2)
    story.succeeded("b", "c")
    assert story.reason == reasons.Succeeded(apart=parts.Apart(met=2, world_size=3))


def test_late_is_no_harm() -> None:
    story = three()
    story.report("a", "started", met=0)
    story.report("a", "succeeded", met=3)
    story.succeeded("b", "c")
    assert story.reason == reasons.Succeeded()


def test_only_the_master_can_tell() -> None:
    story = three()
    story.report("b", "succeeded", met=0, must_meet=True)
    story.succeeded("a", "c")
    assert story.reason == reasons.Succeeded()


def test_where_it_is_required_it_is_a_failure() -> None:
    story = three()
    story.report("a", "succeeded", met=0, must_meet=True)
    assert story.group.state == "failed"
    assert story.group.restarts == 0
    for node_id in ("a", "b", "c"):
        told = story.told(node_id)
        assert (told.kind, told.reason, told.exit_code) == ("exit", FAILED, 1)


def test_where_it_is_required_and_so_it_is_well() -> None:
    story = three()
    story.report("a", "succeeded", met=3, must_meet=True)
    story.succeeded("b", "c")
    assert story.reason == reasons.Succeeded()
