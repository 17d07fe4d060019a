"""Who is measured with whom, and who is to blame."""

import itertools
import random

import pytest

from hetagent.job.network.pairing import Pair, again, neighbours, slow_pairs, spread, verdict
from hetrdzv.protocol.rooms.network import MOST_SLOW, NetworkFound, Reached, SlowLink, SlowWay, Spread

GBIT = 1e9 / 8
NAMES = {rank: f"gpu{rank}" for rank in range(64)}


def link(rank: int, rate: float | None) -> SlowLink:
    """Of gpu3, whose neighbour is gpu2, as it is with gpu1, too."""
    first, again = (Reached(node_id=name, rate=rate) for name in ("gpu2", "gpu1"))
    return SlowLink(node_id=NAMES[rank], first=first, again=again, usual=10 * GBIT)


def world(
    count: int, *, bad: dict[int, float] | None = None, ways: dict[Pair, float] | None = None
) -> "World":
    return World(count, bad or {}, ways or {})


class World:
    """A network in which some nodes, and some ways between two, are slow (bytes/s); 0: nothing comes through."""

    def __init__(self, count: int, bad: dict[int, float], ways: dict[Pair, float]) -> None:
        self.count, self.bad, self.ways = count, bad, ways

    def rate(self, pair: Pair) -> float | None:
        one, other = sorted(pair)
        both = self.bad.get(one, 10 * GBIT), self.bad.get(other, 10 * GBIT)
        return min(*both, self.ways.get((one, other), 10 * GBIT)) or None

    def blamed(self) -> NetworkFound:
        first = self.measure(neighbours(range(self.count)))
        second = self.measure(again(first))
        return verdict(first, second, NAMES)

    def measure(self, steps: list[list[Pair]]) -> dict[Pair, float | None]:
        for step in steps:
            busy = list(itertools.chain(*step))
            assert len(busy) == len(set(busy)), "a node is measured with one other at a time"
        return {pair: self.rate(pair) for step in steps for pair in step}


@pytest.mark.parametrize(
    ("count", "steps"),
    [
        (0, []),
        (1, []),
        (2, [[(0, 1)]]),
        (3, [[(0, 1)], [(1, 2)], [(2, 0)]]),
        (4, [[(0, 1), (2, 3)]]),
        (5, [[(0, 1), (2, 3)], [(4, 0)]]),
    ],
)
def test_neighbours_are_measured_first(count: int, steps: list[list[Pair]]) -> None:
    assert neighbours(range(count)) == steps


def test_slow_ones_are_measured_with_fast_ones() -> None:
    first = {(0, 1): 10.0, (2, 3): 1.0, (4, 5): 9.0, (6, 7): None}
    assert slow_pairs(first) == {(2, 3), (6, 7)}
    assert again(first) == [[(2, 0), (3, 1), (6, 4), (7, 5)]]
    odd = {(0, 1): 10.0, (2, 3): 10.0, (4, 0): 1.0}
    assert again(odd) == [[(4, 1)]], "who was fast with one is not at fault; it is measured with another"
    most = {(0, 1): 10.0, (2, 3): 10.0, (4, 5): 1.0, (6, 7): 1.0, (8, 9): 1.0}
    assert again(most) == [], "most are like that"
    assert again({(0, 1): None, (2, 3): None}) == []
    assert again({(0, 1): 1.0}) == []


def test_who_is_slow_twice_is_named() -> None:
    assert world(4).blamed() == NetworkFound()
    assert world(8, bad={3: GBIT}).blamed() == NetworkFound(links=(link(3, GBIT),))
    assert world(4, bad={3: 0.0}).blamed() == NetworkFound(links=(link(3, None),))


def test_a_way_between_two_is_named_where_neither_is_to_blame() -> None:
    slow = Reached(node_id="gpu3", rate=GBIT / 10)
    way = SlowWay(node_id="gpu2", reached=slow, usual=10 * GBIT)
    assert world(6, ways={(2, 3): GBIT / 10}).blamed() == NetworkFound(ways=(way,))
    cut = SlowWay(node_id="gpu0", reached=Reached(node_id="gpu1"))
    assert world(2, ways={(0, 1): 0.0}).blamed() == NetworkFound(ways=(cut,))
    assert world(2, ways={(0, 1): 1.0}).blamed() == NetworkFound(), "with one pair nobody knows what is usual"


def test_every_slow_node_is_found_and_no_other_as_long_as_most_are_fast() -> None:
    rng = random.Random(16)
    for _ in range(500):
        count = rng.randint(3, 40)
        bad = {
            rank: rng.choice([0.0, GBIT, 2 * GBIT]) for rank in rng.sample(range(count), max(1, count // 4))
        }
        named = [one.node_id for one in world(count, bad=bad).blamed().links]
        assert named == [NAMES[rank] for rank in sorted(bad)[:MOST_SLOW]], (count, bad)


def test_the_first_few_are_named() -> None:
    bad = dict.fromkeys(range(6, 12), GBIT)
    ways = {(one, one + 1): GBIT for one in range(12, 24, 2)}
    found = world(60, bad=bad, ways=ways).blamed()
    assert [one.node_id for one in found.links] == [NAMES[rank] for rank in range(6, 12)]
    assert [one.node_id for one in found.ways] == ["gpu12", "gpu14"]


def test_the_slowest_and_the_fastest_pair() -> None:
    assert spread({(0, 1): 3.0}) == Spread(pairs=1, slowest=3.0, fastest=3.0)
    assert spread({(0, 1): 3.0, (2, 3): 2.0, (4, 0): None}) == Spread(pairs=3, slowest=2.0, fastest=3.0)
    assert spread({(0, 1): None}) == Spread(pairs=1)
