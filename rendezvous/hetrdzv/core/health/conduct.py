"""Nodes that come and go, or whose workers keep failing: which are set aside, and which are taken last.

Both last until a person lifts them (`hetctl undrain`) or the next job begins, and a time as a spare ends by itself.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from hetrdzv.core.memo import kept
from hetrdzv.core.model import Conduct, Group, Round

STRIKES = 3
"""How often in a row a node may go, or be the root cause, until others are preferred to it."""

SOON_S = 600.0
"""A departure this long after the one before, or after its time as a spare, counts as the first again (seconds)."""

ASIDE_S = 60.0
"""How long a node is set aside at first; twice as long each time it goes again (seconds)."""

MOST_ASIDE_S = 1800.0
"""How long a node is set aside at most (seconds)."""

MOST_KEPT = 256
"""How many nodes are remembered: those that went last."""


@kept
def set_aside(group: Group) -> AbstractSet[str]:
    """The nodes that have come and gone too often: spares, unless the bounds need them."""
    return frozenset(node_id for node_id, known in group.conduct.items() if known.aside)


@kept
def taken_last(group: Group) -> AbstractSet[str]:
    """The nodes whose workers keep failing: other nodes are taken before them."""
    return frozenset(node_id for node_id, known in group.conduct.items() if known.blamed >= STRIKES)


def with_departure(conduct: Mapping[str, Conduct], node_id: str, now: float) -> Mapping[str, Conduct]:
    """What is remembered after a node ended a round by going."""
    before = conduct.get(node_id, Conduct())
    departures = before.departures + 1 if now - before.free_at <= SOON_S else 1
    aside = departures >= STRIKES
    wait_s = min(ASIDE_S * 2.0 ** min(departures - STRIKES, 30), MOST_ASIDE_S) if aside else 0.0
    new = replace(before, departures=departures, aside=aside, free_at=now + wait_s)
    return _with(conduct, node_id, new, now)


def with_blame(
    conduct: Mapping[str, Conduct], ended: Round, node_id: str, now: float
) -> Mapping[str, Conduct]:
    """What is remembered after the workers of a node were the root cause of a failure."""
    known = {
        name: replace(other, blamed=0) if ended.member(name) is not None and name != node_id else other
        for name, other in conduct.items()
    }
    before = known.get(node_id, Conduct())
    return _with(known, node_id, replace(before, blamed=before.blamed + 1), now)


def _with(known: Mapping[str, Conduct], node_id: str, new: Conduct, now: float) -> Mapping[str, Conduct]:
    """The conduct of all nodes with a new one for one of them, without what no longer matters."""
    worth = {
        name: other
        for name, other in known.items()
        if name != node_id and (other.aside or other.blamed or now - other.free_at <= SOON_S)
    }
    others = sorted(worth.items(), key=lambda item: item[1].free_at)[1 - MOST_KEPT :]
    return {**dict(others), node_id: new}


def without_past(conduct: Mapping[str, Conduct], now: float) -> Mapping[str, Conduct]:
    """The conduct of all nodes; those whose time as a spare is over are no longer set aside."""
    if not any(known.aside and now >= known.free_at for known in conduct.values()):
        return conduct
    return {
        name: replace(known, aside=False) if known.aside and now >= known.free_at else known
        for name, known in conduct.items()
    }
