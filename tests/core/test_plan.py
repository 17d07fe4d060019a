"""What would happen if nodes came or went, told by the state machine itself, and nothing of it happens."""

from dataclasses import replace

import pytest

from hetrdzv.core.commands import NoteStall
from hetrdzv.core.model import Stall
from hetrdzv.core.plan import plan
from hetrdzv.protocol.errors import GroupFinishing, NodeIdInUse, Refused, UnknownNode
from hetrdzv.protocol.reasons import departures, ends, waiting
from hetrdzv.protocol.requests.plans import Changes, NewNode, Plan
from hetrdzv.protocol.states import GroupState
from tests.core.driver import Story, running
from tests.core.explained import ready
from tests.support.hangs import behind


def uneven(**spec: object) -> Story:
    """Round 1 runs on gpu1 (8 slots), gpu2 (4) and gpu3 (8); gpu4 (2) is a spare."""
    story = Story(**{"min_nodes": 2, "max_nodes": 3, "last_call_s": 10.0, **spec})
    for node_id, slots in (("gpu1", 8), ("gpu2", 4), ("gpu3", 8), ("gpu4", 2)):
        story.join(node_id, slots)
    story.started("gpu1", "gpu2", "gpu3")
    assert story.order == ["gpu1", "gpu2", "gpu3"]
    return story


def planned(story: Story, **changes: object) -> Plan:
    """A plan, which leaves the group as it is."""
    before = story.group
    found = plan(before, Changes(**changes), story.now)  # type: ignore[arg-type]
    assert story.group == before
    return found


def places(found: Plan) -> list[tuple[str, int]]:
    return [(member.node_id, member.rank_offset) for member in found.members]


def test_no_change_is_what_is_there() -> None:
    found = planned(uneven())
    assert places(found) == [("gpu1", 0), ("gpu2", 8), ("gpu3", 12)]
    assert (found.state, found.round, found.was_round, found.ended) == ("running", 1, 1, None)
    assert (found.restarted, found.stops, found.moves, found.gone) == ((), (), (), ())
    assert [(one.node_id, one.slots) for one in found.spares] == [("gpu4", 2)]
    assert found.spares[0].reason == waiting.max_nodes("gpu4", 3)


def test_a_spare_takes_the_place_of_a_node_that_goes() -> None:
    found = planned(uneven(), remove=("gpu1",))
    assert places(found) == [("gpu4", 0), ("gpu2", 2), ("gpu3", 6)]
    assert (found.master, found.world_size, found.was_world_size) == ("gpu4", 14, 20)
    assert (found.restarted, found.stops, found.moves) == (("gpu2", "gpu3"), ("gpu1",), ("gpu2", "gpu3"))
    assert found.ended == ends.node_left("gpu1", departures.agent_left("as supposed"))
    assert [one.was_offset for one in found.members] == [None, 8, 12]
    assert [one.node_id for one in found.gone] == ["gpu1"]
    assert found.in_s == 0


def test_a_joiner_is_admitted_after_the_last_call() -> None:
    story = running("gpu1", "gpu2", "gpu3", max_nodes=4, last_call_s=10.0)
    found = planned(story, add=(NewNode(slots=3),), remove=("gpu2",))
    assert (places(found)[1], found.in_s) == (("new1", 1), 0), "it takes the place that is free"
    found = planned(story, add=(NewNode(slots=3, node_id="gpu0"),))
    assert (places(found)[3], found.in_s) == (("gpu0", 3), 0), "the round is full"
    found = planned(story, add=(NewNode(slots=3), NewNode(slots=1)))
    assert (places(found)[3], [one.node_id for one in found.spares]) == (("new1", 3), ["new2"])
    story = running("gpu1", "gpu2", last_call_s=10.0)
    assert planned(story, add=(NewNode(slots=3),)).in_s == 10


def test_a_node_without_a_name_is_preferred_to_none_that_has_one() -> None:
    story = Story(min_nodes=2, max_nodes=2)
    story.joins("zoe9", "zoe10")
    story.started("zoe9", "zoe10")
    story.join("zz-top", 1)
    found = planned(story, remove=("zoe9",), add=(NewNode(slots=1), NewNode(slots=1)))
    assert places(found) == [("zz-top", 0), ("zoe10", 1)]
    assert [one.node_id for one in found.spares] == ["zznew1", "zznew2"]


def test_a_node_that_comes_back_with_other_slots() -> None:
    found = planned(uneven(), remove=("gpu2",), add=(NewNode(slots=6, node_id="gpu2"),))
    assert places(found) == [("gpu1", 0), ("gpu2", 8), ("gpu3", 14)]
    assert found.moves == ("gpu3",)
    assert found.gone == ()


def test_a_drain_says_what_a_drain_does() -> None:
    story = uneven()
    found = planned(story, drain=("gpu3", "gpu4"))
    assert places(found) == [("gpu1", 0), ("gpu2", 8)]
    assert found.ended == ends.node_leaving("gpu3", departures.drained())
    assert [(one.node_id, one.reason) for one in found.gone] == [
        ("gpu3", departures.drained()),
        ("gpu4", departures.drained()),
    ]
    story.drain("gpu3")
    story.drain("gpu4")
    assert planned(story).ended is None, "that round has ended already"
    assert places(planned(story)) == places(found)


def test_too_few_nodes_wait_and_say_for_what() -> None:
    found = planned(uneven(), remove=("gpu1", "gpu2", "gpu3"))
    assert (found.state, found.round, found.master, found.members) == (GroupState.WAITING, 0, None, ())
    gone = ["gpu1", "gpu2", "gpu3"]
    what = waiting.too_few(ready(["gpu4"], 2), 1, gone=gone, until=found.reason.until)
    assert replace(found.reason, cause=None) == what
    assert [(one.node_id, one.reason) for one in found.spares] == [("gpu4", None)]
    assert found.stops == ("gpu1", "gpu2", "gpu3")


def test_a_restart_and_one_that_cannot_be() -> None:
    story = uneven()
    found = planned(story, restart=True)
    assert (found.round, found.ended, found.restarts) == (2, ends.restart_requested(), 0)
    assert (found.restarted, found.moves) == (("gpu1", "gpu2", "gpu3"), ())
    for node_id in ("gpu1", "gpu2", "gpu3"):
        story.leave(node_id)
    with pytest.raises(Refused, match="no running round"):
        planned(story, restart=True)


def test_what_cannot_be_planned() -> None:
    story = uneven()
    for changes in ({"remove": ("gpu9",)}, {"drain": ("gpu9",)}):
        with pytest.raises(UnknownNode, match="gpu1, gpu2, gpu3, gpu4"):
            planned(story, **changes)
    for add in ((NewNode(slots=1, node_id="gpu2"),), (NewNode(slots=1, node_id="x"),) * 2):
        with pytest.raises(NodeIdInUse, match="adds it twice"):
            planned(story, add=add)


def test_a_failed_round_is_planned_on_with_its_restart() -> None:
    story = uneven(max_restarts=1)
    story.failed("gpu2")
    assert (planned(story).round, planned(story).restarts) == (2, 1)
    for node_id in ("gpu1", "gpu2", "gpu3"):
        story.join(node_id)
    story.started("gpu1", "gpu2", "gpu3")
    story.failed("gpu2")
    found = planned(story)
    assert (found.state, found.members) == (GroupState.FAILED, ())
    assert found.reason.nodes == ("gpu2",)
    assert [one.node_id for one in found.gone] == ["gpu1", "gpu2", "gpu3", "gpu4"]


def test_a_stall_is_taken_to_end() -> None:
    story = running("gpu1", "gpu2", last_call_s=10.0, hang_timeout_s=5.0)
    stall = Stall(
        hang=behind(0, "gpu1", waiting=(1,)),
        since=story.now,
    )
    story.do(NoteStall(1, stall))
    found = planned(story, add=(NewNode(slots=1),))
    assert (found.ended, found.restarts, found.in_s) == (
        ends.nodes_joined(["new1"]),
        0,
        10,
    )


def test_workers_that_get_a_notice_are_taken_to_be_ready_at_once() -> None:
    story = Story(min_nodes=2, last_call_s=1.0, notice_s=60.0)
    for node_id in ("a", "b", "c"):
        story.join(node_id, takes_notice=True)
    story.wait(1.0)
    story.started("a", "b", "c")
    for _ in range(2):  # before the drain, and while its notice runs
        found = planned(story, drain=("a",))
        assert (places(found), found.in_s) == ([("b", 0), ("c", 1)], 0)
        assert [one.reason for one in found.gone] == [departures.drained()]
        story.drain("a")
    assert story.group.round is not None
    assert story.group.round.end is None
    assert planned(story).ended == ends.node_leaving("a", departures.drained())


def test_a_suspect_is_taken_to_come_back() -> None:
    story = uneven()
    story.cut("gpu2")
    found = planned(story, restart=True)
    assert places(found) == [("gpu1", 0), ("gpu2", 8), ("gpu3", 12)]
    story = Story(min_nodes=2, last_call_s=10.0)
    story.joins("a", "b")
    story.cut("b")
    assert places(planned(story)) == [("a", 0), ("b", 1)]


def test_a_node_that_comes_back_has_the_labels_that_it_had() -> None:
    story = Story(min_nodes=2, rank_order="topology:rack", last_call_s=1.0)
    for node_id, rack in (("a", "r1"), ("b", "r2"), ("c", "r1")):
        story.join(node_id, labels={"rack": rack})
    story.wait(1.0)
    assert story.order == ["a", "c", "b"]
    story.leave("c")
    for node_id in ("a", "b"):
        story.join(node_id, labels={"rack": {"a": "r1", "b": "r2"}[node_id]})
    story.tick()
    assert story.order == ["a", "b"]
    assert places(planned(story, add=(NewNode(slots=2, node_id="c"),))) == [("a", 0), ("c", 1), ("b", 3)]
    found = planned(story, add=(NewNode(slots=2, node_id="c", labels={"rack": "r2"}),))
    assert places(found) == [("a", 0), ("b", 1), ("c", 2)]


def test_a_node_that_is_not_ready_stays_a_spare() -> None:
    story = uneven()
    story.join("gpu4", 2, not_ready="a GPU is missing")
    found = planned(story, remove=("gpu1",))
    assert places(found) == [("gpu2", 0), ("gpu3", 4)]
    assert found.spares[0].reason.quote == "a GPU is missing"


def test_nodes_on_loopback_get_a_neighbour_on_loopback() -> None:
    story = Story(last_call_s=0)
    story.join("a", 1, address="127.0.0.1")
    story.wait(1)
    assert places(planned(story, add=(NewNode(slots=2),))) == [("a", 0), ("new1", 1)]


def test_agents_without_a_script_wait_for_one_more_of_their_kind() -> None:
    story = Story(min_nodes=2)
    story.join("a", 1, wants_command=True)
    found = planned(story, add=(NewNode(slots=2),))
    assert found.state is GroupState.WAITING
    assert found.reason == waiting.no_command("g", ["a", "new1"])


def test_a_finished_group_begins_anew_with_the_same_settings() -> None:
    story = uneven(min_nodes=3)
    story.succeeded("gpu1", "gpu2", "gpu3")
    with pytest.raises(GroupFinishing):
        planned(story, add=(NewNode(slots=1),))
    for node_id in ("gpu1", "gpu2", "gpu3", "gpu4"):
        story.leave(node_id)
    found = planned(story, add=(NewNode(slots=1), NewNode(slots=2, node_id="gpu2")))
    assert found.reason == waiting.too_few(ready(["gpu2", "new1"], 3), 1, until=found.reason.until)
    found = planned(story, add=tuple(NewNode(slots=slots) for slots in (1, 2, 3)))
    assert (found.round, found.was_round, places(found)) == (2, 0, [("new1", 0), ("new2", 1), ("new3", 3)])
