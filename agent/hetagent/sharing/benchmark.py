"""Measures every slot of a node at the same time. Runs as a process of its own, so that no GPU memory stays in use.

    python -m hetagent.sharing.benchmark '{"dtype": "float16", "visible": ["0", "1"]}'
    python -m hetagent.sharing.benchmark '{"dtype": "float32", "slots": 4}'

It imports torch once and forks a child for each slot before anything is initialised. The child of a GPU sees only that
one, as a MIG slice requires; that of a CPU slot keeps the limits on threads that a worker gets. Prints a JSON list: for
each slot `{"matmul": FLOP/s, "bandwidth": bytes/s}` or `{"error": why}`.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetagent.node.gpu.devices import VISIBLE

READY_S = 30.0
"""How long the devices may take to be ready once torch is imported (seconds). Without persistence mode the driver takes
one to three for each GPU (https://docs.nvidia.com/deploy/driver-persistence/), and it makes contexts one by one."""

LIMIT_S = 2.0
"""How long all of it may take once they are ready (seconds); a slot that needs longer is not measured."""

WARM_UNTIL_S, MATMUL_UNTIL_S, MEMORY_UNTIL_S = 0.4, 1.2, 1.6
"""When each part is over (seconds after all were ready). All slots keep to the same times: each is measured while the
others work, as in a job."""

LATE_S = 0.15
"""How long a part lasts in a slot that is late (seconds)."""

REPETITION_S = 0.005
"""How long one multiplication should take at least (seconds): so long that starting it costs nothing beside it."""

SMALLEST, LARGEST = 128, {"cuda": 8192, "cpu": 1024}
"""Sides of the square matrices: doubled until a multiplication takes `REPETITION_S`."""

COPIED_BYTES = {"cuda": 1 << 28, "cpu": 1 << 25}
"""How much is copied at once (bytes): more than a cache holds."""

Begin = Callable[[], float]
"""Says that a device is ready; returns when all are, with the time (monotonic seconds)."""


def main() -> None:
    """Measure what the first argument asks for, and print the results."""
    asked = json.loads(sys.argv[1])
    visible: Sequence[str] | None = asked.get("visible")
    import torch

    def on(entry: str | None) -> Callable[[Begin], Mapping[str, float]]:
        return lambda begin: _on(torch, entry, asked["dtype"], begin)

    slots: Sequence[str | None] = [None] * asked["slots"] if visible is None else visible
    print(json.dumps(in_children([on(entry) for entry in slots])), flush=True)


def in_children(
    tasks: Sequence[Callable[[Begin], Mapping[str, Any]]], ready_s: float = READY_S, limit_s: float = LIMIT_S
) -> list[Mapping[str, Any]]:
    """Run each task in a forked child. A child that is not done `limit_s` after all were ready is killed.

    Args:
        ready_s: after that time they begin without those that are not ready (seconds).
    """
    gate, closed = os.pipe()
    children = [_fork(task, gate, closed) for task in tasks]
    os.close(gate)
    said = dict.fromkeys((pipe for _, pipe in children), b"")
    open_pipes = set(said)

    def listen(deadline: float, *, ready: bool) -> None:
        """Hear the children until they have ended, or are ready, or it is too late."""
        while open_pipes and (left_s := deadline - time.monotonic()) > 0:
            if ready and all(said[pipe] for pipe in open_pipes):
                return
            for pipe in select.select(list(open_pipes), [], [], left_s)[0]:
                chunk = os.read(pipe, 65_536)
                said[pipe] += chunk
                if not chunk:
                    open_pipes.discard(pipe)

    listen(time.monotonic() + ready_s, ready=True)
    os.close(closed)  # which opens the gate
    listen(time.monotonic() + limit_s, ready=False)
    results: list[Mapping[str, Any]] = []
    for pid, pipe in children:
        if pipe in open_pipes:
            os.kill(pid, signal.SIGKILL)
        results.append(_result(said[pipe], is_late=pipe in open_pipes))
    return results


def _fork(task: Callable[[Begin], Mapping[str, Any]], gate: int, closed: int) -> tuple[int, int]:
    """Start a child; returns its pid and the pipe that it writes to: a line when it is ready, then its result.

    Args:
        gate, closed: the ends of a pipe. The child begins when nobody has `closed` any more.
    """
    ours, theirs = os.pipe()
    if pid := os.fork():
        os.close(theirs)
        return pid, ours

    def begin() -> float:
        os.write(theirs, b"\n")
        os.read(gate, 1)
        return time.monotonic()

    try:
        os.close(closed)
        try:
            result = task(begin)
        except BaseException as error:  # whatever a driver raises; the others go on
            text = str(error).strip().partition("\n")[0]
            result = {"error": f"{type(error).__name__}: {text}"[:500]}
        os.write(theirs, json.dumps(result).encode())
    finally:
        os._exit(0)


def _result(said: bytes, *, is_late: bool) -> Mapping[str, Any]:
    if is_late and not said:
        return {"error": f"its device was not ready within {READY_S:g} s"}
    if is_late:
        return {"error": f"not done within {LIMIT_S:g} s"}
    if not said.strip():
        return {"error": "its process died"}
    result: Mapping[str, Any] = json.loads(said)
    return result


def _on(torch: Any, entry: str | None, dtype: str, begin: Begin) -> Mapping[str, float]:
    """Measure a GPU by its entry in CUDA_VISIBLE_DEVICES, or a CPU slot."""
    if entry is not None:
        os.environ[VISIBLE] = entry
    return measure(torch, "cpu" if entry is None else "cuda", dtype, begin)


def measure(torch: Any, device: str, dtype: str, begin: Begin) -> Mapping[str, float]:
    """How fast this process multiplies matrices (FLOP/s), and moves memory (bytes/s, read and written).

    Args:
        device: `cuda`, which is the first visible GPU, or `cpu`.
        dtype: `float32`, `tf32`, `float16` or `bfloat16`.
        begin: called once the device and its libraries are loaded.
    """
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    with torch.inference_mode():
        _multiplied(torch, SMALLEST, device, kind)()
        wait()
        begun = begin()
        side, multiply = _sized(torch, device, kind, wait)
        while time.monotonic() < begun + WARM_UNTIL_S:
            multiply()
            wait()
        matmul = rate(multiply, wait, 2.0 * side**3, begun + MATMUL_UNTIL_S)
        del multiply  # and its matrices
        size = COPIED_BYTES[device]
        if device == "cuda":
            size = min(size, torch.cuda.mem_get_info()[0] // 8)
        source = torch.ones(max(1, size // kind.itemsize), dtype=kind, device=device)
        target = torch.empty_like(source)
        target.copy_(source)
        wait()
        moved = 2.0 * source.nbytes
        return {
            "matmul": matmul,
            "bandwidth": rate(lambda: target.copy_(source), wait, moved, begun + MEMORY_UNTIL_S),
        }


def rate(work: Callable[[], object], wait: Callable[[], object], amount: float, until: float) -> float:
    """How much of something is done per second, on average.

    Args:
        work: does some of it, or has a device begin it.
        wait: until the device has done it.
        amount: how much `work` does.
        until: when to stop (monotonic seconds); after `LATE_S` at the earliest.
    """
    begun = now = time.monotonic()
    until, done = max(until, begun + LATE_S), 0
    while now < until:
        work()
        wait()
        done += 1
        now = time.monotonic()
    return amount * done / (now - begun)


def _sized(
    torch: Any, device: str, kind: Any, wait: Callable[[], object]
) -> tuple[int, Callable[[], object]]:
    """Square matrices that take long enough to multiply: their side, and what multiplies them once."""
    side = SMALLEST
    while True:
        multiply = _multiplied(torch, side, device, kind)
        multiply()  # the first one of a size sets it up
        wait()
        begun = time.monotonic()
        multiply()
        wait()
        if time.monotonic() - begun >= REPETITION_S or side >= LARGEST[device]:
            return side, multiply
        side *= 2


def _multiplied(torch: Any, side: int, device: str, kind: Any) -> Callable[[], object]:
    """What multiplies two square matrices."""
    left, right = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    result = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=result)


if __name__ == "__main__":
    main()
