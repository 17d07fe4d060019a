"""The shares of a round, for its workers: a file with the weights of all ranks, and what each has measured before."""

import json
from contextlib import suppress
from math import fsum
from pathlib import Path

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.roundhook import Environ, RoundHook
from hetagent.shares import FILE, SPEED
from hetrdzv.protocol.directive import Start

WEIGHT, SUM = "HET_WEIGHT", "HET_WEIGHT_SUM"
"""Variables of a worker: its own weight, and the sum of all."""

MOST_BYTES = 20
"""A longer file has no speed in it."""


class ShareFiles(RoundHook):
    """Gives the workers of each round their shares, and the speeds that they measured in the round before.

    With `one_per_node` one process stands for all slots here; it has a weight of its own only if they have the same.
    """

    def __init__(self, *, one_per_node: bool = False) -> None:
        self._one_per_node = one_per_node
        self._start: Start | None = None  # of the round, until it is over
        self._speeds: dict[int, bytes] = {}  # by local rank, as hetagent.shares wrote them

    def on_round_start(self, assignment: Assignment, command: WorkerCommand) -> None:
        """Write down the shares that the round begins with."""
        self._start, self._path = assignment.start, str(assignment.folder / "weights")
        decided, world_size = self._start.shares, self._start.world_size
        self._weights = decided.weights_by_rank() if decided is not None else [1.0] * world_size
        content = {"round": assignment.round, "weights": self._weights, "given": decided is not None}
        Path(self._path).write_text(json.dumps(content), encoding="utf-8")
        for local_rank, speed in self._speeds.items():
            Path(self._speed_path(self._start, local_rank)).write_bytes(speed)

    def worker_env(self, local_rank: int) -> Environ:
        assert self._start is not None
        first = self._start.rank_offset
        own = self._weights[first : first + self._start.slots]
        weight = own[0 if self._one_per_node else local_rank]
        is_clear = not self._one_per_node or all(other == weight for other in own)
        return {
            FILE: self._path,
            WEIGHT: f"{weight:.12g}" if is_clear else None,
            SUM: f"{fsum(self._weights):.12g}",
        }

    def on_round_end(self) -> None:
        """Keep what the workers have measured."""
        start, self._start = self._start, None
        if start is None:
            return
        for local_rank in range(start.slots):
            with suppress(OSError), open(self._speed_path(start, local_rank), "rb") as file:
                self._speeds[local_rank] = file.read(MOST_BYTES)

    def _speed_path(self, start: Start, local_rank: int) -> str:
        return SPEED.format(path=self._path, rank=start.rank_offset + local_rank)
