"""Who is measured with whom, and which node a slow network is due to. Pure.

Neighbours are measured first. Nodes whose pair is slow are then measured with nodes that are fast: one that is slow
again is to blame itself, otherwise the way between the two is.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median_high

from hetrdzv.protocol.rooms.network import MOST_SLOW, NetworkFound, Reached, SlowLink, SlowWay, Spread

Pair = tuple[int, int]
"""Two nodes, by group rank."""

Rates = Mapping[Pair, float | None]
"""How fast two nodes reach each other, in the slower direction (bytes/s); None: not at all."""

SLOW = 0.5
"""A pair below this share of the usual rate is slow."""


def neighbours(ranks: Sequence[int]) -> list[list[Pair]]:
    """Every node with the next one, in steps of pairs without a node in common; an odd last one with the first.

    Of three nodes every two, since one slow node slows down two of three pairs.

    Args:
        ranks: of the nodes, in order.
    """
    if len(ranks) < 2:
        return []
    steps = [[(ranks[place], ranks[place + 1]) for place in range(0, len(ranks) - 1, 2)]]
    if len(ranks) == 3:
        steps.append([(ranks[1], ranks[2])])
    if len(ranks) % 2:
        steps.append([(ranks[-1], ranks[0])])
    return steps


def again(rates: Rates) -> list[list[Pair]]:
    """Those who were in slow pairs only, each with one that was in a fast pair: a new one if possible.

    In steps as above; the one in question comes first in its pair.
    """
    slow = slow_pairs(rates)
    fast = sorted({rank for pair in rates.keys() - slow for rank in pair})
    waiting = sorted({rank for pair in slow for rank in pair} - set(fast))
    steps: list[list[Pair]] = []
    while waiting and fast:
        step, free = [], list(fast)
        for rank in waiting[: len(fast)]:
            fresh = (
                partner for partner in free if (rank, partner) not in rates and (partner, rank) not in rates
            )
            other = next(fresh, free[0])
            free.remove(other)
            step.append((rank, other))
        steps.append(step)
        waiting = waiting[len(step) :]
    return steps


def slow_pairs(rates: Rates, usual: float | None = None) -> set[Pair]:
    """The pairs that are far slower than usual, or that do not reach each other.

    Args:
        usual: the usual rate; None: that of these pairs.
    """
    usual = usual_rate(rates) if usual is None else usual
    return {pair for pair, rate in rates.items() if rate is None or rate < SLOW * usual}


def usual_rate(rates: Rates) -> float:
    """What most nodes reach, each counted once, or the best two of three (bytes/s); 0 where nothing gets through."""
    seen: set[int] = set()
    once = []
    for pair, rate in rates.items():
        if seen.isdisjoint(pair):
            seen.update(pair)
            once.append(rate or 0.0)
    return median_high(once) if len(once) > 1 else max((rate or 0.0 for rate in rates.values()), default=0.0)


def verdict(first: Rates, second: Rates, names: Mapping[int, str]) -> NetworkFound:
    """Each node that was slow twice, and each slow pair of which neither was; the first few of them.

    Args:
        first: of neighbours.
        second: of those who were measured again, each before the other in its pair.
        names: node ids by group rank.
    """
    rate = usual_rate(first)
    slow, still = slow_pairs(first, rate), slow_pairs(second, rate)
    usual, bad = rate or None, {pair[0] for pair in still}
    links = [
        SlowLink(
            node_id=names[rank],
            first=_reached(names, rank, first, slow),
            again=_reached(names, rank, second, still),
            usual=usual,
        )
        for rank in sorted(bad)[:MOST_SLOW]
    ]
    ways = [
        SlowWay(
            node_id=names[one], reached=Reached(node_id=names[other], rate=first[one, other]), usual=usual
        )
        for one, other in sorted(slow)
        if not bad.intersection((one, other))
    ]
    return NetworkFound(links=tuple(links), ways=tuple(ways[: MOST_SLOW - len(links)]))


def spread(rates: Rates) -> Spread:
    """How fast neighbours are."""
    known = [rate for rate in rates.values() if rate is not None]
    return Spread(pairs=len(rates), slowest=min(known, default=None), fastest=max(known, default=None))


def _reached(names: Mapping[int, str], rank: int, rates: Rates, among: Iterable[Pair]) -> Reached:
    one, other = next(pair for pair in sorted(among) if rank in pair)
    return Reached(node_id=names[other if one == rank else one], rate=rates[one, other])
