"""A second process group beside the one over which workers train: a thread saves a checkpoint in one of gloo.

All may train over a backend of which nothing is told.
"""

import os
import threading
import time

import torch.distributed as dist

BESIDE = "BESIDE"
"""The variable that says what the jobs of a benchmark do: `side` saves so, `unseen` also trains over such a backend."""


class Checkpoints:
    """A checkpoint that is saved in a thread, as by torch.distributed.checkpoint.async_save; rank 0 writes the longest.

    Args:
        write_s: for how long (seconds).
    """

    def __init__(self, write_s: float) -> None:
        self._write_s = write_s
        self._group = dist.new_group(backend="gloo")
        dist.barrier(group=self._group)
        self._thread = threading.Thread(target=self._save, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether all ranks have written theirs."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Wait until they have."""
        self._thread.join()

    def _save(self) -> None:
        if dist.get_rank() == 0:
            time.sleep(self._write_s)
        dist.barrier(group=self._group)


def begin(backend: str = "gloo") -> None:
    """Meet the other ranks."""
    if backend == "unseen":
        import unseen  # noqa: F401 -- registers it
    dist.init_process_group(backend)


def begin_as_told(write_s: float) -> Checkpoints | None:
    """Meet the other ranks as `BESIDE` says, and begin to save where it says so."""
    kind = os.environ.get(BESIDE, "")
    begin("unseen" if kind == "unseen" else "gloo")
    return Checkpoints(write_s) if kind else None
