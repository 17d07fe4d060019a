"""Who is measured with whom, and which node a slow network is due to. Pure.

Neighbours are measured first. Nodes whose pair is slow are then measured with nodes that are fast: one that is slow
again is to blame itself, otherwise the way between the two is.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median_high

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
            fresh = (one for one in free if (rank, one) not in rates and (one, rank) not in rates)
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


def verdict(first: Rates, second: Rates, names: Mapping[int, str]) -> list[str]:
    """A sentence for each node that was slow twice, and for each slow pair of which neither was.

    Args:
        first: of neighbours.
        second: of those who were measured again, each before the other in its pair.
        names: node ids by group rank.
    """
    usual = usual_rate(first)
    slow, still = slow_pairs(first, usual), slow_pairs(second, usual)
    bad = {pair[0] for pair in still}
    others = f"; {per_s(usual)} is usual here" if usual else ""
    sentences = [
        f"the network of node {names[rank]} is slow: {_with(names, rank, first, slow)}, and "
        f"{_with(names, rank, second, still)}{others}: check its cables, its switch port and its --interface"
        for rank in sorted(bad)
    ]
    for pair in sorted(slow):
        if not bad.intersection(pair):
            how = f"{names[pair[0]]} and {names[pair[1]]} reach {_rate(first[pair])} between them"
            sentences.append(f"{how}{others}: check the way between them")
    return sentences


def summary(rates: Rates) -> str:
    """How fast neighbours are, in a line."""
    known = [rate for rate in rates.values() if rate is not None]
    if not known:
        return "no two neighbours reached each other"
    low, high = per_s(min(known)), per_s(max(known))
    span = low if low == high else f"{low} to {high}"
    return f"{span} between {'the two nodes' if len(rates) == 1 else 'neighbours'}"


def per_s(rate: float) -> str:
    """A rate (bytes/s) as people know it: `9.4 Gbit/s`."""
    bits = 8 * rate
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits / 1e3:.3g} kbit/s"


def _with(names: Mapping[int, str], rank: int, rates: Rates, among: Iterable[Pair]) -> str:
    one, other = next(pair for pair in sorted(among) if rank in pair)
    return f"{_rate(rates[one, other])} with {names[other if one == rank else one]}"


def _rate(rate: float | None) -> str:
    return "nothing" if rate is None else per_s(rate)
