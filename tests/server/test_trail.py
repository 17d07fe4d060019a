"""What is kept of the steps of the last hour."""

from hetrdzv.protocol.progress import NodeProgress, Worker
from hetrdzv.service.progress.table import Table
from hetrdzv.service.progress.trail import EVERY_S, KEPT_S, Point, Trail


def trail(*points: tuple[float, int, int]) -> tuple[Point, ...]:
    kept = Trail()
    for point in points:
        kept.note(Point(*point))
    return kept.points


def test_the_highest_step_of_each_half_minute_is_kept() -> None:
    assert trail((0.0, 1, 5), (3.0, 1, 4), (4.0, 1, 7), (31.0, 1, 20), (30.5, 1, 90)) == (
        (4.0, 1, 7),
        (31.0, 1, 20),
    )


def test_a_new_round_may_begin_at_an_earlier_step() -> None:
    assert trail((0.0, 1, 50), (5.0, 2, 40), (6.0, 1, 60), (40.0, 2, 45)) == ((5.0, 2, 40), (40.0, 2, 45))


def test_an_hour_is_kept_and_no_more() -> None:
    kept = trail(*((at * 5.0, 1, at) for at in range(5_000)))
    assert kept[-1].at - kept[0].at <= KEPT_S
    assert len(kept) == KEPT_S / EVERY_S + 1


def test_the_table_keeps_it_over_rounds_and_forgets_it_with_the_job() -> None:
    table = Table()
    for number, at, step in ((1, 0.0, 10), (1, 40.0, 20), (2, 80.0, 15)):
        table.note(
            "g", "a", NodeProgress(round=number, workers=(Worker(rank=0, step=step), Worker(rank=1))), at
        )
    assert table.trail("g") == ((0.0, 1, 10), (40.0, 1, 20), (80.0, 2, 15))
    table.forget("g")
    assert table.trail("g") == ()
    table.note("silent", "a", NodeProgress(round=1, workers=(Worker(rank=0),)), 0.0)
    assert table.trail("silent") == ()
