"""How people are shown the shares of a round."""

from collections.abc import Callable

from hetrdzv.protocol.pages import NodeReply, RoundReply, WorkerReply

MOST = 5
"""How many nodes are named."""

_SOURCES = {"by hand": "by hand (--weight)", "measured": "by measured speed", "pace": "by the workers' pace"}


def shares_of(current: RoundReply) -> str:
    """Where the shares of a round come from, and what they are; empty if all are the same and nobody asked."""
    shares = current.shares
    if shares is None or (shares.source == "equal" and not shares.number):
        return ""
    where = _SOURCES.get(shares.source, shares.source)
    asked = f", decision {shares.number} of this round" if shares.number else ""
    if not shares.weights:
        return f"{where}{asked}: the same for all ranks"
    weights, parts = shares.of_ranks(current.world_size), []
    for member in current.members[:MOST]:
        own = weights[member.rank_offset : member.rank_offset + member.slots]
        least, most = min(own), max(own)
        parts.append(f"{member.node_id} {least:g}{f' to {most:g}' if least < most else ''}")
    return f"{where}{asked}: {', '.join(parts)}{', ...' if len(current.members) > MOST else ''}"


def weight_of(current: RoundReply) -> Callable[[WorkerReply], float | None]:
    """How much of the work each worker gets, compared with the others."""
    weights = current.shares.of_ranks(current.world_size) if current.shares is not None else []
    return lambda worker: weights[worker.rank] if worker.rank < len(weights) else None


def pace_of(current: RoundReply) -> Callable[[WorkerReply], float | None]:
    """How fast each worker has been since the last decision, the fastest 1; None: nobody knows yet."""
    paces = current.shares.paces if current.shares is not None else {}
    return lambda worker: paces.get(worker.rank)


def speeds_of(node: NodeReply) -> str:
    """How fast the slots of a node were measured to be; empty: they were not."""
    return " ".join(f"{speed:.3g}" for speed in node.speeds or ())
