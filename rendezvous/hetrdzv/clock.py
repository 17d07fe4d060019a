"""The server's clock: seconds this store has been served."""

import time
from collections.abc import Callable

MAX_STALL_S = 1.0
"""A longer pause between two readings does not count: the server did not serve in it (it was stopped, or the
machine slept), so no lease may run out in it."""


class ServedClock:
    """Monotonic time that does not run while nobody serves.

    It is read far more often than every `MAX_STALL_S` seconds (`Service` does so), else time is lost.

    Args:
        base: the high-water mark of the store (seconds).
        monotonic: a clock that only goes forward (seconds).

    Attributes:
        stalls: how many pauses were left out so far.
    """

    def __init__(self, base: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = base
        self._monotonic = monotonic
        self._read_at = monotonic()
        self.stalls = 0

    def now(self) -> float:
        """Seconds this store has been served."""
        read_at = self._monotonic()
        passed_s = read_at - self._read_at
        self._read_at = read_at
        if passed_s > MAX_STALL_S:
            self.stalls += 1
        else:
            self._now += passed_s
        return self._now
