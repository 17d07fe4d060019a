"""Slots that are far slower than their kind, named across nodes; speeds that cannot be compared."""

import pytest

from hetrdzv.core.model import Node
from hetrdzv.core.rooms.shares.slow_slots import kinds_of, slow_slots, unlike_speeds
from hetrdzv.protocol.facts.who import Nodes, Ranks
from hetrdzv.protocol.rooms.shares import MeasuredIn, MeasuredUnlike, NotMeasured
from tests.core.driver import Story

L40S = "float16 on {} x NVIDIA L40S"


def node(node_id: str, *speeds: float, measured: str = L40S, slots: int | None = None) -> Node:
    device = {"measured": measured.format(len(speeds))} if speeds else {}
    many = len(speeds) if slots is None else slots
    return Node(
        node_id=node_id, incarnation="1", slots=many, address="h", port=1, device=device, speeds=speeds
    )


def test_who_is_slow_is_named_with_its_slots() -> None:
    (found,) = slow_slots([node("gpu1", 112, 111), node("gpu2", 113, 60), node("gpu10", 50, 61)])
    assert (found.device, found.dtype, found.more) == ("NVIDIA L40S", "float16", 0)
    assert [(one.node_id, one.local_ranks) for one in found.nodes] == [
        ("gpu2", Ranks.of([1])),
        ("gpu10", None),
    ]
    assert [one.slower_by for one in found.nodes] == pytest.approx([1 - 60 / 111, 1 - 50 / 111])


def test_unlike_devices_and_dtypes_are_not_compared() -> None:
    assert slow_slots([node("gpu1", 112), node("gpu2", 8, measured="float16 on 1 x Tesla T4")]) == ()
    assert slow_slots([node("gpu1", 112), node("gpu2", 30, measured="float32 on 1 x NVIDIA L40S")]) == ()
    mixed = "float16 on 1 x NVIDIA L40S; 1 x Tesla T4"
    [found] = slow_slots(
        [node("a", 112, 8, measured=mixed), node("b", 112), node("c", 112, 3, measured=mixed)]
    )
    assert (found.device, [one.node_id for one in found.nodes]) == ("Tesla T4", ["c"])
    assert slow_slots([node("gpu1", 112, 30)]) == (), "one node: its own agent says so"
    assert slow_slots([node("gpu1", 112), node("gpu2", 85)]) == (), "a quarter is not far"
    assert slow_slots([node("gpu1", 112), node("gpu2")]) == ()


def test_many_slow_nodes_are_counted() -> None:
    bad = [node(f"bad{number}", *[10.0] * 8) for number in range(1, 400)]
    [found] = slow_slots([*(node(f"gpu{number}", *[100.0] * 8) for number in range(1000)), *bad])
    assert [one.node_id for one in found.nodes] == ["bad1", "bad2", "bad3"]
    assert found.more == 396
    kinds = [f"float16 on 1 x {letter}" for letter in "abcdefg"]
    nodes = [
        node(f"{n}{speed}", speed, measured=kind) for n, kind in enumerate(kinds) for speed in (9.0, 9.5, 1.0)
    ]
    assert len(slow_slots(nodes)) == 3


@pytest.mark.parametrize(
    ("measured", "slots", "count"),
    [
        ("float16 on 2 x A; 1 x B", 3, 3),
        ("float16 on 2 x A; 1 x B", 4, 0),
        ("float16 on 99999 x A", 2, 0),
        ("float16 on 9999999999 x A", 2, 0),
        ("float16 on -1 x A; 3 x B", 2, 0),
        ("float16 on 2 x AMD EPYC, 1 thread", 2, 2),
        ("float16 on 2 x ", 2, 0),
        ("anything", 2, 0),
        ("", 2, 0),
    ],
)
def test_what_a_node_says_it_has_measured(measured: str, slots: int, count: int) -> None:
    assert len(kinds_of(measured, slots)) == count


def test_speeds_that_some_lack_or_that_differ_in_dtype() -> None:
    assert unlike_speeds([node("a", 1), node("b", 2)]) == ()
    assert unlike_speeds([node("a", slots=1), node("b", slots=1)]) == (), "nobody asked for it"
    assert unlike_speeds([node("a", 1), node("b", slots=1), node("c", slots=1)]) == (
        NotMeasured(nodes=Nodes.of(["b", "c"])),
    )
    assert unlike_speeds([node("a", 1), node("b", 2, measured="float32 on {} x CPU"), node("c", 1)]) == (
        MeasuredUnlike(
            dtypes=(
                MeasuredIn(dtype="float16", nodes=Nodes.of(["a", "c"])),
                MeasuredIn(dtype="float32", nodes=Nodes.of(["b"])),
            )
        ),
    )


def test_a_round_says_so() -> None:
    story = Story()
    story.join("a", speeds=(100.0,), device={"measured": L40S.format(1)})
    story.join("b", speeds=(20.0,), device={"measured": L40S.format(1)})
    story.wait(11)
    assert story.group.round is not None
    assert [one.kind for one in story.group.round.warnings] == ["slow_slots"]
