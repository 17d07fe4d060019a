"""Work is bounded by what is kept: what one request can make the core do, counted in steps, not in seconds."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hetrdzv.core.model import Node
from hetrdzv.core.selection import best_set
from hetrdzv.core.selection.best_set import WorldSizes
from hetrdzv.core.selection.select import MOST_TRIED, Selection, Shortfall, ShortfallKind, select
from hetrdzv.protocol.settings import GroupSpec
from tests.support.every_set import group_of


def node(number: int, slots: int, **labels: str) -> Node:
    return Node(node_id=f"n{number}", incarnation="i", slots=slots, address="10.0.0.1", port=1, labels=labels)


@pytest.mark.parametrize("apart", [False, True], ids=["", "some do not reach others"])
@pytest.mark.parametrize("unit", [None, "rack"])
@pytest.mark.parametrize("most", [1, 64, 1024])
def test_a_selection_among_many_unlike_nodes_looks_at_few(
    unit: str | None, most: int, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    exact = best_set._exact

    def counted(items: Sequence[best_set.Item], worlds: WorldSizes, *more: Any) -> list[best_set.Item] | None:
        assert best_set._is_small(items, worlds)
        calls.append(len(items))
        return exact(items, worlds, *more)

    monkeypatch.setattr(best_set, "_exact", counted)
    compared: list[object] = []
    monkeypatch.setattr(
        best_set.Item, "__eq__", lambda one, other: compared.append(other) or one is other
    )  # to compare all that may be master with all that were found would be quadratic
    dice = random.Random(most)
    ready = [
        node(
            number,
            dice.randint((most + 1) // 2, most),
            rack=f"r{number // 3}",
            **{"public": "yes"} if number % 2 else {},
        )
        for number in range(999)
    ]
    world = sum(one.slots for one in ready) // 2
    spec = GroupSpec(master="public=yes", unit=unit, max_world_size=world, min_nodes=2, max_nodes=700)
    pairs = (
        frozenset((f"n{a}", f"n{b}") for a in range(0, 999, 50) for b in range(1, 999, 7))
        if apart
        else frozenset()
    )
    masters = frozenset(one.node_id for one in ready if one.labels.get("public"))
    # so that the first choice has none of them
    answer = select(group_of(spec, unreachable=pairs, used_last=masters), ready)
    assert len(calls) <= 3 * (1 + MOST_TRIED) ** 2
    assert len(compared) <= len(ready)
    assert isinstance(answer, Selection)
    assert world - 3 * most < answer.world_size <= world
    assert 2 <= len(answer.nodes) <= 700
    assert any(one.labels.get("public") for one in answer.nodes)
    racks = {one.labels["rack"] for one in answer.nodes}
    assert unit is None or len(answer.nodes) == 3 * len(racks)


def test_world_sizes_are_walked_only_as_far_as_the_nodes_to_choose_from_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An odd number of slots is taken anyway, the last nodes have even ones: no multiple of 2 is found at first."""
    walked: list[int] = []
    downward = WorldSizes.sizes_down_from

    def counted(worlds: WorldSizes, size: int) -> Iterator[int]:
        for each in downward(worlds, size):
            walked.append(each)
            yield each

    monkeypatch.setattr(WorldSizes, "sizes_down_from", counted)
    items = [best_set.Item(f"n{number}", 1023 if number < 501 else 1024) for number in range(1_000)]
    found = best_set.best_set(items, WorldSizes.of(GroupSpec(world_size_multiple=2)))
    assert found is not None
    assert sum(item.slots for item in found) == 500 * 1023 + 499 * 1024
    assert len(walked) <= best_set.MOST_EXACT * 1024


@pytest.mark.parametrize("unit", [None, "rack"])
@pytest.mark.parametrize(("ready", "most"), [(1_000, 500), (2_000, None), (4_000, 2_000), (6_000, 3_000)])
def test_a_world_is_found_among_many_though_all_around_its_end_are_of_one_size(
    ready: int, most: int | None, unit: str | None
) -> None:
    """The larger ones come first: no number of those at the end made up for what was taken before."""
    spec = GroupSpec(min_nodes=2, max_nodes=most, unit=unit, world_size_multiple=48)
    nodes = [node(number, 1 + number % 7, rack=f"r{number // 4}") for number in range(ready)]
    answer = select(group_of(spec), nodes)
    assert isinstance(answer, Selection)
    assert answer.world_size % 48 == 0
    assert len(answer.nodes) >= (most or ready) * 0.97
    if unit is None:
        largest = sum(sorted((one.slots for one in nodes), reverse=True)[:most])
        assert answer.world_size > largest - 100


@pytest.mark.parametrize(
    ("slots", "ready", "most", "multiple", "largest"), [(1, 200, 120, 64, 64), (2, 400, 133, 100, 200)]
)
def test_a_world_is_found_far_below_what_fits(
    slots: int, ready: int, most: int, multiple: int, largest: int
) -> None:
    spec = GroupSpec(max_nodes=most, world_size_multiple=multiple)
    answer = select(group_of(spec), [node(number, slots) for number in range(ready)])
    assert isinstance(answer, Selection)
    assert answer.world_size == largest


def test_a_unit_that_must_be_taken_is_not_larger_than_max_nodes() -> None:
    """Its nodes alone made a round of more nodes than there may be."""
    large = [node(number, 1, rack="a", public="yes") for number in range(4)]
    small = [node(number, 1, rack="b") for number in range(4, 6)]
    answer = select(group_of(GroupSpec(unit="rack", master="public=yes", max_nodes=3)), [*large, *small])
    assert isinstance(answer, Shortfall)
    assert answer.kind is ShortfallKind.ALLOWED_MASTER
