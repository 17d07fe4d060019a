"""At which steps snapshots are due: rank 0 names each a little ahead, and all ranks take that one."""

import math
from collections import deque
from collections.abc import Callable
from itertools import count, pairwise
from statistics import median
from typing import Any

import torch.distributed as dist

from hetagent.torch_compat.checkpoints import default_store

FIRST_S = 1.0
"""How long after the first snapshot of a round the second is due; each interval is twice as long as the one before,
until they are as long as a person wants (seconds)."""

LOOK_S, LOOKS_PER_S = 0.05, 2000.0
"""How often a rank looks at most whether one was named (seconds), and how many ranks do each second (1/s)."""

AHEAD_LOOKS = 3
"""How many times all can look between the naming and the step."""

LEAST_STEP_S = 1e-3
"""Shorter ones are taken for such (seconds): steps may soon become longer."""

FEW_STEPS = 4
"""None is named before so many steps tell how long they take; the first is often the longest."""

_numbers = count()


class Schedule:
    """The same steps on all ranks, although each has a clock of its own.

    Steps are counted by calls, since scripts may number them in tens, or in samples.

    Args:
        store: which ranks share; None: torch.distributed's.

    Attributes:
        to_disk: the one that is due is to be written to disk as well.
    """

    def __init__(self, rank: int, world_size: int, store: Any = None) -> None:
        self._leads, self._world_size = rank == 0, world_size
        self._store = store
        self._prefix = f"hetagent.snapshots/{next(_numbers)}"
        self._look_s = max(LOOK_S, world_size / LOOKS_PER_S)
        self._calls = self._named = 0
        self._at: deque[float] = deque(maxlen=16)
        self._next: tuple[int, bool] | None = None
        self._looks_at = self._writes_at = 0.0
        self._names_at: float | None = None
        self._wait_s = FIRST_S
        self.to_disk = False

    def is_due(
        self, now: float, every_s: float, *, is_ready: bool, waits: Callable[[], bool], to_disk: bool = False
    ) -> bool:
        """Whether a snapshot is due at the step that ends now.

        Args:
            every_s: how far apart they are (seconds).
            is_ready: one can be taken here.
            waits: whether the last one, or the one that was loaded, is not safe yet; it is given another interval.
            to_disk: one is wanted on disk.
        """
        self._calls += 1
        self._at.append(now)
        if self._next is None and is_ready:
            self._look(now, every_s, waits, to_disk=to_disk)
        if self._next is None or self._calls < self._next[0]:
            return False
        (call, self.to_disk), self._next = self._next, None
        return call == self._calls and is_ready

    def _look(self, now: float, every_s: float, waits: Callable[[], bool], *, to_disk: bool) -> None:
        """Name the next one, or see whether rank 0 has."""
        store = self._shared()
        if self._leads or store is None:
            if store is not None and len(self._at) < FEW_STEPS:
                return
            self._names_at = now if self._names_at is None else self._names_at
            if now >= self._names_at and not (waits() and now < self._names_at + every_s):
                call = self._calls + (self._ahead() if store is not None else 0)
                self._next = call, to_disk and now >= self._writes_at
                if self._next[1]:
                    self._writes_at = now + every_s  # by then the agent has seen it
                if store is not None:
                    store.set(f"{self._prefix}/{self._named}", f"{call} {int(self._next[1])}")
                self._named += 1
                wait_s = min(self._wait_s, every_s)
                self._wait_s, self._names_at = 2 * wait_s, now + wait_s
        elif now >= self._looks_at:
            self._looks_at = now + self._look_s
            key = f"{self._prefix}/{self._named}"
            if store.check([key]):
                call, on_disk = map(int, store.get(key).split())
                self._named += 1
                self._next = call, bool(on_disk)

    def _shared(self) -> Any:
        """The store; None: this rank is alone, or there is none."""
        if self._store is None and self._world_size > 1 and dist.is_available() and dist.is_initialized():
            self._store = default_store()
        return self._store

    def _ahead(self) -> int:
        """So many steps ahead that all ranks have looked by then."""
        step_s = median(after - before for before, after in pairwise(self._at))
        return 2 + math.ceil(AHEAD_LOOKS * self._look_s / max(step_s, LEAST_STEP_S))
