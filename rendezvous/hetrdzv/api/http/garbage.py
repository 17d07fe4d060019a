"""Garbage collection when memory grows, instead of in the middle of a rush.

Little waits for the collector: nearly all objects are freed when the last reference to them goes. But it looks through
everything: with 10,000 nodes, Python's own schedule held the event loop for 0.2 to 0.5 seconds again and again while
they joined.
"""

import gc
import resource
import time
from pathlib import Path

GROWN_BYTES = 64 << 20
"""A collection comes once the process has grown by so much and by half since the last."""

SHARE = 0.1
"""Collections take at most this share of the time."""

_STATM = Path("/proc/self/statm")


class Collector:
    """Takes over from Python's automatic collection; what exists by now is never looked at again."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._size = resident_bytes()
        self._rests_until = 0.0

    def look(self) -> None:
        """Collect if the process has grown; to be called every second."""
        began = time.monotonic()
        if began < self._rests_until or resident_bytes() < self._size + max(GROWN_BYTES, self._size // 2):
            return
        gc.collect()
        ended = time.monotonic()
        self._size, self._rests_until = resident_bytes(), ended + (ended - began) / SHARE


def resident_bytes() -> int:
    """The resident size of this process."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
