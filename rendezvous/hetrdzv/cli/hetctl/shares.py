"""How people are shown the shares of a round."""

from collections.abc import Callable

from hetrdzv.protocol.pages import RoundReply, WorkerReply

MOST = 5
"""How many nodes are named."""


def shares_of(current: RoundReply) -> str:
    """The weights that the nodes of a round have; empty if nobody gave one."""
    if current.shares is None:
        return ""
    weights = current.shares.of_ranks()
    parts = [f"{member.node_id} {weights[member.rank_offset]:g}" for member in current.members[:MOST]]
    return f"by hand (--weight): {', '.join(parts)}{', ...' if len(current.members) > MOST else ''}"


def weight_of(current: RoundReply) -> Callable[[WorkerReply], float | None]:
    """The weight that each worker has; None: nobody gave one."""
    weights = current.shares.of_ranks() if current.shares is not None else []
    return lambda worker: weights[worker.rank] if worker.rank < len(weights) else None
