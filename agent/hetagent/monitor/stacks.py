"""Takes the Python stacks of workers: torch's server in each shows its own, py-spy those that hold the GIL."""

import os
import re
import selectors
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hetagent.monitor.stall_detector import State
from hetagent.monitor.torch_client import NoAnswer, Query
from hetagent.worker import runner
from hetrdzv.protocol.stacks import Stack

MAX_STACK = 16_000
"""How much of a stack is told (characters)."""

MAX_SHOWN = 300_000
"""How much of all stacks of a node the server is sent at once (characters): its requests have a limit."""

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


@dataclass(slots=True)
class Target:
    """A worker whose stack is wanted, of torch's server if it has a socket.

    It gets no other query until an earlier one is answered.
    """

    rank: int
    pid: int
    socket: str | None
    query: Query | None = None

    def close(self) -> None:
        """Give up waiting for an answer, or take note that it has come."""
        if self.query is not None:
            self.query.close()
            self.query = None


def take(
    targets: Sequence[Target], states: Mapping[int, State], timeout_s: float, python: str
) -> list[Stack]:
    """The stacks of workers, whose states are known by rank; py-spy is looked for beside `python`, too."""
    until = time.monotonic() + timeout_s
    frozen = {target.rank: WHY_FROZEN.get(states[target.rank]) for target in targets}
    stacks = {target.rank: _none(target, why) for target in targets if (why := frozen[target.rank])}
    spy = _py_spy(python)
    rest = [target for target in targets if target.rank not in stacks]
    _answers(rest, until - timeout_s / 2 if spy else until, stacks)
    rest = [target for target in rest if target.rank not in stacks]
    if spy is not None:
        _spied(rest, spy, until, stacks)
    for target in rest:
        why = "holds the GIL" if target.query is not None else "does not run torch's server"
        stacks.setdefault(target.rank, _none(target, f"it {why}: {INSTALL}"))
    return [stacks[target.rank] for target in targets]


def _none(target: Target, why: str) -> Stack:
    return Stack(rank=target.rank, why=why[:MAX_WHY])


def _shown(target: Target, dump: bytes) -> Stack:
    text = tidy(dump.decode(errors="replace"))
    return Stack(rank=target.rank, text=text) if text else _none(target, "none of its threads runs Python")


def _answers(targets: Sequence[Target], until: float, stacks: dict[int, Stack]) -> None:
    """What the workers' own servers answer in time."""
    with selectors.DefaultSelector() as selector:
        for target in targets:
            if target.query is None and target.socket is not None:
                with suppress(OSError):
                    target.query = Query(target.socket, QUESTION)
            if target.query is not None:
                selector.register(target.query, selectors.EVENT_READ, target)
        while selector.get_map() and (left_s := until - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                target = key.data
                try:
                    answer = target.query.read()
                    if answer is None:
                        continue
                    stacks[target.rank] = _shown(target, answer)
                except NoAnswer:
                    pass
                selector.unregister(target.query)
                target.close()


def _py_spy(python: str) -> str | None:
    beside = os.path.join(os.path.dirname(python), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else None)


def _spied(targets: Sequence[Target], spy: str, until: float, stacks: dict[int, Stack]) -> None:
    """What py-spy sees from outside, in time."""
    running = [
        subprocess.Popen(
            [spy, "dump", "--pid", str(target.pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for target in targets
    ]
    for target, process in zip(targets, running, strict=True):
        try:
            text, error = process.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            stacks[target.rank] = _none(target, "py-spy did not answer in time")
            continue
        output = error.decode(errors="replace").strip().replace("\n", " ")
        failed = process.returncode != 0
        stacks[target.rank] = (
            _none(target, f"py-spy could not see it: {output}") if failed else _shown(target, text)
        )


def tidy(dump: str) -> str:
    """A dump of faulthandler or py-spy without what is ours: threads without Python, and the frames of our runner.

    py-spy puts the command line above it, which may tell more than where the worker is.
    """
    lines = []
    for thread in re.split(r"\n(?=(?:Current t|T)hread )", f"\n{dump.strip()}")[1:]:
        frames = [line for line in thread.splitlines() if line and not _OURS.search(line)]
        if len(frames) > 1 and "<no Python frame>" not in thread:
            lines += frames
    return "\n".join(lines)[:MAX_STACK]


def fitting(stacks: Sequence[Stack]) -> list[Stack]:
    """As much of each as the server takes of all of them together."""
    most = MAX_SHOWN // max(1, len(stacks))
    return [replace(stack, text=stack.text[:most]) for stack in stacks]
