"""Moments and durations: how a countdown looks, clock times, how long ago something was."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Clock:
    """What clocks read when a sentence is made."""

    now: float
    here: datetime | None = None

    def left(self, until: float) -> str:
        """How long it is until a moment, to the second: `42 s`, `9 min 58 s`."""
        seconds = round(max(0.0, until - self.now))
        return f"{seconds} s" if seconds < 60 else lasted(seconds)

    def at_most(self, until: float) -> str:
        """`at most 9 min 58 s more`, or `until 14:03:10, 9 min 58 s from now`."""
        left = self.left(until)
        return f"at most {left} more" if self.here is None else f"until {self._time(until)}, {left} from now"

    def _time(self, moment: float) -> str:
        assert self.here is not None
        return clock_time(self.here + timedelta(seconds=max(0, round(moment - self.now))), self.here)


def clock_time(at: datetime, now: datetime) -> str:
    """A moment as `14:03:10`, with the date in front unless it is today's."""
    return at.strftime("%H:%M:%S" if at.date() == now.date() else "%Y-%m-%d %H:%M:%S")


def ago(seconds: float) -> str:
    """How long ago something was, in the largest fitting unit: `40 s ago`, `3 min ago`, `5 h ago`, `2 d ago`."""
    return f"{lasted(seconds, roughly=True)} ago"


LEAST_S = 0.05
"""What took less would be 0.0 s (seconds)."""


def lasted(seconds: float, *, roughly: bool = False) -> str:
    """A length of time, to about three digits: `< 0.1 s`, `0.3 s`, `42 s`, `12 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds < LEAST_S:
        return "< 0.1 s" if seconds > 0 else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, part in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            largest = f"{whole // size} {unit}"
            return largest if roughly else f"{largest} {whole % size // smaller} {part}"
    return f"{whole} s"
