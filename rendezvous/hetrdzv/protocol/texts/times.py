"""Durations, and how long ago something was."""


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
