"""Who slows a round down: the worker that waits far less for others than they do, since they wait for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hetrdzv.words.phrasing import ranked

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


@dataclass(frozen=True, slots=True)
class Straggler:
    """Workers for which the others wait.

    Attributes:
        ranks: one, or all of a GPU type.
        share: how much of the time the others wait for them (0 to 1).
        text: the same in a sentence.
    """

    ranks: tuple[int, ...]
    share: float
    text: str


def stragglers(workers: Sequence[Waiting]) -> list[Straggler]:
    """Those who slow a round down: a GPU type among several, and in each type its slowest worker, the worst first."""
    types: dict[str, list[Waiting]] = {}
    for worker in workers:
        types.setdefault(worker.type, []).append(worker)
    found = [one for name, alike in types.items() if (one := _slowest(alike, name if len(types) > 1 else ""))]
    if len(types) > 1 and (slow := _slowest_type(types)):
        found.append(slow)
    return sorted(found, key=lambda one: (-one.share, one.ranks))


def _slowest(alike: Sequence[Waiting], name: str) -> Straggler | None:
    if len(alike) < 2:
        return None
    worst = min(alike, key=lambda one: (one.share, one.rank))
    share = _kept_waiting([worst], [one for one in alike if one is not worst])
    if share is None:
        return None
    of = f" of the {name}s" if name else ""
    text = f"rank {worst.rank} ({worst.node_id}) is the slowest{of}: the others wait for it {share:.0%} of the time"
    return Straggler((worst.rank,), share, text)


def _slowest_type(types: dict[str, list[Waiting]]) -> Straggler | None:
    name = min(types, key=lambda one: (median(worker.share for worker in types[one]), one))
    others = [worker for other, alike in types.items() if other != name for worker in alike]
    share = _kept_waiting(types[name], others)
    if share is None:
        return None
    ranks = tuple(sorted(worker.rank for worker in types[name]))
    text = f"{ranked(ranks)} ({name}) are slower than other GPUs, which wait for them {share:.0%} of the time"
    if len(ranks) == 1:
        text = text.replace(" are slower", " is slower").replace(" for them ", " for it ")
    return Straggler(ranks, share, text)


def _kept_waiting(slow: Sequence[Waiting], others: Sequence[Waiting]) -> float | None:
    """For how much of the time the others wait for the slow ones; None: not for far longer than those wait."""
    own, usual = median(one.share for one in slow), median(one.share for one in others)
    share = usual - own
    return share if share >= FAR and own <= usual / 2 else None
