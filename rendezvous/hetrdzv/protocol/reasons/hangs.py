"""Who is waited for in a round: `ranks 0 to 2 wait for rank 3 (gpu2), which is at collective 5 of 6`."""

from typing import Any

from hetrdzv.protocol.hangs import MOST_SHOWN, Hang
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, reason
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.who import Ranks

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
