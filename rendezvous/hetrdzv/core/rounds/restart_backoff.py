"""How long restarts in quick succession wait."""

from hetrdzv.core.model import Group, Round
from hetrdzv.core.rounds.transitions import Work

LASTED_S = 60.0
"""A round that ran this long has probably made progress (seconds)."""


def count_failed_round(work: Work, ended: Round) -> None:
    """Count a round that failed among those in quick succession, unless it lasted."""
    lasted = ended.end is not None and ended.end.at - ended.formed_at >= LASTED_S
    work.change(quick=1 if lasted else work.group.quick + 1)


def restart_wait_s(group: Group) -> float:
    """How long the next restart waits: the first not at all, those in quick succession 1 s, 2 s, 4 s ... (seconds)."""
    if group.quick <= 1:
        return 0.0
    return min(group.spec.restart_wait_s, 2.0 ** min(group.quick - 2, 30))
