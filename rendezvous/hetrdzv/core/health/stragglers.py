"""Who slows a round down: the worker that waits far less for others than they do, since they wait for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hetrdzv.protocol.facts.warnings import Straggler
from hetrdzv.protocol.facts.who import Ranks

FAR = 0.1
"""A straggler keeps the others waiting for at least this share of the time (0 to 1)."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How much of a round a worker has waited for others (0 to 1).

    Attributes:
        type: of its GPU; workers of one type are compared with each other.
    """

    rank: int
    node_id: str
    share: float
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
    share = _kept_waiting([worst], [worker for worker in alike if worker is not worst])
    if share is None:
        return None
    return Straggler(ranks=Ranks.of([worst.rank]), node_id=worst.node_id, type=name, share=share)


def _slowest_type(types: dict[str, list[Waiting]]) -> Straggler | None:
    name = min(types, key=lambda gpu_type: (median(worker.share for worker in types[gpu_type]), gpu_type))
    others = [worker for other, alike in types.items() if other != name for worker in alike]
    share = _kept_waiting(types[name], others)
    if share is None:
        return None
    return Straggler(ranks=Ranks.of(worker.rank for worker in types[name]), type=name, share=share)


def _kept_waiting(slow: Sequence[Waiting], others: Sequence[Waiting]) -> float | None:
    """How much of the time the others wait for the slow workers; None: hardly longer than the slow ones wait."""
    own, usual = median(worker.share for worker in slow), median(worker.share for worker in others)
    share = usual - own
    return share if share >= FAR and own <= usual / 2 else None
