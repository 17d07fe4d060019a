"""Takes the Python stacks of workers: torch's server in each shows its own, py-spy those that hold the GIL."""

import os
import re
import selectors
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hetagent.monitor.torch_client import Asked, NoAnswer
from hetagent.node.processes import proctree as processes
from hetagent.worker import runner
from hetrdzv.protocol.stacks import Stack

MAX_STACK = 16_000
"""How much of a stack is told (characters)."""

MAX_SHOWN = 300_000
"""How much of all stacks of a node the server is sent at once (characters): its requests have a limit."""

MAX_WHY = 250

QUESTION = "dump_traceback"

INSTALL = "pip install py-spy on its node to see it"

KERNEL_S = 1.0
"""How long a process has to be in state D at every look to count as one that hangs in the kernel (seconds; less where
there is less than four times as much time): a disk, a page that is read, a child that a shell starts take it there for
a moment."""

KERNEL_LOOK_S = 0.05
"""How long from one of these looks to the next (seconds)."""

HURRY_S = 0.1
"""How often whoever waits for stacks looks whether somebody is in a hurry (seconds)."""

_WHY_FROZEN = {
    None: "its process has ended",
    "Z": "its process has ended",
    "X": "its process has ended",
    "T": "its process is stopped by a signal (state T)",
    "D": "its process hangs in the kernel (state D)",
}

_OURS = re.compile(rf"{re.escape(runner.__file__)}|\(hetagent/worker/runner\.py:\d+\)")


@dataclass(slots=True)
class Target:
    """A worker whose stack is wanted.

    Attributes:
        socket: where torch's server listens in it, if it does.
        asked: an earlier question that it has not answered: it gets no other one until then.
    """

    rank: int
    pid: int
    socket: str | None
    asked: Asked | None = None

    def close(self) -> None:
        """Give up waiting for an answer, or take note that it has come."""
        if self.asked is not None:
            self.asked.close()
            self.asked = None


def take(targets: Sequence[Target], timeout_s: float, python: str, hurried: threading.Event) -> list[Stack]:
    """The stacks of workers, taken at the same time.

    Args:
        timeout_s: how long it may take, about (seconds).
        python: the workers' interpreter; py-spy is looked for beside it, too.
        hurried: once it is set, what has not come is not waited for.
    """
    until = time.monotonic() + timeout_s
    stacks = _frozen(targets, min(KERNEL_S, timeout_s / 4), hurried)
    rest = [target for target in targets if target.rank not in stacks]
    spy = _py_spy(python)
    stacks |= _answers(rest, until - timeout_s / 2 if spy else until, hurried)
    rest = [target for target in rest if target.rank not in stacks]
    if spy is not None and not hurried.is_set():
        stacks |= _spied(rest, spy, until)
    for target in rest:
        if target.rank not in stacks:
            why = "holds the GIL" if target.asked is not None else "does not run torch's server"
            late = hurried.is_set() and target.asked is not None
            stacks[target.rank] = _none(target, "it has not answered yet" if late else f"it {why}: {INSTALL}")
    return [stacks[target.rank] for target in targets]


def _none(target: Target, why: str) -> Stack:
    return Stack(rank=target.rank, why=why[:MAX_WHY])


def _shown(target: Target, dump: bytes) -> Stack:
    text = tidy(dump.decode(errors="replace"))
    return Stack(rank=target.rank, text=text) if text else _none(target, "none of its threads runs Python")


def _frozen(targets: Sequence[Target], timeout_s: float, hurried: threading.Event) -> dict[int, Stack]:
    """Those whose processes cannot show their stacks whatever is tried, with the reason."""
    states = {target.rank: processes.state(target.pid) for target in targets}
    until = time.monotonic() + timeout_s
    while "D" in states.values() and time.monotonic() < until and not hurried.wait(KERNEL_LOOK_S):
        for target in targets:
            if states[target.rank] == "D":
                states[target.rank] = processes.state(target.pid)
    too_early = "D" if hurried.is_set() else ""
    return {
        target.rank: _none(target, why)
        for target in targets
        if (why := _WHY_FROZEN.get(state := states[target.rank])) is not None and state != too_early
    }


def _answers(targets: Sequence[Target], until: float, hurried: threading.Event) -> dict[int, Stack]:
    """What the workers' own servers answer in time."""
    stacks: dict[int, Stack] = {}
    with selectors.DefaultSelector() as selector:
        for target in targets:
            if target.asked is None and target.socket is not None:
                with suppress(OSError):
                    target.asked = Asked(target.socket, QUESTION)
            if target.asked is not None:
                selector.register(target.asked, selectors.EVENT_READ, target)
        while selector.get_map() and (left_s := until - time.monotonic()) > 0 and not hurried.is_set():
            for key, _ in selector.select(min(left_s, HURRY_S)):
                target = key.data
                try:
                    answer = target.asked.read()
                    if answer is None:
                        continue
                    stacks[target.rank] = _shown(target, answer)
                except NoAnswer:
                    pass
                selector.unregister(target.asked)
                target.close()
    return stacks


def _py_spy(python: str) -> str | None:
    beside = os.path.join(os.path.dirname(python), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else None)


def _spied(targets: Sequence[Target], spy: str, until: float) -> dict[int, Stack]:
    """What py-spy sees from outside, in time."""
    running = {
        target.rank: (
            target,
            subprocess.Popen(
                [spy, "dump", "--pid", str(target.pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ),
        )
        for target in targets
    }
    stacks = {}
    for rank, (target, process) in running.items():
        try:
            text, error = process.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            stacks[rank] = _none(target, "py-spy did not answer in time")
            continue
        said = error.decode(errors="replace").strip().replace("\n", " ")
        stacks[rank] = (
            _shown(target, text)
            if process.returncode == 0
            else _none(target, f"py-spy could not see it: {said}")
        )
    return stacks


def tidy(dump: str) -> str:
    """A dump of faulthandler or py-spy without what is ours: threads without Python, and the frames of our runner.

    py-spy puts the command line above it, which may tell more than where the worker is.
    """
    kept = []
    for thread in re.split(r"\n(?=(?:Current t|T)hread )", f"\n{dump.strip()}")[1:]:
        frames = [line for line in thread.splitlines() if line and not _OURS.search(line)]
        if len(frames) > 1 and "<no Python frame>" not in thread:
            kept += frames
    return "\n".join(kept)[:MAX_STACK]


def fitting(stacks: Sequence[Stack]) -> list[Stack]:
    """As much of each as the server takes of all of them together."""
    most = MAX_SHOWN // max(1, len(stacks))
    return [replace(stack, text=stack.text[:most]) for stack in stacks]


def write(stacks: Sequence[Stack], folders: Mapping[int, str]) -> None:
    """Write each stack into a file `stack.txt`.

    Args:
        folders: of the ranks.

    Raises:
        OSError: it cannot be written.
    """
    for stack in stacks:
        if stack.rank in folders:
            path = os.path.join(folders[stack.rank], "stack.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"{stack.text or f'no stack: {stack.why}'}\n")
