"""Wakes many waiting polls, a few per turn of the event loop, since each of them makes a reply."""

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
        self._left = AT_ONCE  # how many may still be woken in this turn

    def add(self, futures: Iterable[asyncio.Future[T]], result: T) -> None:
        """Give futures a result: some at once if this turn has not woken many yet, the others in the next turns."""
        self._due.extend((future, result) for future in futures)
        self._wake_some()

    def _wake_some(self) -> None:
        before = self._left
        while self._due and self._left:
            future, result = self._due.popleft()
            if not future.done():
                future.set_result(result)
                self._left -= 1
        if before == AT_ONCE > self._left:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._left = AT_ONCE
        self._wake_some()
