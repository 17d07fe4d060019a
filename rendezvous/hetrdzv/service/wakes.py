"""Wakes many who wait, a few in each turn of the event loop: each of them makes a reply."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 64
"""How many are woken in one turn."""


class Wakes:
    """Sets the results of futures, in the order in which they were given."""

    def __init__(self) -> None:
        self._due: deque[tuple[asyncio.Future[T], T]] = deque()  # type: ignore[valid-type]

    def add(self, futures: Iterable[asyncio.Future[T]], result: T) -> None:
        """Give futures a result: the first few at once if nobody else is waiting for that, others in the next turns."""
        idle = not self._due
        self._due.extend((future, result) for future in futures)
        if idle:
            self._wake_some()

    def _wake_some(self) -> None:
        woken = 0
        while self._due and woken < AT_ONCE:
            future, result = self._due.popleft()
            if not future.done():
                future.set_result(result)
                woken += 1
        if self._due:
            asyncio.get_running_loop().call_soon(self._wake_some)
