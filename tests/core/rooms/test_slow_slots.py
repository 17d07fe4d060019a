"""Slots that are far slower than their kind, named across nodes; speeds that cannot be compared."""

import pytest

from hetrdzv.core.model import Node
from hetrdzv.core.rooms.shares.slow_slots import slow_slots, unlike_speeds
from hetrdzv.protocol.facts.who import Nodes, Ranks
from hetrdzv.protocol.rooms.shares import Alike, Measured, MeasuredIn, MeasuredUnlike, NotMeasured
from tests.core.driver import Story

L40S = "NVIDIA L40S"


def on(*devices: str, dtype: str = "float16", each: int = 1) -> Measured:
    return Measured(dtype=dtype, on=tuple(Alike(slots=each, device=device) for device in devices))


def node(node_id: str, *speeds: float, measured: Measured | None = None, slots: int | None = None) -> Node:
    if speeds and measured is None:
        measured = on(L40S, each=len(speeds))
    many = len(speeds) if slots is None else slots
    return Node(
        node_id=node_id, incarnation="1", slots=many, address="h", port=1, measured=measured, speeds=speeds
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
    assert slow_slots([node("gpu1", 112), node("gpu2", 8, measured=on("Tesla T4"))]) == ()
    assert slow_slots([node("gpu1", 112), node("gpu2", 30, measured=on(L40S, dtype="float32"))]) == ()
    mixed = on(L40S, "Tesla T4")
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
    kinds = [on(letter) for letter in "abcdefg"]
    nodes = [
        node(f"{n}{speed}", speed, measured=kind) for n, kind in enumerate(kinds) for speed in (9.0, 9.5, 1.0)
    ]
    assert len(slow_slots(nodes)) == 3


def test_what_does_not_tell_of_all_slots_is_not_compared() -> None:
    usual = [node("a", 112, 112), node("b", 112, 112)]
    assert [one.device for one in slow_slots([*usual, node("c", 8, 8)])] == [L40S]
    for measured in (on(L40S), on(L40S, each=3), on(L40S, L40S, L40S), on()):
        assert slow_slots([*usual, node("c", 8, 8, measured=measured)]) == ()


def test_speeds_that_some_lack_or_that_differ_in_dtype() -> None:
    assert unlike_speeds([node("a", 1), node("b", 2)]) == ()
    assert unlike_speeds([node("a", slots=1), node("b", slots=1)]) == (), "nobody asked for it"
    assert unlike_speeds([node("a", 1), node("b", slots=1), node("c", slots=1)]) == (
        NotMeasured(nodes=Nodes.of(["b", "c"])),
    )
    assert unlike_speeds([node("a", 1), node("b", 2, measured=on("CPU", dtype="float32")), node("c", 1)]) == (
        MeasuredUnlike(
            dtypes=(
                MeasuredIn(dtype="float16", nodes=Nodes.of(["a", "c"])),
                MeasuredIn(dtype="float32", nodes=Nodes.of(["b"])),
            )
        ),
    )


def test_a_round_says_so() -> None:
    story = Story()
    story.join("a", speeds=(100.0,), measured=on(L40S))
    story.join("b", speeds=(20.0,), measured=on(L40S))
    story.wait(11)
    assert story.group.round is not None
    assert [one.kind for one in story.group.round.warnings] == ["slow_slots"]
