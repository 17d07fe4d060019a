"""Whether and how this node's slots are measured, from the options and what is here."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hetagent.job.ready.speed_check import SpeedCheck
from hetagent.launch.command import WorkerCommand
from hetagent.node.gpu import devices
from hetagent.node.speed import cache, policy
from hetagent.node.speed.subject import NotMeasurable, Subject, subject
from hetagent.options.model import Options


def to_measure(
    options: Options,
    chosen: devices.Devices | None,
    slots: int,
    command: WorkerCommand | None,
    versions: Mapping[str, str],
    tell: Callable[[str], None],
) -> Subject | None:
    """What of this node's slots is to be measured; None: nothing.

    Args:
        chosen: the devices, the only ones that this process sees; None: nobody has looked at them.
        command: what the workers run; None: the group's command.
        versions: of torch and the driver, by name.
        tell: shows a line at the terminal.
    """
    script = policy.script_of(command, options.script, module=options.torchrun.module)
    if not policy.is_wanted(options.measure, script, weighed=options.weight is not None):
        return None
    try:
        is_cpu_job = devices.is_cpu_job(chosen)
        return subject(chosen, slots, options.measure_dtype, versions, os.environ, cpu=is_cpu_job)
    except NotMeasurable as error:
        tell(f"warning: the speed of this node's slots is not measured: {error}")
        return None


def speed_check(
    options: Options,
    what: Subject,
    incarnation: str,
    measured: Callable[[Sequence[float]], None],
    tell: Callable[[str], None],
) -> SpeedCheck:
    """What measures it before the first round; see `SpeedCheck`.

    Args:
        measured: gets the speed of each slot.
    """
    try:
        place: Path | None = cache.folder(os.environ)
    except RuntimeError:  # this user has no home
        place = None
    return SpeedCheck(what, incarnation, measured, tell, place=place, again=options.measure == "again")
