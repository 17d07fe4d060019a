"""Whether a worker that does not move computes or sleeps, by its CPU time. Pure."""

from dataclasses import dataclass

LEAST_S = 1.0
"""A share of a core is measured over at least this long (seconds)."""


@dataclass(slots=True)
class CpuTime:
    """The CPU time of a worker's process, of all its threads.

    Attributes:
        share: how much of a core it has taken since the worker last moved (0 to 1); None: nobody knows yet.
    """

    share: float | None = None
    _began: tuple[float, float] | None = None  # the first reading since the worker moved: when, how much

    def read(self, cpu_s: float | None, at: float, moved_at: float) -> None:
        """This is how much it has taken so far.

        Args:
            cpu_s: None: nobody can tell (seconds).
            at, moved_at: when it was read, and when the worker last moved (monotonic seconds).
        """
        self.share = None
        if cpu_s is None:
            self._began = None
        elif self._began is None or self._began[0] < moved_at:
            self._began = at, cpu_s
        elif (for_s := at - self._began[0]) >= LEAST_S:
            self.share = min(1.0, max(0.0, cpu_s - self._began[1]) / for_s)
