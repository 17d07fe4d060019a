"""Converts decisions on shares to replies of the API."""

from collections.abc import Mapping

from hetrdzv.core.model import Round, Shares
from hetrdzv.core.rounds.shares import by_member, paces_of, weights_of
from hetrdzv.protocol.directive import SharesReply
from hetrdzv.service.progress.table import Seen, worked_of


def shares_reply(round_number: int, shares: Shares) -> SharesReply:
    """A decision."""
    return SharesReply(round=round_number, number=shares.number, weights=shares.runs, source=shares.source)


def member_weights(current: Round) -> Mapping[str, tuple[float, ...]]:
    """The weights of each member's slots as they were decided last, by node id; empty if all are the same."""
    newest = current.newest_shares
    if not newest.runs:
        return {}
    return {node_id: tuple(weights) for node_id, weights in by_member(current, newest).items()}


def worker_weights(current: Round) -> list[float]:
    """The weight of each rank as it was decided last."""
    return weights_of(current.newest_shares, current.world_size)


def worker_paces(current: Round, seen: Mapping[int, Seen]) -> Mapping[int, float]:
    """How fast each rank has been since the last decision, the fastest 1; empty if not enough is known.

    Args:
        seen: how far its workers have come, by global rank.
    """
    newest = current.newest_shares
    paces = paces_of(newest, worked_of(seen, newest.number), current.world_size)
    if paces is None:
        return {}
    top = max(paces)
    return {rank: round(pace / top, 3) for rank, pace in enumerate(paces)}
