"""How long restarts in quick succession wait."""

from collections.abc import Sequence

from hetrdzv.core.model import Group, Round
from hetrdzv.core.rounds.transitions import Work
from hetrdzv.protocol.failure import Failure

LASTED_S = 60.0
"""A round that ran this long may have made progress that nobody can see (seconds)."""

FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM"})
"""Signals of preemption, of a stop or of a lack of memory: they say nothing about the script."""


def count_failed_round(work: Work, ended: Round, failures: Sequence[Failure]) -> None:
    """Count a round that failed among those in quick succession, unless it got further than those before it."""
    group = work.group
    step = max((failure.step for failure in failures if failure.step is not None), default=None)
    collectives = max((one.collectives for one in failures if one.collectives is not None), default=None)
    if step is not None:
        progress = group.step is None or step > group.step
    else:
        progress = collectives is not None and collectives > (group.collectives or 0)
    work.change(
        quick=1 if progress or _lasted(ended) else group.quick + 1,
        step=max((reached for reached in (step, group.step) if reached is not None), default=None),
        collectives=group.collectives if collectives is None else collectives,
    )


def restart_wait_s(group: Group) -> float:
    """How long the next restart waits: the first not at all, those in quick succession 1 s, 2 s, 4 s ... (seconds)."""
    if group.quick <= 1:
        return 0.0
    return min(group.spec.restart_wait_s, 2.0 ** min(group.quick - 2, 30))


def _lasted(ended: Round) -> bool:
    return ended.end is not None and ended.end.at - ended.formed_at >= LASTED_S
