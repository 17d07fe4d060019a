"""Who slows a round down (core/health/stragglers.py)."""

from hetrdzv.core.health.stragglers import Waiting, stragglers


def shares(*found: float, types: str = "") -> list[Waiting]:
    """Workers of two ranks per node; `types` has a letter per rank."""
    return [
        Waiting(rank, f"gpu{rank // 2 + 1}", share, types[rank] if types else "")
        for rank, share in enumerate(found)
    ]


def test_the_one_that_the_others_wait_for() -> None:
    (slow,) = stragglers(shares(0.48, 0.5, 0.47, 0.02))
    assert slow.ranks == (3,)
    assert slow.text == "rank 3 (gpu2) is the slowest: the others wait for it 46% of the time"


def test_nobody_where_all_wait_alike_or_little() -> None:
    for found in ((), (0.5,), (0.3, 0.31, 0.25, 0.33), (0.05, 0.06, 0.0), (0.0, 0.0), (0.9, 0.5)):
        assert stragglers(shares(*found)) == []


def test_two_workers_are_enough() -> None:
    assert [one.ranks for one in stragglers(shares(0.4, 0.01))] == [(1,)]


def test_within_a_gpu_type_and_between_types() -> None:
    by_type = stragglers(shares(0.4, 0.4, 0.4, 0.01, 0.02, 0.01, types="HHHAAA"))
    assert [(one.ranks, one.text) for one in by_type] == [
        ((3, 4, 5), "ranks 3 to 5 (A) are slower than other GPUs, which wait for them 39% of the time")
    ]
    both = stragglers(shares(0.6, 0.6, 0.6, 0.3, 0.02, 0.3, types="HHHAAA"))
    assert [one.ranks for one in both] == [(3, 4, 5), (4,)]
    assert both[1].text == "rank 4 (gpu3) is the slowest of the As: the others wait for it 28% of the time"
    (alone,) = stragglers(shares(0.5, 0.5, 0.1, types="HHA"))
    assert alone.text == "rank 2 (A) is slower than other GPUs, which wait for it 40% of the time"
