"""Hangs, for tests that need some."""

from collections.abc import Iterable

from hetrdzv.protocol.reasons.hangs import Hang
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.node_rank_lists import RankList


def behind(
    rank: int,
    node_id: str,
    *,
    waiting: Iterable[int] = (0, 1),
    kind: StallKind = StallKind.BEHIND,
    stopped: bool = False,
    where: str = "is at collective 17,203 of 17,204",
    for_s: float = 0.0,
) -> Hang:
    """Workers wait for one that is behind them."""
    return Hang(
        kind=StallKind.NO_ANSWER if stopped else kind,
        waiting=RankList.of(waiting),
        wait_for=f"rank {rank} ({node_id}), which {'is stopped by a signal' if stopped else where}",
        ranks=(rank,),
        nodes=(node_id,),
        for_s=for_s,
    )


def of_nobody(*ranks: int, kind: StallKind = StallKind.NOTHING_COMPLETES) -> Hang:
    """Workers wait, and nobody is to blame."""
    return Hang(kind=kind, waiting=RankList.of(ranks), wait_for="collective 5")


def of_kind(kind: StallKind, rank: int, node_id: str) -> Hang:
    """Workers wait for one, or for nobody in particular."""
    return of_nobody(rank) if kind is StallKind.NOTHING_COMPLETES else behind(rank, node_id, kind=kind)
