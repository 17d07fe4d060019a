"""What would happen if a node were drained or the group restarted, and nothing of it happens."""

import pytest

from hetrdzv.core.plan import make_plan
from hetrdzv.protocol.errors import NotFound, Refused
from hetrdzv.protocol.replies import Plan
from hetrdzv.protocol.requests import PlanRequest
from hetrdzv.protocol.states import GroupState
from tests.core.driver import Story, running


def uneven(**spec: object) -> Story:
    """Round 1 runs on gpu1 (8 slots), gpu2 (4) and gpu3 (8); gpu4 (2) is a spare."""
    story = Story(**{"min_nodes": 2, "max_nodes": 3, "last_call_s": 10.0, **spec})
    for node_id, slots in (("gpu1", 8), ("gpu2", 4), ("gpu3", 8), ("gpu4", 2)):
        story.join(node_id, slots)
    story.started("gpu1", "gpu2", "gpu3")
    return story


def planned(story: Story, *, drain: str | None = None, restart: bool = False) -> Plan:
    """A plan, which leaves the group as it is."""
    before = story.group
    found = make_plan(before, PlanRequest(drain=drain, restart=restart), story.now)
    assert story.group == before
    return found


def places(found: Plan) -> list[tuple[str, int]]:
    return [(member.node_id, member.rank_offset) for member in found.members]


def test_a_spare_takes_the_place_of_a_node_that_goes() -> None:
    story = uneven()
    found = planned(story)
    assert places(found) == [("gpu1", 0), ("gpu2", 8), ("gpu3", 12)]
    assert (found.state, found.round, found.was_round, found.restarted) == ("running", 1, 1, ())
    found = planned(story, drain="gpu1")
    assert places(found) == [("gpu4", 0), ("gpu2", 2), ("gpu3", 6)]
    assert (found.round, found.world_size, found.was_world_size, found.in_s) == (2, 14, 20, 0)
    assert (found.restarted, found.stops) == (("gpu2", "gpu3"), ("gpu1",))
    story.join("gpu4", 2, not_ready="a GPU is missing")
    found = planned(story, drain="gpu1")
    assert (places(found), found.spares) == ([("gpu2", 0), ("gpu3", 4)], ("gpu4",))


def test_too_few_nodes_wait_and_say_for_what() -> None:
    assert planned(Story(min_nodes=2)).was_round == 0
    story = uneven(min_nodes=3)
    story.leave("gpu4")
    found = planned(story, drain="gpu1")
    assert (found.state, found.round, found.members) == (GroupState.WAITING, 0, ())
    assert (found.reason.code, found.spares, found.stops) == (
        "too_few_nodes",
        ("gpu2", "gpu3"),
        ("gpu1", "gpu2", "gpu3"),
    )


def test_a_restart_and_what_cannot_be_planned() -> None:
    story = uneven()
    story.cut("gpu2")  # it is taken to come back
    found = planned(story, restart=True)
    assert (found.round, found.restarted) == (2, ("gpu1", "gpu2", "gpu3"))
    with pytest.raises(NotFound, match="gpu1, gpu2, gpu3, gpu4"):
        planned(story, drain="gpu9")
    for node_id in ("gpu1", "gpu2", "gpu3"):
        story.leave(node_id)
    with pytest.raises(Refused, match="no running round"):
        planned(story, restart=True)


def test_a_failed_round_is_planned_on_with_its_restart() -> None:
    story = uneven(max_restarts=1)
    story.failed("gpu2")
    assert planned(story).round == 2
    for node_id in ("gpu1", "gpu2", "gpu3"):
        story.join(node_id)
    story.started("gpu1", "gpu2", "gpu3")
    story.failed("gpu2")
    found = planned(story)
    assert (found.state, found.members, found.reason.nodes) == (GroupState.FAILED, (), ("gpu2",))


def test_a_stall_is_taken_to_end_and_joiners_are_waited_for() -> None:
    story = running("gpu1", "gpu2", last_call_s=10.0, hang_timeout_s=5.0)
    story.stalled()
    story.join("gpu3")
    found = planned(story)
    assert (found.round, found.in_s) == (2, 10)


def test_workers_that_get_a_notice_are_taken_to_be_ready_at_once() -> None:
    story = Story(min_nodes=2, last_call_s=1.0, notice_s=60.0)
    for node_id in ("a", "b", "c"):
        story.join(node_id, takes_notice=True)
    story.wait(1.0)
    story.started("a", "b", "c")
    for _ in range(2):  # before the drain, and while its notice runs
        found = planned(story, drain="a")
        assert (places(found), found.in_s, found.stops) == ([("b", 0), ("c", 1)], 0, ("a",))
        story.drain("a")
    assert story.ended is None
