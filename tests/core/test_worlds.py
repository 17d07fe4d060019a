"""The best set of nodes for bounds in slots, against a second implementation that tries every set there is."""

import os
import random
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import pytest

from hetrdzv.core import subset
from hetrdzv.core.model import Node
from hetrdzv.core.order import natural_key
from hetrdzv.core.selection import Lack, Selection, Shortfall, select
from hetrdzv.core.spec import GroupSpec
from hetrdzv.core.worlds import Worlds
from hetrdzv.protocol.errors import InvalidSpec
from tests.support.needs import ALL, show

EVERYTHING = os.environ.get(ALL) == "1"
CASES = 20_000 if EVERYTHING else 600
"""How many random selections are compared."""

MOST_NODES = 12 if EVERYTHING else 9


def node(node_id: str, slots: int) -> Node:
    return Node(node_id=node_id, incarnation=f"{node_id}-1", slots=slots, address="10.0.0.1", port=4000)


@dataclass(frozen=True)
class Case:
    """What `select` is asked."""

    spec: GroupSpec
    ready: Sequence[Node]
    seats: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    unreachable: AbstractSet[tuple[str, str]] = frozenset()
    taken_last: AbstractSet[str] = frozenset()

    def answer(self) -> Selection | Shortfall:
        return select(self.spec, self.ready, self.seats, self.last, self.unreachable, 0, self.taken_last)


def chosen(answer: Selection | Shortfall) -> list[str] | None:
    """The node ids of a selection in natural order; None where there is none."""
    if isinstance(answer, Shortfall):
        return None
    return sorted((node.node_id for node in answer.nodes), key=natural_key)


def random_case(rng: random.Random) -> Case:
    sizes = rng.choice(((1,), (3,), (1, 2), (2, 4), (1, 2, 4, 8), (3, 5, 7), (1, 3), tuple(range(1, 9))))
    names = [f"n{number}" for number in rng.sample(range(1, 30), rng.randint(1, MOST_NODES))]
    ready = [node(name, rng.choice(sizes)) for name in names]
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
    if not spec.sized:
        return random_case(rng)
    seats = [f"n{number}" for number in range(1, 30) if rng.random() < 0.4]
    rng.shuffle(seats)
    last = tuple(name for name in seats if rng.random() < 0.7)
    late = frozenset(name for name in names if rng.random() < 0.15)
    return Case(spec, ready, tuple(seats), last, frozenset(), late)


def best_of_all(case: Case) -> list[str] | None:
    """Tries every set. The smallest of (-world, ranks taken last, that move, without a place, nodes, names) is best."""
    spec = case.spec
    best: tuple[object, ...] | None = None
    nodes = sorted(case.ready, key=lambda one: natural_key(one.node_id))
    for mask in range(1, 1 << len(nodes)):
        found = [one for place, one in enumerate(nodes) if mask >> place & 1]
        world = sum(one.slots for one in found)
        if world % spec.world_size_multiple or not (spec.min_world_size or 1) <= world:
            continue
        if spec.max_world_size is not None and world > spec.max_world_size:
            continue
        if len(found) < spec.min_nodes or (spec.max_nodes is not None and len(found) > spec.max_nodes):
            continue

        def ranks(of: Iterable[str], among: Sequence[Node] = found) -> int:
            return sum(one.slots for one in among if one.node_id in of)

        places = tuple(place for place in range(len(nodes)) if mask >> place & 1)
        key = (
            -world,
            ranks(case.taken_last),
            world - ranks(case.last),
            world - ranks(case.seats),
            len(found),
            places,
        )
        if best is None or key < best:
            best = key
    if best is None:
        return None
    return [nodes[place].node_id for place in best[-1]]  # type: ignore[attr-defined]


def test_the_best_set_is_chosen() -> None:
    rng = random.Random(14)
    shortfalls = 0
    for number in range(CASES):
        case = random_case(rng)
        expected = best_of_all(case)
        shortfalls += expected is None
        assert chosen(case.answer()) == expected, f"case {number}: {case}"
    show(
        f"best sets against trying every set: {CASES} cases of up to {MOST_NODES} nodes agree, {shortfalls} of them "
        f"without any set"
    )


def test_permutations_and_more_nodes() -> None:
    """The order in which nodes came does not matter, and one more never makes the world smaller."""
    rng = random.Random(15)
    for _ in range(CASES // 4):
        case = random_case(rng)
        answer = case.answer()
        shuffled = rng.sample(list(case.ready), len(case.ready))
        again = Case(case.spec, shuffled, case.seats, case.last, case.unreachable, case.taken_last).answer()
        assert chosen(again) == chosen(answer)
        more = [*case.ready, node("n99", rng.randint(1, 8))]
        larger = Case(case.spec, more, case.seats, case.last, case.unreachable, case.taken_last).answer()
        if isinstance(answer, Selection):
            assert isinstance(larger, Selection)
            assert larger.world_size >= answer.world_size


@pytest.mark.parametrize("work", [1, 50, 2_000])
def test_what_is_too_much_work_is_still_allowed(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subset, "MOST_WORK", work)
    rng = random.Random(16)
    worse = 0
    for _ in range(CASES // 4):
        case = random_case(rng)
        answer, worlds = case.answer(), Worlds.of(case.spec)
        expected = best_of_all(case)
        if isinstance(answer, Shortfall):
            worse += expected is not None
            continue
        assert worlds.allows(answer.world_size)
        assert case.spec.min_nodes <= len(answer.nodes) <= (case.spec.max_nodes or 99)
        assert len(set(chosen(answer) or ())) == len(answer.nodes)
        worse += chosen(answer) != expected
    print(work, worse)


def test_who_reaches_the_master_makes_the_largest_world() -> None:
    rng = random.Random(17)
    for _ in range(CASES // 4):
        case = random_case(rng)
        names = [one.node_id for one in case.ready]
        pairs = frozenset((a, b) for a in names for b in names if a != b and rng.random() < 0.3)
        cut = Case(case.spec, case.ready, case.seats, case.last, pairs, case.taken_last)
        answer = cut.answer()
        largest = 0
        for master in names:
            reach = [one for one in case.ready if (one.node_id, master) not in pairs]
            for mask in range(1 << len(reach)):
                found = [one for place, one in enumerate(reach) if mask >> place & 1]
                world = sum(one.slots for one in found)
                if world > largest and any(one.node_id == master for one in found):
                    bounds = (case.spec.min_nodes, case.spec.max_nodes or 99)
                    if Worlds.of(case.spec).allows(world) and bounds[0] <= len(found) <= bounds[1]:
                        largest = world
        if isinstance(answer, Shortfall):
            assert largest == 0 or answer.lack is not Lack.MASTER, cut
        else:
            assert answer.world_size == largest, cut
            if pairs:
                assert answer.master is not None
                assert not any((one.node_id, answer.master) in pairs for one in answer.nodes)
