"""Hangs: workers of a round that wait for others, or whose collectives do not complete; and the reasons for that."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, reason
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.who import Ranks, join_words

MOST_SHOWN = 3
"""How many nodes, process groups or operations a hang names; the others are counted."""

MOST_RANKS = 8
"""How many of the ranks that are waited for are named one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Workers of a node that others wait for."""

    node_id: str
    ranks: Ranks

    def __str__(self) -> str:
        return f"{self.ranks} ({self.node_id})"


def culprits_of(workers: Iterable[tuple[str, int]]) -> tuple[Culprit, ...]:
    """Workers by node, nodes in the order in which they come first; each has its node and its rank."""
    by_node: dict[str, list[int]] = {}
    for node_id, rank in workers:
        by_node.setdefault(node_id, []).append(rank)
    return tuple(Culprit(node_id=node_id, ranks=Ranks.of(ranks)) for node_id, ranks in by_node.items())


def culprits_text(culprits: tuple[Culprit, ...]) -> str:
    """`rank 3 (gpu2)`, `rank 3 (gpu2) and rank 5 (gpu3)`, of many the first few and how many more ranks there are."""
    more = sum(len(culprit.ranks) for culprit in culprits[MOST_SHOWN:])
    return join_words(
        [str(culprit) for culprit in culprits[:MOST_SHOWN]] + ([f"{more} more"] if more else [])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Workers wait for others, or their collectives do not complete."""

    kind: StallKind
    waiting: Ranks = field(default_factory=Ranks)
    wait_for: str
    ranks: tuple[int, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    for_s: float = 0.0

    def message(self, for_s: float | None = None) -> str:
        """All of it in a clause, with its time (seconds) where that is given."""
        one = len(self.waiting) == 1
        if not self.waiting:
            return f"no progress{'' if for_s is None else f' for {for_s:.0f} s'}: {self.wait_for}"
        if for_s is None:
            return f"{self.waiting} {'waits' if one else 'wait'} for {self.wait_for}"
        return f"{self.waiting} {'has' if one else 'have'} waited {for_s:.0f} s for {self.wait_for}"


HANG_CODES = frozenset(map(ReasonCode, StallKind))
"""The codes of hangs."""


def hang(number: int, of: Hang, since: float, *, known: bool = True, until: float | None = None) -> Reason:
    """A round runs, but workers wait for others."""
    unclear = "" if known else "; whether they still wait is no longer known"
    text = f"round {number}: {of.message()}{unclear}"
    return _of(of, ReasonCode(of.kind), text, number, since=since, until=until, unclear=None if known else 1)


def stalled(number: int, of: Hang) -> Reason:
    """Workers have waited long for others."""
    text = f"round {number} hangs: {of.message(of.for_s)}"
    return _of(of, ReasonCode.STALLED, text, number, for_s=round(of.for_s, 3))


def goes_on(number: int, of: Hang) -> Reason:
    """They wait no longer."""
    text = f"round {number} goes on, after {of.message(of.for_s)}"
    return _of(of, ReasonCode.GOES_ON, text, number, for_s=round(of.for_s, 3))


def _of(of: Hang, code: ReasonCode, text: str, number: int, **more: Any) -> Reason:
    """Its nodes and ranks are those that are waited for; with nobody in particular, the ranks are those that wait."""
    ranks = [
        rank for one in of.culprits for first, last in one.ranks.ranges for rank in range(first, last + 1)
    ]
    return reason(
        code,
        text,
        nodes=[one.node_id for one in of.culprits[:MOST_SHOWN]],
        ranks=Ranks.of(ranks) if ranks else of.waiting,
        round=number,
        kind=of.kind.value,
        **more,
    )
