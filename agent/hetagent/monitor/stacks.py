"""Takes the Python stacks of workers: torch's server in each shows its own, py-spy those that hold the GIL."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hetagent.launch.command import python_interpreter
from hetagent.monitor.stall_detector import State
from hetagent.monitor.torch_client import NoAnswer, Query
from hetagent.monitor.worker_probe import WorkerProbe
from hetagent.node.self_pipe import wait_readable
from hetagent.worker import runner
from hetrdzv.protocol.stacks import Stack

MAX_WHY = 250

QUESTION = "dump_traceback"

INSTALL = "pip install py-spy on its node to see it"

WHY_FROZEN: Mapping[State, str] = {
    State.ENDED: "its process has ended",
    State.STOPPED: "its process is stopped by a signal (state T)",
    State.BLOCKED: "its process hangs in the kernel (state D)",
}
"""Of processes that cannot show their stacks whatever is tried."""

_OURS = re.compile(rf"{re.escape(runner.__file__)}|\(hetagent/worker/runner\.py:\d+\)")


def take_stacks(probes: Sequence[WorkerProbe], timeout_s: float) -> list[Stack]:
    """The stacks of workers. Torch's server in each gets no other question until an earlier one is answered."""
    until = time.monotonic() + timeout_s
    stacks = {
        probe.track.rank: _none(probe, why) for probe in probes if (why := WHY_FROZEN.get(probe.state()))
    }
    beside = os.path.join(os.path.dirname(python_interpreter()), "py-spy")
    spy = shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else None)
    rest = [probe for probe in probes if probe.track.rank not in stacks]
    _answers(rest, until - timeout_s / 2 if spy else until, stacks)
    rest = [probe for probe in rest if probe.track.rank not in stacks]
    if spy is not None:
        _spied(rest, spy, until, stacks)
    for probe in rest:
        why = "holds the GIL" if probe.stack_query is not None else "does not run torch's server"
        stacks.setdefault(probe.track.rank, _none(probe, f"it {why}: {INSTALL}"))
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
        if probe.stack_query is None and probe.socket is not None:
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


def _spied(probes: Sequence[WorkerProbe], spy: str, until: float, stacks: dict[int, Stack]) -> None:
    """What py-spy sees from outside, in time."""
    running = [
        subprocess.Popen(
            [spy, "dump", "--pid", str(probe.track.pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for probe in probes
    ]
    for probe, process in zip(probes, running, strict=True):
        try:
            text, error = process.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            stacks[probe.track.rank] = _none(probe, "py-spy did not answer in time")
            continue
        output = error.decode(errors="replace").strip().replace("\n", " ")
        failed = process.returncode != 0
        stacks[probe.track.rank] = (
            _none(probe, f"py-spy could not see it: {output}") if failed else _shown(probe, text)
        )


def remove_internal_frames(dump: str) -> str:
    """A dump of faulthandler or py-spy without what is ours: threads without Python, and the frames of our runner.

    py-spy puts the command line above it, which may tell more than where the worker is.
    """
    lines = []
    for thread in re.split(r"\n(?=(?:Current t|T)hread )", f"\n{dump.strip()}")[1:]:
        frames = [line for line in thread.splitlines() if line and not _OURS.search(line)]
        if len(frames) > 1 and "<no Python frame>" not in thread:
            lines += frames
    return "\n".join(lines)
