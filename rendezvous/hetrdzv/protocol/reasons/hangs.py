"""Hangs: workers of a round that wait for others, or whose collectives do not complete; and the reasons for that."""

from dataclasses import dataclass, field
from typing import Any

from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, reason
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.who import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Workers wait for others (`ranks`, on `nodes`: the first few), or their collectives do not complete."""

    kind: StallKind
    waiting: Ranks = field(default_factory=Ranks)
    wait_for: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
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
    return reason(
        code,
        text,
        nodes=of.nodes,
        ranks=Ranks.of(of.ranks) if of.ranks else of.waiting,
        round=number,
        kind=of.kind.value,
        **more,
    )
