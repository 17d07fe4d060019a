"""Adds clock times to texts that speak of durations: whoever shows them has a clock, the server's core has none."""

import re
from datetime import datetime, timedelta

_WAITS = re.compile(r"\b(at most|starts in) (\d+) s( more)?\b")


def with_clock_times(text: str, now: datetime) -> str:
    """A text in which `at most 598 s more` has become `until 14:03:10, 598 s from now`.

    Args:
        now: this machine's, in the time zone to show.
    """

    def clock(found: re.Match[str]) -> str:
        seconds = int(found[2])
        if found[1] == "at most" and found[3] is None:
            return found[0]
        word = "until" if found[1] == "at most" else "starts at"
        return f"{word} {clock_time(now + timedelta(seconds=seconds), now)}, {seconds} s from now"

    return _WAITS.sub(clock, text)


def later(text: str, elapsed_s: float) -> str:
    """What a text that speaks of durations says some time after it was said: `at most 598 s more` has become less.

    Args:
        elapsed_s: how long ago it was said (seconds).
    """

    def less(found: re.Match[str]) -> str:
        return f"{found[1]} {max(0, int(found[2]) - int(elapsed_s))} s{found[3] or ''}"

    return _WAITS.sub(less, text)


def clock_time(at: datetime, now: datetime) -> str:
    """A moment as `14:03:10`, with the date in front unless it is today's."""
    return at.strftime("%H:%M:%S" if at.date() == now.date() else "%Y-%m-%d %H:%M:%S")


def ago(seconds: float) -> str:
    """How long ago something was, in the largest fitting unit: `40 s ago`, `3 min ago`, `5 h ago`, `2 days ago`."""
    for size, unit in ((172_800, "days"), (7_200, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds // {'days': 86_400, 'h': 3_600, 'min': 60}[unit]:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
