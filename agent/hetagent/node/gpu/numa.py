"""Checks that --numa-binding can work here, once, before failing starts of workers use up the group's restarts."""

import shutil

from hetagent.node.gpu.discovery import NoAnswer, ask_torch

_FIND_CPUS = """
import sys
from hetagent.torch_compat.flags import find_cpus
find_cpus(sys.argv[1], int(sys.argv[2]))
"""


class NumaError(ValueError):
    """Workers cannot be bound; the text says why and what to do."""


def check(mode: str, slots: int, *, cpu: bool) -> None:
    """Find the CPUs for each worker as torch will at every start. Takes as long as `import torch`.

    Args:
        mode: the value of --numa-binding.
        slots: how many workers.
        cpu: whether they are CPU workers.

    Raises:
        NumaError: torch cannot bind them.
    """
    flag = f"--numa-binding {mode}"
    if cpu:
        raise NumaError(
            f"{flag} binds workers to the CPUs near their GPUs, but CPU workers have none: leave it out"
        )
    if shutil.which("numactl") is None:
        raise NumaError(f"{flag} needs the program numactl: install it on this node, or leave the flag out")
    try:
        ask_torch(_FIND_CPUS, [mode, str(slots)])
    except NoAnswer as error:
        raise NumaError(f"{flag}: torch cannot find the CPUs near the GPUs ({error}): leave it out") from None
