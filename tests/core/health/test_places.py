"""Judging workers is bounded by what they report, counted in places, not in seconds."""

import pytest

from hetrdzv.core.health import waits
from hetrdzv.core.health.stall import judge
from hetrdzv.protocol.rooms.progress import Collectives, Worker
from hetrdzv.protocol.rooms.stalls import Behind, BlamedAll


@pytest.mark.parametrize("size", [2, 400, 2**40], ids=["two", "the world", "made up"])
@pytest.mark.parametrize("same", [False, True])
def test_places_are_bounded_by_what_workers_report(
    same: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process group of `size` members was expanded to a place for each of them: 32 times the world squared."""
    places: list[object] = []
    make = waits.Place

    def counted(*args: object) -> waits.Place:
        places.append(args)
        return make(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(waits, "Place", counted)
    workers = [
        Worker(
            rank=rank,
            idle_s=30,
            collectives=tuple(
                Collectives(
                    name=f"g{0 if same else rank}-{at}", size=size, enqueued=5, started=4, completed=4
                )
                for at in range(32)
            ),
        )
        for rank in range(400)
    ]
    assert judge(workers, 400, eights) is not None
    assert len(places) <= 2 * (waits.PLACES_ANYWAY + waits.PLACES * len(workers))


def eights(rank: int) -> str:
    """The node of a rank, of those with eight each."""
    return f"n{rank // 8}"


def test_a_worker_among_8000_that_others_wait_for_is_named() -> None:
    """As an honest job reports it: everybody in one group of all, and in two of eight."""
    workers = [
        Worker(
            rank=rank,
            idle_s=30,
            collectives=tuple(
                Collectives(name=name, size=size, enqueued=7 if rank == 5003 else 8, started=7, completed=7)
                for name, size in (("0", 8000), (f"tp{rank // 8}", 8), (f"dp{rank % 1000}", 8))
            ),
        )
        for rank in range(8000)
    ]
    verdict = judge(workers, 8000, eights)
    assert verdict is not None
    assert verdict.ranks == (5003,)
    assert isinstance(verdict.facts, Behind)
    assert verdict.facts.blamed == BlamedAll.of([("n625", 5003)])
