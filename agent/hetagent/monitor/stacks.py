"""Takes the Python stacks of workers, which torch's server in each shows unless it holds the GIL."""

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from hetagent.monitor.stall_detector import ProcessState
from hetagent.monitor.torch_client import QueryError, TorchServerQuery
from hetagent.monitor.worker_probe import WorkerProbe
from hetagent.node.self_pipe import wait_readable
from hetagent.worker import runner
from hetrdzv.protocol.worker_output import WorkerOutput

MAX_REASON_CHARACTERS = 250

STACKS_HANDLER = "dump_traceback"

FROZEN_EXPLANATIONS: Mapping[ProcessState, str] = {
    ProcessState.ENDED: "its process has ended",
    ProcessState.STOPPED: "its process is stopped by a signal (state T)",
    ProcessState.BLOCKED: "its process hangs in the kernel (state D)",
}
"""Of processes that cannot show their stacks whatever is tried."""


def take_stacks(probes: Sequence[WorkerProbe], timeout_s: float) -> list[WorkerOutput]:
    """The stacks of workers, all taken at the same time."""
    until = time.monotonic() + timeout_s
    with ThreadPoolExecutor(max(1, len(probes))) as pool:
        return [*pool.map(lambda probe: _take_stack(probe, until), probes)]


def _take_stack(probe: WorkerProbe, until: float) -> WorkerOutput:
    """One worker's. Torch's server in it gets no other question until an earlier one is answered."""
    rank, why = probe.track.rank, FROZEN_EXPLANATIONS.get(probe.state())
    if why is None:
        try:
            query = probe.stack_query = probe.stack_query or TorchServerQuery(probe.socket, STACKS_HANDLER)
            while wait_readable([query], max(0.0, until - time.monotonic())):
                if (answer := query.read_answer()) is not None:
                    probe.close_stack_query()
                    text = remove_internal_frames(answer.decode(errors="replace"))
                    return WorkerOutput(
                        rank=rank, text=text, why="" if text else "none of its threads runs Python"
                    )
            why = "it holds the GIL"
        except (QueryError, OSError):
            probe.close_stack_query()
            why = "it does not run torch's server"
        why = f"{why}: on its node, py-spy dump --pid {probe.track.pid} shows where it is"
    return WorkerOutput(rank=rank, why=why[:MAX_REASON_CHARACTERS])


def remove_internal_frames(dump: str) -> str:
    """A dump of faulthandler without threads that have no Python, and the frames of our runner."""
    lines = []
    for thread in re.split(r"\n(?=(?:Current t|T)hread )", f"\n{dump.strip()}")[1:]:
        frames = [line for line in thread.splitlines() if line and runner.__file__ not in line]
        if len(frames) > 1 and "<no Python frame>" not in thread:
            lines += frames
    return "\n".join(lines)
