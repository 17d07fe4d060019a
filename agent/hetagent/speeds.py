"""Whether and how this node's slots are measured, from what was asked and what is here."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hetagent.context import AgentContext
from hetagent.node.gpu import devices
from hetagent.sharing import cache, policy
from hetagent.sharing.check import SpeedCheck
from hetagent.sharing.subject import NotMeasurable, subject
from hetrdzv.protocol.rooms.shares import Measured


def speed_check(
    node: AgentContext, mode: str, dtype: str, on_measured: Callable[[Sequence[float], Measured], None]
) -> SpeedCheck | None:
    """What measures this node's slots before the first round; None: they are not to be measured, or cannot be.

    Args:
        mode: when they are to be (`--measure`).
        dtype: in what (`--measure-dtype`).
        on_measured: gets the speed of each slot, and in what that was measured.
    """
    options = node.options
    script = policy.script_of(node.command, options.script, module=options.torchrun.module)
    if not policy.is_wanted(mode, script, weighed=options.weight is not None):
        return None
    is_cpu = devices.is_cpu_job(node.devices)
    try:
        what = subject(node.devices, node.slots, dtype, node.versions, os.environ, cpu=is_cpu)
    except NotMeasurable as error:
        node.tell(f"warning: the speed of this node's slots is not measured: {error}")
        return None
    try:
        place: Path | None = cache.folder(os.environ)
    except RuntimeError:  # this user has no home
        place = None
    incarnation, again = node.identity.incarnation, mode == "again"

    def take(speeds: Sequence[float]) -> None:
        on_measured(speeds, what.measured)

    return SpeedCheck(what, incarnation, take, node.tell, place=place, again=again)
