"""Where it is looked whether this machine is taken away, from what was asked."""

import shutil
from collections.abc import Callable, Collection

from hetagent.options.parts import REBALANCE
from hetagent.preemption.clouds import Clouds
from hetagent.preemption.local import WhenCommand, WhenFile
from hetagent.preemption.watching import PreemptionWatch, Source


def preemption_watch(
    watched: Collection[str], when: str, incarnation: str, tell: Callable[[str], None], grace_s: float
) -> PreemptionWatch:
    """What looks for announcements.

    Args:
        watched: what clouds may announce; see `options.parts.watched`.
        when: a file or a command; empty: none.
        incarnation: marks the command's processes.
        tell: shows one line to the person at the terminal.
        grace_s: how long this node has if an announcement does not say (seconds).
    """
    sources: list[Source] = []
    if watched:
        sources.append(Clouds(tell, rebalance=REBALANCE in watched))
    if when:
        is_command = len(when.split()) > 1 or shutil.which(when) is not None
        sources.append(WhenCommand(when, incarnation, tell) if is_command else WhenFile(when))
    return PreemptionWatch(sources, tell, grace_s)
