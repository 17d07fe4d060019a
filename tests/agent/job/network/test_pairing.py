"""Who is measured with whom, and who is to blame."""

import itertools
import random

import pytest

from hetagent.job.network.pairing import Pair, again, neighbours, per_s, slow_pairs, summary, verdict

GBIT = 1e9 / 8
NAMES = {rank: f"gpu{rank}" for rank in range(64)}


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

    def blamed(self) -> list[str]:
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
    assert world(4).blamed() == []
    [text] = world(8, bad={3: GBIT}).blamed()
    assert text == (
        "the network of node gpu3 is slow: 1 Gbit/s with gpu2, and 1 Gbit/s with gpu1; 10 Gbit/s is usual here: "
        "check its cables, its switch port and its --interface"
    )
    assert (
        world(4, bad={3: 0.0})
        .blamed()[0]
        .startswith(
            "the network of node gpu3 is slow: nothing with gpu2, and nothing with gpu1; 10 Gbit/s is usual here"
        )
    )


def test_a_way_between_two_is_named_where_neither_is_to_blame() -> None:
    assert world(6, ways={(2, 3): GBIT / 10}).blamed() == [
        "gpu2 and gpu3 reach 100 Mbit/s between them; 10 Gbit/s is usual here: check the way between them"
    ]
    assert world(2, ways={(0, 1): 0.0}).blamed() == [
        "gpu0 and gpu1 reach nothing between them: check the way between them"
    ]
    assert world(2, ways={(0, 1): 1.0}).blamed() == [], "with one pair nobody knows what is usual"


def test_every_slow_node_is_found_and_no_other_as_long_as_most_are_fast() -> None:
    rng = random.Random(16)
    for _ in range(500):
        count = rng.randint(3, 40)
        bad = {
            rank: rng.choice([0.0, GBIT, 2 * GBIT]) for rank in rng.sample(range(count), max(1, count // 4))
        }
        named = {
            text.split()[4] for text in world(count, bad=bad).blamed() if text.startswith("the network of")
        }
        assert named == {NAMES[rank] for rank in bad}, (count, bad)


def test_rates_as_people_know_them() -> None:
    assert [per_s(rate) for rate in (1.175e9, 1.25e7, 100)] == ["9.4 Gbit/s", "100 Mbit/s", "0.8 kbit/s"]
    assert summary({(0, 1): 1.25e9}) == "10 Gbit/s between the two nodes"
    assert summary({(0, 1): 1.25e9, (2, 3): 1.25e8}) == "1 Gbit/s to 10 Gbit/s between neighbours"
    assert summary({(0, 1): None}) == "no two neighbours reached each other"
