"""Virtual time: what happens when, in order."""

import heapq
import itertools
from collections.abc import Callable
from math import inf
from typing import Any


class Timeline:
    """A clock that jumps from one event to the next.

    Attributes:
        now: seconds since the story began.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def at(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Have something happen after some seconds; what is due at one moment keeps its order."""
        heapq.heappush(self._heap, (self.now + delay_s, next(self._order), call, args))

    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def step(self) -> None:
        moment, _, call, args = heapq.heappop(self._heap)
        self.now = max(self.now, moment)
        call(*args)
