"""Whether the driver has given up a GPU of this node."""

import threading
from collections.abc import Sequence

from hetagent.health.checks import HEALTHY, HealthResult
from hetagent.node.gpu.discovery import GpuBroken, query_memory


def check_gpus(uuids: Sequence[str], cancelled: threading.Event) -> HealthResult:
    """A lost GPU needs a person."""
    try:
        query_memory(uuids)
    except GpuBroken as error:
        return HealthResult(f"its {error}", fatal=True)
    return HEALTHY
