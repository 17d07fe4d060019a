"""Stalls, for tests that need some."""

from collections.abc import Iterable

from hetrdzv.protocol.rooms.stalls import Behind, BlamedAll, Deadlock, How, Knot, Place, StallFacts
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.who import Ranks


def behind(
    rank: int,
    node_id: str,
    *,
    waiting: Iterable[int] = (0, 1),
    number: int = 17_203,
    of: int | None = 17_204,
    how: How = "at",
    pid: int = 0,
) -> Behind:
    """Workers wait for one that is behind them."""
    return Behind(
        waiting=Ranks.of(waiting),
        blamed=BlamedAll.of([(node_id, rank)], {rank: pid} if pid else {}),
        how=how,
        place=Place(number=number, of=of),
    )


def of_kind(kind: StallKind, rank: int, node_id: str) -> StallFacts:
    """Workers wait for one, in one of three ways."""
    match kind:
        case StallKind.DEADLOCK:
            ranks = Ranks.of([rank])
            return Deadlock(waiting=ranks, knots=(Knot(ranks=ranks, place=Place(number=5)),))
        case StallKind.NO_ANSWER:
            return behind(rank, node_id, how="stopped")
        case _:
            return behind(rank, node_id)
