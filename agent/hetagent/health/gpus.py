"""Whether the NVIDIA driver answers, and has given up none of this node's GPUs."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hetagent.health.health_checks import HEALTHY, HealthResult
from hetagent.node.gpu.driver import GpuLostError, raise_if_lost

WAIT_S, LOOK_S = 60.0, 0.1
"""How long the driver may take, and how often to look whether that is still wanted (seconds)."""


def check_gpus(uuids: Sequence[str], cancelled: threading.Event) -> HealthResult:
    """A lost GPU needs a person, and so does a wedged driver, which never answers."""
    answer = ThreadPoolExecutor(1, "hetagent-nvml").submit(raise_if_lost, uuids)
    until = time.monotonic() + WAIT_S
    while not cancelled.is_set():
        if time.monotonic() >= until:
            return HealthResult(f"its NVIDIA driver has not answered for {WAIT_S:g} s", fatal=True)
        try:
            answer.result(LOOK_S)
            break
        except TimeoutError:
            continue
        except GpuLostError as error:
            return HealthResult(f"its {error}", fatal=True)
    return HEALTHY
