"""How much of the work each rank of a round gets, by the weights that people gave (`--weight`)."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import inf

from hetrdzv.core.model import Node, Round
from hetrdzv.protocol.directive import Shares, Weights

MOST_SHOWN = 5
"""How many runs of impossible weights are shown."""


def weights_of(nodes: Sequence[Node]) -> Weights:
    """The weights of a round that forms; empty: nobody gave one.

    Args:
        nodes: its members in rank order.
    """
    if not any(node.weight is not None for node in nodes):
        return ()
    return tuple(
        (sum(node.slots for node in alike), weight)
        for weight, alike in groupby(nodes, key=lambda node: node.speed)
    )


def shares_of(current: Round) -> Shares | None:
    """The shares of a round; None: nobody gave a weight."""
    return Shares(round=current.number, weights=current.weights) if current.weights else None


def violations(current: Round) -> Iterator[str]:
    """What is impossible in the weights of a round, in a sentence each."""
    weights = current.weights
    ranks = sum(count for count, _ in weights)
    if weights and ranks != current.world_size:
        yield f"round {current.number} has weights of {ranks} ranks, not {current.world_size}"
    if not all(count > 0 and 0 < weight < inf for count, weight in weights):
        yield f"round {current.number} has a weight that is none: {weights[:MOST_SHOWN]}"
