"""Takes the Python stacks of workers, which torch's server in each shows unless it holds the GIL."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hetagent.monitor.stall_detector import State
from hetagent.monitor.torch_client import NoAnswer, Query
from hetagent.monitor.worker_probe import WorkerProbe
from hetagent.node.self_pipe import wait_readable
from hetagent.worker import runner
from hetrdzv.protocol.stacks import Stack

MAX_WHY = 250

QUESTION = "dump_traceback"

WHY_FROZEN: Mapping[State, str] = {
    State.ENDED: "its process has ended",
    State.STOPPED: "its process is stopped by a signal (state T)",
    State.BLOCKED: "its process hangs in the kernel (state D)",
}
"""Of processes that cannot show their stacks whatever is tried."""

_OURS = re.compile(re.escape(runner.__file__))


def take_stacks(probes: Sequence[WorkerProbe], timeout_s: float) -> list[Stack]:
    """The stacks of workers. Torch's server in each gets no other question until an earlier one is answered."""
    stacks = {
        probe.track.rank: _none(probe, why) for probe in probes if (why := WHY_FROZEN.get(probe.state()))
    }
    rest = [probe for probe in probes if probe.track.rank not in stacks]
    _answers(rest, time.monotonic() + timeout_s, stacks)
    for probe in rest:
        why = "holds the GIL" if probe.stack_query is not None else "does not run torch's server"
        advice = f"on its node, py-spy dump --pid {probe.track.pid} shows where it is"
        stacks.setdefault(probe.track.rank, _none(probe, f"it {why}: {advice}"))
    return [stacks[probe.track.rank] for probe in probes]


def _none(probe: WorkerProbe, why: str) -> Stack:
    return Stack(rank=probe.track.rank, why=why[:MAX_WHY])


def _shown(probe: WorkerProbe, dump: bytes) -> Stack:
    text = remove_internal_frames(dump.decode(errors="replace"))
    return (
        Stack(rank=probe.track.rank, text=text) if text else _none(probe, "none of its threads runs Python")
    )


def _answers(probes: Sequence[WorkerProbe], until: float, stacks: dict[int, Stack]) -> None:
    """What the workers' own servers answer in time."""
    waiting = {}
    for probe in probes:
        if probe.stack_query is None:
            with suppress(OSError):
                probe.stack_query = Query(probe.socket, QUESTION)
        if probe.stack_query is not None:
            waiting[probe.stack_query] = probe
    while waiting and (left_s := until - time.monotonic()) > 0:
        for query in wait_readable([*waiting], left_s):
            probe = waiting[query]
            try:
                answer = query.read_answer()
                if answer is None:
                    continue
                stacks[probe.track.rank] = _shown(probe, answer)
            except NoAnswer:
                pass
            query.close()
            probe.stack_query = None
            del waiting[query]


def remove_internal_frames(dump: str) -> str:
    """A dump of faulthandler without threads that have no Python, and the frames of our runner."""
    lines = []
    for thread in re.split(r"\n(?=(?:Current t|T)hread )", f"\n{dump.strip()}")[1:]:
        frames = [line for line in thread.splitlines() if line and not _OURS.search(line)]
        if len(frames) > 1 and "<no Python frame>" not in thread:
            lines += frames
    return "\n".join(lines)
