"""The best set of nodes for bounds in slots and units, against a second implementation that tries every set."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hetrdzv.core.model import Node
from hetrdzv.core.selection import best_set
from hetrdzv.core.selection.best_set import WorldSizes
from hetrdzv.core.selection.rank_order import may_be_master
from hetrdzv.core.selection.select import (
    MAX_MASTERS_EVALUATED,
    Selection,
    Shortfall,
    ShortfallKind,
    select_nodes,
)
from hetrdzv.protocol.errors import InvalidSpec
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key
from tests.support.every_set import Case, best_of_all, fits, group_of
from tests.support.needs import ALL

EVERYTHING = os.environ.get(ALL) == "1"
CASES = 20_000 if EVERYTHING else 400
"""How many random selections are compared."""

MOST_NODES = 12 if EVERYTHING else 9


def node(number: int, slots: int, rack: str | None = None, public: bool = False) -> Node:
    labels = {"public": "yes"} if public else {}
    return Node(
        node_id=f"n{number}",
        incarnation=f"n{number}-1",
        slots=slots,
        address="10.0.0.1",
        port=4000,
        labels=labels if rack is None else labels | {"rack": rack},
    )


def chosen(answer: Selection | Shortfall) -> list[str] | None:
    """The node ids of a selection in natural order; None where there is none."""
    if isinstance(answer, Shortfall):
        return None
    return sorted((node.node_id for node in answer.nodes), key=natural_key)


def random_case(rng: random.Random) -> Case:
    sizes = rng.choice(((1,), (3,), (1, 2), (2, 4), (1, 2, 4, 8), (3, 5, 7), (1, 3), tuple(range(1, 9))))
    numbers = rng.sample(range(1, 30), rng.randint(1, MOST_NODES))
    ready = [node(number, rng.choice(sizes)) for number in numbers]
    total = sum(one.slots for one in ready)
    least = rng.choice((None, None, rng.randint(1, total)))
    most = rng.choice((None, rng.randint(least or 1, total + 4)))
    multiple = rng.choice((1, 2, 3, 4, 4, 6))
    fewest = rng.choice((1, 1, rng.randint(1, len(ready))))
    many = rng.choice((None, None, rng.randint(fewest, len(ready) + 1)))
    try:
        spec = GroupSpec(
            min_world_size=least,
            max_world_size=most,
            world_size_multiple=multiple,
            min_nodes=fewest,
            max_nodes=many,
        )
    except InvalidSpec:
        return random_case(rng)
    if not spec.counts_slots:
        return random_case(rng)
    sticky_order = [f"n{number}" for number in range(1, 30) if rng.random() < 0.4]
    rng.shuffle(sticky_order)
    last = dict.fromkeys((name for name in sticky_order if rng.random() < 0.7), 1)
    late = [one.node_id for one in ready if rng.random() < 0.15]
    return Case(group_of(spec, last, sticky_order=sticky_order, used_last=late), ready)


def test_the_best_set_is_chosen() -> None:
    rng = random.Random(14)
    shortfalls = 0
    for number in range(CASES):
        case = random_case(rng)
        expected = best_of_all(case)
        shortfalls += expected is None
        assert chosen(case.answer()) == expected, f"case {number}: {case}"
    print(
        f"best sets against trying every set: {CASES} cases of up to {MOST_NODES} nodes agree, {shortfalls} of them "
        f"without any set"
    )


@pytest.mark.parametrize("most", [4, 6])
def test_of_many_nodes_a_set_within_all_bounds_is_found(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with more nodes than `MAX_EXACT_CANDIDATES`: not the best set, but an allowed one, and rarely none."""
    monkeypatch.setattr(best_set, "MAX_EXACT_CANDIDATES", most)
    rng = random.Random(16)
    found = missed = 0
    for _ in range(CASES // 2):
        case = random_case(rng)
        answer, expected = case.answer(), best_of_all(case)
        if isinstance(answer, Shortfall):
            missed += expected is not None
            continue
        found += 1
        assert fits(case.group.spec, answer.nodes), case
        assert len(set(chosen(answer) or ())) == len(answer.nodes)
    assert missed <= found // 4


def test_a_master_is_taken_where_the_best_set_cannot_be_found_for_certain() -> None:
    dice = random.Random(1)
    items = [best_set.Candidate(f"n{number:02}", dice.randint(1, 1024)) for number in range(64)]
    worlds = best_set.WorldSizes(least=16000, most=16384, multiple=7, min_nodes=20, max_nodes=40)
    found = best_set.choose_best_set(items[:63], worlds, items[63:])
    assert found is not None
    assert "n63" in {item.name for item in found}
    assert worlds.allows(sum(item.slots for item in found))


def random_spec(dice: random.Random) -> GroupSpec:
    try:
        return GroupSpec(
            unit="rack",
            master=dice.choice((None, "public=yes")),
            world_size_multiple=dice.choice((1, 1, 2, 3, 4)),
            min_world_size=dice.choice((None, None, 5)),
            max_world_size=dice.choice((None, None, dice.randint(4, 30))),
            min_nodes=dice.choice((1, 1, 3)),
            max_nodes=dice.choice((None, dice.randint(3, 8))),
        )
    except InvalidSpec:
        return random_spec(dice)


@pytest.mark.parametrize("apart", [False, True])
def test_the_best_set_of_units_is_taken(apart: bool) -> None:
    """Brute force, with all ways open: the very set. With some closed: the largest world that a master serves."""
    seen: Counter[str] = Counter()
    for seed in range(CASES):
        dice = random.Random(seed)
        nodes = [
            node(number, dice.choice((1, 2, 4)), dice.choice((*"abc", None)), dice.random() < 0.3)
            for number in range(dice.randint(1, 8))
        ]
        pairs = [(one.node_id, other.node_id) for one in nodes for other in nodes if one is not other]
        names = [one.node_id for one in nodes]
        case = Case(
            group_of(
                random_spec(dice),
                sticky_order=[name for name in names if dice.random() < 0.6],
                last=dict.fromkeys((name for name in names if dice.random() < 0.5), 1),
                unreachable=dice.sample(pairs, min(len(pairs), 4)) if apart else (),
                used_last=[name for name in names if dice.random() < 0.1],
            ),
            nodes,
        )
        answer = case.answer()
        seen["taken" if isinstance(answer, Selection) else answer.kind] += 1
        if not apart:
            found = [one.node_id for one in answer.nodes] if isinstance(answer, Selection) else None
            best = best_of_all(case)
            assert found is None or sorted(found, key=natural_key) == best, (
                f"seed {seed}: {found}, not {best}"
            )
            assert (found is None) == (best is None), f"seed {seed}: {answer}, not {best}"
            continue
        served = [largest for one in nodes if (largest := best_of_all(serving(case, one))) is not None]
        worlds = [sum(one.slots for one in nodes if one.node_id in largest) for largest in served]
        world = answer.world_size if isinstance(answer, Selection) else 0
        assert world == max(worlds, default=0), f"seed {seed}: {world}, not {worlds}"
    assert seen.keys() >= {
        "taken",
        ShortfallKind.WORLD,
        ShortfallKind.MASTER if apart else ShortfallKind.ALLOWED_MASTER,
    }, seen


def serving(case: Case, master: Node) -> Case:
    """The same, with this master, and without the units of which a node cannot reach it."""
    cut_off = {name for name, one in case.group.unreachable if one == master.node_id}
    lost = {one.labels.get("rack") for one in case.ready if one.node_id in cut_off} - {None}
    there = [one for one in case.ready if one.node_id not in cut_off and one.labels.get("rack") not in lost]
    spec = case.group.spec
    if not may_be_master(spec, master) or master not in there:
        return replace(case, ready=())
    return replace(case, group=replace(case.group, spec=replace(spec, master=master.node_id)), ready=there)


# -- work is bounded by what there is, counted in steps, not in seconds --------------------------------------


@pytest.mark.parametrize("apart", [False, True], ids=["", "some do not reach others"])
@pytest.mark.parametrize("unit", [None, "rack"])
@pytest.mark.parametrize("most", [1, 64, 1024])
def test_a_selection_among_many_unlike_nodes_looks_at_few(
    unit: str | None, most: int, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    exact = best_set._choose_exactly

    def counted(
        items: Sequence[best_set.Candidate], worlds: WorldSizes, *more: Any
    ) -> list[best_set.Candidate] | None:
        assert best_set._can_choose_exactly(items, worlds)
        calls.append(len(items))
        return exact(items, worlds, *more)

    monkeypatch.setattr(best_set, "_choose_exactly", counted)
    dice = random.Random(most)
    ready = [
        node(number, dice.randint((most + 1) // 2, most), f"r{number // 3}", number % 2 == 1)
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
    answer = select_nodes(group_of(spec, unreachable=pairs, used_last=masters), ready)
    assert len(calls) <= 3 * (1 + MAX_MASTERS_EVALUATED) ** 2
    assert isinstance(answer, Selection)
    assert world - 3 * most < answer.world_size <= world
    assert 2 <= len(answer.nodes) <= 700
    assert any(one.labels.get("public") for one in answer.nodes)
    racks = {one.labels["rack"] for one in answer.nodes}
    assert unit is None or len(answer.nodes) == 3 * len(racks)


@pytest.mark.parametrize("unit", [None, "rack"])
@pytest.mark.parametrize(("ready", "most"), [(1_000, 500), (2_000, None), (4_000, 2_000), (6_000, 3_000)])
def test_a_world_is_found_among_many_though_all_around_its_end_are_of_one_size(
    ready: int, most: int | None, unit: str | None
) -> None:
    """The larger ones come first: no number of those at the end made up for what was taken before."""
    spec = GroupSpec(min_nodes=2, max_nodes=most, unit=unit, world_size_multiple=48)
    nodes = [node(number, 1 + number % 7, rack=f"r{number // 4}") for number in range(ready)]
    answer = select_nodes(group_of(spec), nodes)
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
    answer = select_nodes(group_of(spec), [node(number, slots) for number in range(ready)])
    assert isinstance(answer, Selection)
    assert answer.world_size == largest
