"""When snapshots are due: pure."""

from collections import deque

MOST_STEPS = 4096
"""The times of no more steps are kept."""


class Schedule:
    """Finds the same steps on all ranks, although each goes by its own clock.

    A rank counts the steps of the last half interval, and takes a snapshot at each multiple of the largest power of two
    that is no more than that. All ranks take those of the largest such number, since each of its multiples is one of
    any smaller one. The next one is at most half an interval away; as long it may take until steps that have become
    longer are counted.
    """

    def __init__(self) -> None:
        self._calls = 0  # steps themselves may be counted in tens, or in samples
        self._at: deque[float] = deque(maxlen=MOST_STEPS)

    def is_due(self, now: float, every_s: float) -> bool:
        """Whether a snapshot is due at the step that ends now.

        Args:
            every_s: how far apart they are at most (seconds).
        """
        half_s = every_s / 2
        self._calls += 1
        self._at.append(now)
        while self._at[0] < now - half_s:
            self._at.popleft()
        count = max(len(self._at) - 1, 1)
        if len(self._at) == MOST_STEPS:
            count = max(count, int(count * half_s / max(now - self._at[0], 1e-9)))
        return self._calls % (1 << count.bit_length() - 1) == 0
