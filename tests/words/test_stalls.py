"""Who is waited for, in a clause."""

import pytest

from hetrdzv.protocol import codec
from hetrdzv.protocol.rooms.stalls import (
    Asked,
    Behind,
    BlamedAll,
    Deadlock,
    FirstUse,
    Knot,
    Mismatch,
    Place,
    StallFacts,
    Stuck,
    whom,
)
from hetrdzv.protocol.texts.who import Ranks
from hetrdzv.words.stalls import lasting, stall

ONE, TWO = BlamedAll.of([("gpu2", 3)]), BlamedAll.of([("gpu2", 3), ("gpu3", 5)])
WAITING = Ranks.of([0, 1, 2])
AT, OF_TP = Place(number=17_203, of=17_204), Place(number=5, lane="tp")

CLAUSES: list[tuple[StallFacts, str]] = [
    (
        Behind(waiting=WAITING, blamed=ONE, how="at", place=AT),
        "ranks 0 to 2 wait for rank 3 (gpu2), which is at collective 17,203 of 17,204",
    ),
    (
        Behind(waiting=Ranks.of([0]), blamed=TWO, how="at", place=AT, cpu="sleeps"),
        "rank 0 waits for rank 3 (gpu2) and rank 5 (gpu3), which are at collective 17,203 of 17,204, and sleep",
    ),
    (
        Behind(waiting=WAITING, blamed=TWO, how="not_begun", place=OF_TP, rank=3, cpu="burns"),
        (
            "ranks 0 to 2 wait for rank 3 (gpu2) and rank 5 (gpu3), of which rank 3 has not begun collective 5 of "
            "process group tp, and burns CPU"
        ),
    ),
    (
        Behind(waiting=WAITING, blamed=ONE, how="none_yet", lane="tp"),
        "ranks 0 to 2 wait for rank 3 (gpu2), which has asked for no collective of process group tp yet",
    ),
    (
        Behind(waiting=WAITING, blamed=ONE, how="ended", place=Place(number=4, of=5, lane="tp")),
        "ranks 0 to 2 wait for rank 3 (gpu2), which has ended after collective 4 of 5 in process group tp",
    ),
    (
        Behind(waiting=WAITING, blamed=ONE, how="stopped", place=AT),
        "ranks 0 to 2 wait for rank 3 (gpu2), which is stopped by a signal, last seen at collective 17,203 of 17,204",
    ),
    (
        Behind(waiting=WAITING, blamed=TWO, how="blocked"),
        "ranks 0 to 2 wait for rank 3 (gpu2) and rank 5 (gpu3), which are stuck in the kernel (state D)",
    ),
    (
        Deadlock(
            waiting=Ranks.of([0, 1, 2, 3]),
            knots=(Knot(ranks=Ranks.of([0, 1]), place=OF_TP), Knot(ranks=Ranks.of([2, 3]), place=AT)),
            more=2,
        ),
        (
            "ranks 0 to 3 wait for each other: ranks 0 and 1 at collective 5 of process group tp, ranks 2 and 3 at "
            "collective 17,203 of 17,204, others in 2 more process groups"
        ),
    ),
    (
        Mismatch(
            waiting=Ranks.of([0, 1]),
            place=OF_TP,
            sides=(Asked(ranks=Ranks.of([0]), op="all_reduce"), Asked(ranks=Ranks.of([1]), op="barrier")),
        ),
        (
            "ranks 0 and 1 wait for each other: as collective 5 of process group tp, rank 0 asked for all_reduce, "
            "rank 1 for barrier"
        ),
    ),
    (
        Mismatch(
            waiting=WAITING,
            place=Place(number=9),
            sides=(Asked(ranks=WAITING, op="all_reduce"), Asked(ranks=Ranks.of([3]), op="barrier")),
            wrong=ONE,
        ),
        "ranks 0 to 2 wait for rank 3: as collective 9, ranks 0 to 2 asked for all_reduce, rank 3 (gpu2) for barrier",
    ),
    (
        Stuck(waiting=WAITING, place=Place(number=9)),
        "ranks 0 to 2 wait for collective 9, which does not complete although nobody is behind",
    ),
    (
        Stuck(waiting=WAITING, place=Place(number=120, step=True)),
        "ranks 0 to 2 wait for the end of step 120, and none is behind",
    ),
    (
        FirstUse(waiting=Ranks.of([0]), missing=1, lane="tp"),
        "rank 0 waits for another member of process group tp, which has asked for none of its collectives yet",
    ),
    (
        FirstUse(waiting=WAITING, missing=2),
        "ranks 0 to 2 wait for other members, which have asked for none of its collectives yet",
    ),
]


@pytest.mark.parametrize(("facts", "clause"), CLAUSES)
def test_clause(facts: StallFacts, clause: str) -> None:
    assert stall(facts) == clause
    assert codec.read(StallFacts, codec.write(facts, StallFacts), unknown="ignore") == facts  # type: ignore[arg-type]


def test_with_its_time() -> None:
    facts = Behind(waiting=Ranks.of([0]), blamed=ONE, how="at", place=AT)
    assert (
        lasting(facts, 40)
        == "rank 0 has waited 40 s for rank 3 (gpu2), which is at collective 17,203 of 17,204"
    )
    facts = Behind(blamed=TWO, how="at", place=Place(number=8, of=9, step=True), cpu="burns")
    assert stall(facts) == "rank 3 (gpu2) and rank 5 (gpu3) are at step 8 of 9, and burn CPU"
    assert lasting(facts, 40) == f"{stall(facts)} (40 s)"


def test_of_many_nodes_the_first_are_named() -> None:
    many = BlamedAll.of((f"gpu{rank // 2}", rank) for rank in range(12))
    facts = Behind(waiting=Ranks.of([12]), blamed=many, how="stopped")
    assert stall(facts) == (
        "rank 12 waits for ranks 0 and 1 (gpu0), ranks 2 and 3 (gpu1), ranks 4 and 5 (gpu2) and 6 more, which are "
        "stopped by a signal"
    )


def test_blame_that_moves_is_another_stall_and_a_number_that_grows_is_not() -> None:
    before = Behind(waiting=WAITING, blamed=ONE, how="at", place=AT)
    assert whom(before) == whom(Behind(waiting=WAITING, blamed=ONE, how="at", place=OF_TP))
    moved = Behind(waiting=WAITING, blamed=BlamedAll.of([("gpu2", 7)]), how="at", place=AT)
    assert whom(before) != whom(moved)
    assert whom(Stuck(waiting=WAITING, place=AT)) != whom(Stuck(waiting=Ranks.of([0]), place=AT))
