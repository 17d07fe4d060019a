"""What a failed round says about the job: whether it made progress, and how long the next restart waits."""

from collections.abc import Sequence

from hetrdzv.core.model import Group, Round
from hetrdzv.core.rounds.transitions import Work
from hetrdzv.protocol.facts.failure import Failure

LASTED_S = 60.0
"""A round that ran this long may have made progress that nobody can see (seconds)."""

AT_START = 100
"""More collectives than a script makes before its first step is done, or in a few small steps."""

FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM"})
"""Signals of preemption, of a stop or of a lack of memory: they say nothing about the script."""


def made_progress(group: Group, ended: Round, failures: Sequence[Failure]) -> bool | None:
    """Whether a failed round got further than those before it; None: nobody knows.

    Only a short round that did no more than a script does at its start is known to have got nowhere: any other may have
    gone on from a checkpoint, and counted from 0 again.

    Args:
        failures: the root cause comes first.
    """
    step, collectives = _reached(failures)
    if step is not None:
        further = group.step is None or step > group.step
    elif collectives is not None:
        further = collectives > (group.collectives or 0)
    else:
        return None
    if further:
        return True
    killed = failures[0].signal in FROM_OUTSIDE
    return None if killed or _lasted(ended) or (collectives or 0) > AT_START else False


def _reached(failures: Sequence[Failure]) -> tuple[int | None, int | None]:
    """The highest step, and the most collectives; None: nobody knows."""
    steps = [failure.step for failure in failures if failure.step is not None]
    counts = [failure.collectives for failure in failures if failure.collectives is not None]
    return max(steps, default=None), max(counts, default=None)


def count_failed_round(work: Work, ended: Round, failures: Sequence[Failure]) -> None:
    """Count a round that failed among those in a row that made no progress, and those in quick succession.

    A short one of which nobody knows how far it came is left out: it is neither progress nor the lack of it.
    """
    group = work.group
    progress = made_progress(group, ended, failures)
    step, collectives = _reached(failures)
    fruitless = group.fruitless + 1 if progress is False else 0
    if step is None and collectives is None and not _lasted(ended):
        fruitless = group.fruitless
    work.change(
        fruitless=fruitless,
        quick=1 if progress or _lasted(ended) else group.quick + 1,
        step=max((reached for reached in (step, group.step) if reached is not None), default=None),
        collectives=group.collectives if collectives is None else collectives,
    )


def is_crash_loop(group: Group) -> bool:
    """Whether so many rounds in a row made no progress that another round would make none either."""
    return 0 < group.spec.crash_loop <= group.fruitless


def restart_wait_s(group: Group) -> float:
    """How long the next restart waits: the first not at all, those in quick succession 1 s, 2 s, 4 s ... (seconds)."""
    if group.quick <= 1:
        return 0.0
    return min(group.spec.restart_wait_s, 2.0 ** min(group.quick - 2, 30))


def _lasted(ended: Round) -> bool:
    return ended.end is not None and ended.end.at - ended.formed_at >= LASTED_S
