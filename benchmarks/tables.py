"""Tables of all benchmarks, in Markdown, so that docs/performance.md can keep them as printed."""

import datetime
import math
import os
import platform
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self


class Table:
    """One table; `show` prints it with the machine, the date and what the load generator itself took.

    Args:
        title: what was measured, with its settings.
        columns: their heads; the first is left-aligned.
    """

    def __init__(self, title: str, *columns: str) -> None:
        self._title = title
        self._columns = columns
        self._rows: list[Sequence[str]] = []
        self._notes: list[str] = []
        self._began = (time.perf_counter(), time.process_time())

    def row(self, *cells: object) -> Self:
        """Add a row, and print it at once: some take minutes. Cells that are left out are empty."""
        self._rows.append([str(cell) for cell in cells] + [""] * (len(self._columns) - len(cells)))
        print("  ".join(self._rows[-1]), flush=True)
        return self

    def note(self, text: str) -> None:
        """Add a line below the table."""
        self._notes.append(text)

    def show(self) -> None:
        """Print it all."""
        wall_s, cpu_s = (now - then for now, then in zip(_clocks(), self._began, strict=True))
        self.note(f"The load generator took {cpu_s / wall_s:.2f} core on average.")
        print(f"\n**{self._title}** ({machine()})\n")
        rows = [list(self._columns), ["---"] + ["---:"] * (len(self._columns) - 1), *self._rows]
        for row in rows:
            print("| " + " | ".join(row) + " |")
        print("\n" + "\n".join(self._notes) + "\n", flush=True)


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def machine() -> str:
    """Date, processor, cores, load and Python, for a table's title."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    cores, load = os.cpu_count(), os.getloadavg()[0]
    day = datetime.datetime.now(datetime.UTC).date()
    return f"{day}, {model}, {cores} cores, load {load:.1f}, Python {platform.python_version()}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def median(values: Iterable[float]) -> float:
    """The median; nan of nothing."""
    found = list(values)
    return statistics.median(found) if found else math.nan


def growth(points: Sequence[tuple[int, float]]) -> float:
    """The exponent k in `y = c * n**k` that fits best; 1: the cost per node is flat."""
    logs = [(math.log(n), math.log(y)) for n, y in points if y > 0]
    if len(logs) < 2:
        return math.nan
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


def ms(seconds: float) -> str:
    """Milliseconds, as a cell."""
    return f"{seconds * 1000:.{0 if seconds >= 0.1 else 1}f} ms"
