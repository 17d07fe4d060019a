"""Garbage collection when it pays, instead of in the middle of a rush.

There is hardly any garbage that the collector has to find: nearly all objects are freed when the last reference to them
goes. But what it looks through is much: with 10,000 nodes, Python's own schedule held the event loop for 0.2 to 0.5
seconds again and again while they joined.
"""

import gc
import time

EVERY_S = 600.0
"""A collection comes at most this often (seconds)."""

NEW = 200_000
"""A collection comes only after so many more objects, and after a quarter more than there were."""


class Collector:
    """Takes over from Python's automatic collection; what exists by now is never looked at again."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._kept = 0
        self._looked_at = time.monotonic()

    def look(self) -> None:
        """Collect if it is time; to be called every few seconds."""
        new, now = gc.get_count()[0], time.monotonic()
        if new < max(NEW, self._kept // 4) or now < self._looked_at + EVERY_S:
            return
        self._looked_at = now
        self._kept += new - gc.collect()
