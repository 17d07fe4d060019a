"""Checks that --numa-binding can work here, once, before failing starts of workers use up the group's restarts."""

import shutil
import subprocess
import sys

from torch.numa.binding import AffinityMode

ASK_TIMEOUT_S = 60.0
"""How long a child process may take to import torch and find the CPUs near the GPUs (seconds)."""

# Not in this process: torch initialises CUDA for it.
_ASK_TORCH = """
import sys
from torch.numa.binding import AffinityMode, NumaOptions, _get_validated_logical_cpus_to_bind_to
for rank in range(int(sys.argv[2])):
    options = NumaOptions(affinity_mode=AffinityMode(sys.argv[1]))
    _get_validated_logical_cpus_to_bind_to(gpu_index=rank, numa_options=options)
"""


class NumaError(ValueError):
    """Workers cannot be bound; the text says why and what to do."""


def check(mode: AffinityMode, slots: int, *, cpu: bool) -> None:
    """Find the CPUs for each worker as torch will at every start. Takes as long as `import torch`.

    Args:
        mode: the value of --numa-binding.
        slots: how many workers.
        cpu: whether they are CPU workers.

    Raises:
        NumaError: torch cannot bind them.
    """
    flag = f"--numa-binding {mode.value}"
    if cpu:
        raise NumaError(
            f"{flag} binds workers to the CPUs near their GPUs, but CPU workers have none: leave it out"
        )
    if shutil.which("numactl") is None:
        raise NumaError(f"{flag} needs the program numactl: install it on this node, or leave the flag out")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH, mode.value, str(slots)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NumaError(
            f"{flag}: torch has not found the CPUs within {ASK_TIMEOUT_S:g} s: leave it out"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise NumaError(f"{flag}: torch cannot find the CPUs near the GPUs ({last}): leave it out")
