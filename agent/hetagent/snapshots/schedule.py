"""At which steps snapshots are due: rank 0 names each a little ahead, and all ranks take that one."""

import math
from collections import deque
from itertools import count, pairwise
from statistics import median
from typing import Any

import torch.distributed as dist

from hetagent.torch_compat.checkpoints import default_store

FIRST_S = 1.0
"""How long after the first snapshot of a round the second is due; each interval is twice as long as the one before,
until they are as long as a person wants (seconds)."""

POLL_S, MAX_POLLS_PER_S = 0.05, 2000.0
"""How often a rank looks at most whether one was named (seconds), and how many ranks do each second (1/s)."""

POLLS_AHEAD = 3
"""How many times all can look between the naming and the step."""

LEAST_STEP_S = 1e-3
"""Shorter ones are taken for such (seconds): steps may soon become longer."""

FEW_STEPS = 4
"""None is named before so many steps tell how long they take; the first is often the longest."""

_numbers = count()


class SnapshotSchedule:
    """The same steps on all ranks, although each has a clock of its own.

    Steps are counted by calls, since scripts may number them in tens, or in samples. Ranks share torch.distributed's
    store, unless another one is given.
    """

    def __init__(self, rank: int, world_size: int, store: Any = None) -> None:
        self._leads, self._is_alone = rank == 0, world_size == 1
        self._store = store
        self._prefix = f"hetagent.snapshots/{next(_numbers)}"
        self._poll_s = max(POLL_S, world_size / MAX_POLLS_PER_S)
        self._calls = self._announced = 0
        self._ended_at: deque[float] = deque(maxlen=16)
        self._next: tuple[int, bool] | None = None
        self._polls_at = 0.0
        self._announce_at: float | None = None
        self._wait_s = FIRST_S
        self.to_disk = False  # the one that is due is to be written to disk as well

    def is_due(
        self, now: float, every_s: float, *, is_ready: bool, must_wait: bool, to_disk: bool = False
    ) -> bool:
        """Whether a snapshot is due at the step that ends now.

        It may have to wait until others have copies of the last one, for another interval at most.
        """
        self._calls += 1
        self._ended_at.append(now)
        if self._next is None and is_ready:
            if self._store is None and not self._is_alone and dist.is_available() and dist.is_initialized():
                self._store = default_store()
            if self._leads or self._store is None:
                self._announce(now, every_s, must_wait=must_wait, to_disk=to_disk)
            elif now >= self._polls_at:
                self._read_announced(now)
        if self._next is None or self._calls < self._next[0]:
            return False
        (call, self.to_disk), self._next = self._next, None
        return call == self._calls and is_ready

    def step_s(self) -> float:
        """How long steps take (seconds); 0.0: not known yet."""
        at = [*self._ended_at]  # whoever asks may be another thread
        return median(after - before for before, after in pairwise(at)) if len(at) > 1 else 0.0

    def _announce(self, now: float, every_s: float, *, must_wait: bool, to_disk: bool) -> None:
        """Name the next one, if it is time."""
        if self._store is not None and len(self._ended_at) < FEW_STEPS:
            return
        self._announce_at = now if self._announce_at is None else self._announce_at
        if now < self._announce_at or (must_wait and now < self._announce_at + every_s):
            return
        self._next = self._calls, to_disk
        if self._store is not None:
            # All ranks have looked by then.
            ahead = 2 + math.ceil(POLLS_AHEAD * self._poll_s / max(self.step_s(), LEAST_STEP_S))
            self._next = self._calls + ahead, to_disk
            self._store.set(f"{self._prefix}/{self._announced}", "{} {:d}".format(*self._next))
        self._announced += 1
        wait_s = min(self._wait_s, every_s)
        self._wait_s, self._announce_at = 2 * wait_s, now + wait_s

    def _read_announced(self, now: float) -> None:
        """See whether rank 0 has named one."""
        self._polls_at = now + self._poll_s
        key = f"{self._prefix}/{self._announced}"
        if self._store.check([key]):
            call, on_disk = map(int, self._store.get(key).split())
            self._announced += 1
            self._next = call, bool(on_disk)
