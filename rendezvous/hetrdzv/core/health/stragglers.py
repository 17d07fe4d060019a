"""Who slows a round down: the worker that waits far less for others than they do, since they wait for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sqrt
from statistics import NormalDist, median

from hetrdzv.protocol.facts.warnings import Straggler
from hetrdzv.protocol.facts.who import Ranks

FAR = 0.1
"""A straggler keeps the others waiting for at least this share of the time (0 to 1)."""

CHANCE = 1e-4
"""How often, of all looks at a round of equally fast workers, one may be called slow (0 to 1). There is a new one every
few seconds, so that is little."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How much of a round a worker has waited for others.

    Attributes:
        share: 0 to 1.
        looks: at how many independent moments that was seen: of two in the same step, the second says nothing new.
        type: of its GPU; workers of one type are compared with each other.
    """

    rank: int
    node_id: str
    share: float
    looks: int
    type: str = ""


def stragglers(workers: Sequence[Waiting]) -> list[Straggler]:
    """What slows a round down: the slowest GPU type, and the slowest worker of each type, the worst first."""
    types: dict[str, list[Waiting]] = {}
    for worker in workers:
        types.setdefault(worker.type, []).append(worker)
    named = [
        straggler
        for name, alike in types.items()
        if (straggler := _slowest(alike, name if len(types) > 1 else ""))
    ]
    if len(types) > 1 and (slow := _slowest_type(types)):
        named.append(slow)
    return sorted(named, key=lambda straggler: (-straggler.share, straggler.ranks.ranges))


def _slowest(alike: Sequence[Waiting], name: str) -> Straggler | None:
    if len(alike) < 2:
        return None
    worst = min(alike, key=lambda worker: (worker.share, worker.rank))
    others = [worker for worker in alike if worker is not worst]
    share = _kept_waiting([worst], others, picked_of=len(alike))
    if share is None:
        return None
    return Straggler(
        ranks=Ranks.of([worst.rank]), node_id=worst.node_id, type=name, share=share, others=len(others)
    )


def _slowest_type(types: dict[str, list[Waiting]]) -> Straggler | None:
    name = min(types, key=lambda gpu_type: (median(worker.share for worker in types[gpu_type]), gpu_type))
    others = [worker for other, alike in types.items() if other != name for worker in alike]
    share = _kept_waiting(types[name], others, picked_of=len(types))
    if share is None:
        return None
    ranks = Ranks.of(worker.rank for worker in types[name])
    return Straggler(ranks=ranks, type=name, share=share, others=len(others))


def _kept_waiting(slow: Sequence[Waiting], others: Sequence[Waiting], picked_of: int) -> float | None:
    """How much of the time the others wait for the slow workers; None: hardly longer than the slow ones wait.

    Args:
        picked_of: among how many the slow ones were found. The least of many is small by chance alone.
    """
    own, usual = median(worker.share for worker in slow), median(worker.share for worker in others)
    share = usual - own
    unlikely = NormalDist().inv_cdf(1 - CHANCE / picked_of)  # in standard deviations
    far = max(FAR, unlikely * sqrt(_variance(slow, usual) + _variance(others, usual)))
    return share if share >= far and own <= usual / 2 else None


def _variance(workers: Sequence[Waiting], usual: float) -> float:
    """By how much the median of their shares differs by chance, squared, if in truth they wait as long as is usual."""
    looks = median(worker.looks for worker in workers)
    share = (usual * looks + 1) / (looks + 2)  # of few looks, all may have been of one kind
    # pi / 2: the median of several is less certain than their mean
    return share * (1 - share) / (looks + 2) * (pi / 2 / len(workers) if len(workers) > 2 else 1.0)
