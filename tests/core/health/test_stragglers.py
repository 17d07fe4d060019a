"""Who slows a round down (core/health/stragglers.py)."""

import random

import pytest

from hetrdzv.core.health.stragglers import Waiting, stragglers
from hetrdzv.protocol.facts.warnings import Straggler
from hetrdzv.protocol.facts.who import Ranks


def shares(*found: float, types: str = "", looks: int = 1_000) -> list[Waiting]:
    """Workers of two ranks per node; `types` has a letter per rank."""
    return [
        Waiting(rank, f"gpu{rank // 2 + 1}", share, looks, types[rank] if types else "")
        for rank, share in enumerate(found)
    ]


def test_the_one_that_the_others_wait_for() -> None:
    (slow,) = stragglers(shares(0.48, 0.5, 0.47, 0.02))
    assert slow == Straggler(ranks=Ranks.of([3]), node_id="gpu2", share=slow.share, others=3)
    assert slow.share == pytest.approx(0.46)


def test_nobody_where_all_wait_alike_or_little() -> None:
    for found in ((), (0.5,), (0.3, 0.31, 0.25, 0.33), (0.05, 0.06, 0.0), (0.0, 0.0), (0.9, 0.5)):
        assert stragglers(shares(*found)) == []


def test_two_workers_are_enough() -> None:
    assert [one.ranks for one in stragglers(shares(0.4, 0.01))] == [Ranks.of([1])]


def test_within_a_gpu_type_and_between_types() -> None:
    by_type = stragglers(shares(0.4, 0.4, 0.4, 0.01, 0.02, 0.01, types="HHHAAA"))
    assert by_type == [Straggler(ranks=Ranks.of([3, 4, 5]), type="A", share=by_type[0].share, others=3)]
    assert by_type[0].share == pytest.approx(0.39)
    both = stragglers(shares(0.6, 0.6, 0.6, 0.3, 0.02, 0.3, types="HHHAAA"))
    assert [one.ranks for one in both] == [Ranks.of([3, 4, 5]), Ranks.of([4])]
    assert (both[1].node_id, both[1].type) == ("gpu3", "A")
    (alone,) = stragglers(shares(0.5, 0.5, 0.1, types="HHA"))
    assert (alone.ranks, alone.node_id, alone.type) == (Ranks.of([2]), None, "A")


def test_a_short_look_names_nobody() -> None:
    uneven = (0.5, 0.4, 0.45, 0.15)
    assert stragglers(shares(*uneven, looks=20)) == []
    assert [one.ranks for one in stragglers(shares(*uneven, looks=200))] == [Ranks.of([3])]
    assert [one.ranks for one in stragglers(shares(0.5, 0.5, 0.0, looks=60))] == [Ranks.of([2])]
    assert stragglers(shares(0.9, 0.9, 0.0, looks=0)) == []


@pytest.mark.parametrize("workers", [2, 8, 480])
def test_of_equally_fast_workers_chance_makes_none_slow(workers: int) -> None:
    chances, named = random.Random(workers), 0
    for _ in range(2_000 // workers):
        for looks in (10, 30, 60):
            found = [sum(chances.random() < 0.3 for _ in range(looks)) / looks for _ in range(workers)]
            named += len(stragglers(shares(*found, looks=looks)))
    assert named == 0
