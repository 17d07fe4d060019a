"""In which order people are shown groups: what needs attention first, what ended long ago last."""

from hetrdzv.protocol.pages import QUARANTINED, GroupSummary
from hetrdzv.protocol.states import HANGS
from hetrdzv.protocol.texts.ids import natural_key

RECENT_S = 3600.0
"""What ended longer ago than this is old (seconds)."""

ORDER = (QUARANTINED, "failed", HANGS, "waiting", "starting", "running", "succeeded", "cancelled")
"""States in the order in which they need attention; what only newer servers know comes behind them."""


def is_old(group: GroupSummary) -> bool:
    """Whether its job ended long ago."""
    return group.ended_s_ago is not None and group.ended_s_ago > RECENT_S


def urgency(group: GroupSummary) -> tuple[bool, int, float, object]:
    """Sorts first what needs attention first, and of what is over the newest; old groups last, in the same order."""
    state = group.shown_state
    return (
        is_old(group),
        ORDER.index(state) if state in ORDER else len(ORDER),
        group.ended_s_ago or 0.0,
        natural_key(group.group_id),
    )
