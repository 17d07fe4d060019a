"""A worker that hangs, once per round: run by benchmarks/hangs.py.

    hetagent ... benchmarks/hanging.py KIND FOLDER

All-reduces every few milliseconds. After a while the victim of the round, another one each time, does KIND. It says
so first in FOLDER/hangs: round, rank, and when (wall-clock seconds).
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 100
"""How many steps are healthy."""

FOREVER_S = 3600


def hold_the_gil() -> None:
    """Sleep in C without letting another Python thread run."""
    ctypes.PyDLL(None).sleep(FOREVER_S)


def block_in_the_kernel() -> None:
    """Wait uninterruptibly, as the parent in vfork(2) does until its child ends: state D."""
    libc = ctypes.CDLL(None)
    if (
        libc.syscall(58) == 0
    ):  # vfork on x86-64; the child shares the stack of the parent, so it must not return
        libc.syscall(34)  # pause(2)


def sleep() -> None:
    """Do something else."""
    time.sleep(FOREVER_S)


def stop() -> None:
    """Be stopped by a signal."""
    os.kill(os.getpid(), signal.SIGSTOP)


ALONE: dict[str, Callable[[], None]] = {
    "sleeps": sleep,
    "holds the GIL": hold_the_gil,
    "is stopped": stop,
    "blocks in the kernel": block_in_the_kernel,
}
"""What a victim does alone."""


def main() -> None:
    """Step until the job hangs."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    other = dist.new_group(list(range(world)))
    number = int(os.environ["HET_ROUND"])
    victim = number % world
    data = torch.ones(10)
    for step in range(1_000_000):
        time.sleep(0.005)
        if step == STEPS and rank == victim:
            with (folder / "hangs").open("a") as file:
                file.write(json.dumps({"round": number, "rank": rank, "at": time.time()}) + "\n")
            if kind in ALONE:
                ALONE[kind]()
        if step >= STEPS and rank == victim:
            if kind == "waits elsewhere":  # a dead-lock: everybody else waits in the default group
                dist.all_reduce(data, group=other)
            elif kind == "asks for something else":
                dist.broadcast(data, victim)
            elif kind == "is slow":
                time.sleep(1.0)
        dist.all_reduce(data)


if __name__ == "__main__":
    main()
