"""Hangs: workers of a round that wait for others, or whose collectives do not complete; and the reasons for that."""

from dataclasses import dataclass, field
from typing import Any

from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, make_reason
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.node_rank_lists import RankList
from hetrdzv.protocol.texts.phrasing import singular_or_plural


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Workers wait for others (`ranks`, on `nodes`: the first few), or their collectives do not complete."""

    kind: StallKind
    waiting: RankList = field(default_factory=RankList)
    wait_for: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    for_s: float = 0.0

    def message(self, for_s: float | None = None) -> str:
        """All of it in a clause, with its time (seconds) where that is given."""
        wait = singular_or_plural(self.waiting, "waits", "wait")
        if for_s is not None:
            wait = f"{singular_or_plural(self.waiting, 'has', 'have')} waited {for_s:.0f} s"
        return f"{self.waiting} {wait} for {self.wait_for}"


HANG_CODES = frozenset(map(ReasonCode, StallKind))
"""The codes of hangs."""


def round_hangs(
    number: int, of: Hang, since: float, *, known: bool = True, until: float | None = None
) -> Reason:
    """A round runs, but workers wait for others."""
    unclear = "" if known else "; whether they still wait is no longer known"
    text = f"round {number}: {of.message()}{unclear}"
    return _hang_reason(
        of, ReasonCode(of.kind), text, number, since=since, until=until, unclear=None if known else 1
    )


def stall_reported(number: int, of: Hang, *, goes_on: bool = False) -> Reason:
    """Workers have waited long for others; `goes_on`: and wait no longer."""
    code, how = (ReasonCode.PROGRESS_RESUMED, "goes on, after") if goes_on else (ReasonCode.STALLED, "hangs:")
    return _hang_reason(
        of, code, f"round {number} {how} {of.message(of.for_s)}", number, for_s=round(of.for_s, 3)
    )


def _hang_reason(of: Hang, code: ReasonCode, text: str, number: int, **more: Any) -> Reason:
    """Its nodes and ranks are those that are waited for; with nobody in particular, the ranks are those that wait."""
    return make_reason(
        code,
        text,
        nodes=of.nodes,
        ranks=RankList.of(of.ranks) if of.ranks else of.waiting,
        round=number,
        kind=of.kind.value,
        **more,
    )
