"""The server's clock: seconds this store has been served."""

import time
from collections import deque
from collections.abc import Callable

MAX_STALL_S = 1.0
"""A longer pause between two readings does not count: the process was stopped or the machine slept, so no lease may
expire because of it (seconds)."""

UNSERVED = 1e-6
"""How much of the time without a server counts in an age: just enough to keep events in order."""

STALLS_KEPT = 64
"""How many of the latest stalls are remembered for ages."""


class ServedClock:
    """Monotonic time that stops while no server runs.

    Read it far more often than every `MAX_STALL_S` seconds (`Service` does), or time is lost.

    Args:
        base: the high-water mark of the store (seconds).
        monotonic: a clock that only goes forward (seconds).

    Attributes:
        stalls: how many pauses were left out so far.
    """

    def __init__(self, base: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = base
        self._monotonic = monotonic
        self._read_at = self._began_at = monotonic()
        self._pauses: deque[tuple[float, float]] = deque(maxlen=STALLS_KEPT)  # by the monotonic clock
        self.stalls = 0

    def restart(self, base: float) -> None:
        """Go on from the high-water mark of a store that others have served meanwhile."""
        self._now = base
        self._read_at = self._began_at = self._monotonic()
        self._pauses.clear()

    def now(self) -> float:
        """Seconds this store has been served."""
        read_at = self._monotonic()
        passed_s = read_at - self._read_at
        self._read_at = read_at
        if passed_s > MAX_STALL_S:
            self.stalls += 1
            self._pauses.append((read_at - passed_s, read_at))
        else:
            self._now += passed_s
        return self._now

    def age(self, seconds: float) -> float:
        """Convert an age on a clock that never stops into an age on this one (seconds).

        What happened while no server ran comes after everything that was reported before, and stays in order.
        """
        self.now()
        began = self._read_at - seconds
        unserved = max(0.0, self._began_at - began)
        unserved += sum(max(0.0, end - max(start, began)) for start, end in self._pauses)
        return seconds - unserved * (1.0 - UNSERVED)
