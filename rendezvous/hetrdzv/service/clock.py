"""The server's clock: seconds this store has been served."""

import time
from collections import deque
from collections.abc import Callable

BEAT_INTERVAL_S = 0.25
"""How often the event loop begins another beat (seconds)."""

BEAT_TOLERANCE_S = 0.05
"""A beat may be late by this much and still counts in full (seconds)."""

UNSERVED_TIME_SHARE = 1e-6
"""How much of the time that does not count is in an age: just enough to keep events in order."""

MAX_REMEMBERED_PAUSES = 256
"""How many of the latest pauses are remembered for ages."""


class ServedClock:
    """Monotonic time that goes on by one beat per beat at most.

    While no server runs, while its process is stopped, and while its event loop is busy with something else, nodes
    cannot be heard; so this time is nobody's silence. It begins at `base`, the high-water mark of the store.
    """

    def __init__(self, base: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._pauses: deque[tuple[float, float]] = deque(
            maxlen=MAX_REMEMBERED_PAUSES
        )  # by the monotonic clock
        self.restart(base)

    def restart(self, base: float) -> None:
        """Go on from the high-water mark of a store that others have served meanwhile."""
        self._base = base
        self._beat_at = self._began_at = self._monotonic()
        self._pauses.clear()

    def now(self) -> float:
        """Seconds this store has been served."""
        return self._base + min(self._monotonic() - self._beat_at, BEAT_INTERVAL_S + BEAT_TOLERANCE_S)

    def begin_beat(self) -> float:
        """Begin another beat; returns by how much it is late (seconds)."""
        at = self._monotonic()
        passed_s = at - self._beat_at
        counted_s = min(passed_s, BEAT_INTERVAL_S + BEAT_TOLERANCE_S)
        if passed_s > counted_s:
            self._pauses.append((self._beat_at + counted_s, at))
        self._base, self._beat_at = self._base + counted_s, at
        return max(0.0, passed_s - BEAT_INTERVAL_S)

    def age(self, seconds: float) -> float:
        """Convert an age on a clock that never stops into an age on this one (seconds).

        What happened while no server ran comes after everything that was reported before, and stays in order.
        """
        at = self._monotonic()
        began = at - seconds
        pauses = [*self._pauses, (min(at, self._beat_at + BEAT_INTERVAL_S + BEAT_TOLERANCE_S), at)]
        unserved = max(0.0, self._began_at - began)
        unserved += sum(max(0.0, end - max(start, began)) for start, end in pauses)
        return seconds - unserved * (1.0 - UNSERVED_TIME_SHARE)
