"""Stalls, for tests that need some."""

from collections.abc import Iterable

from hetrdzv.protocol.stalls import Behind, BlamedAll, Place
from hetrdzv.protocol.who import Ranks


def behind(
    rank: int, node_id: str, *, waiting: Iterable[int] = (0, 1), number: int = 17_203, of: int | None = 17_204
) -> Behind:
    """Workers wait for one that is behind them."""
    return Behind(
        waiting=Ranks.of(waiting),
        blamed=BlamedAll.of([(node_id, rank)]),
        how="at",
        place=Place(number=number, of=of),
    )
