"""A worker of a job that pauses: run by tests of false alarms, and by people who look into one.

    hetagent ... pauses.py KIND SECONDS FOLDER [announced]

Three ranks take some steps. Then what KIND says happens for SECONDS, and more steps follow; `announced`: with
`progress.long()`, where it is a pause that nobody can tell from a hang. The ranks write their pids into FOLDER.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hetagent import progress

DATA = torch.ones(10)


def save_aside(write_s: float) -> threading.Thread:
    """A thread that saves in a second process group, as torch.distributed.checkpoint.async_save; rank 0 for so long."""
    group = dist.new_group(backend="gloo")
    dist.barrier(group=group)

    def save() -> None:
        if dist.get_rank() == 0:
            time.sleep(write_s)
        dist.barrier(group=group)

    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    return thread


class Pause:
    """How long the pause is, and whose.

    Attributes:
        seconds: how long it is.
        folder: the ranks' pids are there.
        rank: of this worker; it is known without a process group.
    """

    def __init__(self, seconds: float, folder: Path, *, announced: bool) -> None:
        self.seconds = seconds
        self.folder = folder
        self.rank = int(os.environ["RANK"])
        self._announced = announced

    def begin(self) -> None:
        """Meet the other ranks, and take some steps."""
        dist.init_process_group("gloo")
        self.steps()

    def steps(self) -> None:
        """Steps of a healthy job."""
        for _ in range(20):
            time.sleep(0.01)
            dist.all_reduce(DATA)

    def announced(self) -> contextlib.AbstractContextManager[None]:
        """Around a pause that cannot be told from a hang: announces it, if that is what is tried."""
        return progress.long(self.seconds + 60) if self._announced else contextlib.nullcontext()

    def compute(self, seconds: float | None = None, then: Callable[[], object] = lambda: None) -> None:
        """Keep a core busy, for the whole pause if no time is given, and do something now and then."""
        until = time.monotonic() + (self.seconds if seconds is None else seconds)
        matrix = torch.ones(200, 200)
        while time.monotonic() < until:
            for _ in range(200):
                matrix = torch.tanh(matrix @ matrix)
            then()

    def stop(self, pids: list[int]) -> None:
        """Stop processes; they go on after the pause."""
        words = " ".join(map(str, pids))
        subprocess.Popen(["sh", "-c", f"kill -STOP {words}; sleep {self.seconds}; kill -CONT {words}"])
        time.sleep(1)


# -- pauses that are not taken for hangs -----------------------------------------------------------------------


def evaluates_with_progress(pause: Pause) -> None:
    """Rank 0 evaluates alone, and counts its batches."""
    pause.begin()
    batches = iter(range(1_000_000))
    if pause.rank == 0:
        pause.compute(then=lambda: progress.progress(next(batches)))


def saves_beside_training(pause: Pause) -> None:
    """An asynchronous checkpoint in a side group, while all train in the default group."""
    pause.begin()
    saving = save_aside(pause.seconds)
    missing = torch.ones(1)
    while missing:  # as many steps on all ranks
        pause.compute(0.05)
        missing = torch.tensor([float(saving.is_alive())])
        dist.all_reduce(missing)


def saves_while_it_accumulates(pause: Pause) -> None:
    """An asynchronous checkpoint in a side group, while nobody has a collective in the default group."""
    pause.begin()
    saving = save_aside(pause.seconds)
    pause.compute()
    saving.join()


def accumulates(pause: Pause) -> None:
    """Gradients are accumulated under no_sync for long."""
    pause.begin()
    model = DistributedDataParallel(torch.nn.Linear(10, 10))
    with model.no_sync():
        pause.compute(then=lambda: model(DATA).sum().backward())
    model(DATA).sum().backward()


def compiles(pause: Pause) -> None:
    """The first step is compiled for long, on all ranks."""
    import torch._dynamo  # on a busy machine some ranks need seconds more for it than others

    def compiler(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        pause.compute()
        return graph.forward

    pause.begin()
    model = DistributedDataParallel(torch.nn.Linear(10, 10))
    torch.compile(model.module, backend=compiler)(DATA).sum().backward()


def pipelines(pause: Pause) -> None:
    """Stages of a pipeline wait for what they are sent, and the first one is slow."""
    pause.begin()
    if pause.rank == 0:
        pause.compute()
    last = dist.get_world_size() - 1
    for operation, there, to in ((dist.irecv, pause.rank > 0, -1), (dist.isend, pause.rank < last, 1)):
        if there:
            (work,) = dist.batch_isend_irecv([dist.P2POp(operation, DATA, pause.rank + to)])
            work.wait()


def loads_before_its_first_step(pause: Pause) -> None:
    """A rank loads its data for long after all have met, while the others are at the first collective."""
    dist.init_process_group("gloo")
    if pause.rank == 1:
        time.sleep(pause.seconds)


def comes_late(pause: Pause) -> None:
    """A rank meets the others late."""
    if pause.rank == 1:
        time.sleep(pause.seconds)
    pause.begin()


def opens_a_group_late(pause: Pause) -> None:
    """The others wait for a rank where a new process group connects, as NCCL does at its first collective."""
    pause.begin()
    if pause.rank == 1:
        time.sleep(pause.seconds)
    dist.barrier(group=dist.new_group())


def is_suspended(pause: Pause) -> None:
    """All workers are stopped in the middle of a step, and go on later; their agent is not."""
    pause.begin()
    if pause.rank == 0:
        ranks = range(dist.get_world_size())
        pause.stop([int((pause.folder / f"{rank}.pid").read_text()) for rank in ranks])


# -- pauses that nobody can tell from hangs --------------------------------------------------------------------


def evaluates(pause: Pause) -> None:
    """Rank 0 evaluates alone, or compiles, or saves a checkpoint."""
    pause.begin()
    if pause.rank == 0:
        with pause.announced():
            pause.compute()


def loads(pause: Pause) -> None:
    """A rank waits for its data."""
    pause.begin()
    if pause.rank == 0:
        with pause.announced():
            time.sleep(pause.seconds)


def is_stopped(pause: Pause) -> None:
    """A rank is stopped, and goes on later."""
    pause.begin()
    if pause.rank == 0:
        with pause.announced():
            pause.stop([os.getpid()])


def drains_a_pipeline(pause: Pause) -> None:
    """The first stage of a pipeline is done, and waits for the others, which go on sending: that is not seen."""
    pause.begin()
    until = time.monotonic() + pause.seconds
    goes_on = torch.ones(1)
    with pause.announced() if pause.rank else contextlib.nullcontext():
        while pause.rank and goes_on:
            time.sleep(0.05)
            goes_on = torch.tensor([float(time.monotonic() < until)])
            dist.send(goes_on, 2) if pause.rank == 1 else dist.recv(goes_on, 1)
    dist.barrier()


def main() -> None:
    """Take steps, pause, and take steps."""
    pause = Pause(float(sys.argv[2]), Path(sys.argv[3]), announced="announced" in sys.argv)
    (pause.folder / f"{pause.rank}.pid").write_text(str(os.getpid()))
    globals()[sys.argv[1]](pause)
    pause.steps()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
