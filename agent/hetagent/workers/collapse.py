"""Equal lines of several ranks of a node become one line that names the ranks (`--collapse`)."""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TextIO

WAIT_S = 0.5
"""How long a line waits for its like from other ranks (seconds); torch looks for new lines every 0.1 s."""

MOST_CHARACTERS = 64 << 10
"""The longest line that is not cut."""

MOST_LINES = 1000
"""How many lines wait at most."""


@dataclass(slots=True)
class _Entry:
    """A line that waits, who has written it so far, and until when (monotonic seconds)."""

    line: str
    ranks: set[int]
    until: float


class LineMerger:
    """A stream for the lines of several local ranks: equal ones that come within `WAIT_S` are written once.

    The lines of each rank stay in order; what a rank writes twice is shown twice. `prefix` makes the beginning of a
    line of the global and the local numbers of its ranks.
    """

    def __init__(
        self, out: TextIO, ranks: Collection[int], offset: int, prefix: Callable[[str, str], str]
    ) -> None:
        self._out = out
        self._all = set(ranks)
        self._offset = offset
        self._prefix = prefix
        self._waiting: list[_Entry] = []
        self._partial: dict[int, str] = {}  # by rank, what has no end of line yet
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="collapse", daemon=True)
        self._thread.start()

    @staticmethod
    def line_prefix(rank: int) -> str:
        """What a line has to begin with when it is written here, to say whose it is."""
        return f"{rank}\0"

    def write(self, text: str) -> int:
        """A line, or a part of one, behind its mark."""
        mark, _, line = text.partition("\0")
        rank = int(mark)
        with self._changed:
            line = self._partial.pop(rank, "") + line
            if line.endswith("\n") or len(line) >= MOST_CHARACTERS:
                self._add(rank, line)
            else:
                self._partial[rank] = line
            self._changed.notify()
        return len(text)

    def close(self) -> None:
        """Pass on all that is left."""
        with self._changed:
            for rank, line in sorted(self._partial.items()):
                self._add(rank, f"{line}\n")
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _add(self, rank: int, line: str) -> None:
        last = max((index for index, entry in enumerate(self._waiting) if rank in entry.ranks), default=-1)
        entry = next((entry for entry in self._waiting[last + 1 :] if entry.line == line), None)
        if entry is None:
            entry = _Entry(line, set(), time.monotonic() + WAIT_S)
            self._waiting.append(entry)
        entry.ranks.add(rank)

    def _run(self) -> None:
        with self._changed:
            while not self._closed or self._waiting:
                self._pass_on(time.monotonic())
                if not self._closed:
                    until = self._waiting[0].until if self._waiting else None
                    self._changed.wait(None if until is None else max(0.0, until - time.monotonic()))

    def _pass_on(self, now: float) -> None:
        """Write the lines at the front that all ranks have written, or that have waited long enough."""
        while self._waiting:
            entry = self._waiting[0]
            is_over = self._closed or now >= entry.until or len(self._waiting) > MOST_LINES
            if entry.ranks != self._all and not is_over:
                break
            numbers = sorted(entry.ranks)
            begin = self._prefix(ranges([self._offset + rank for rank in numbers]), ranges(numbers))
            with contextlib.suppress(OSError, ValueError):  # the console has gone, or cannot show it
                self._out.write(f"{begin}{entry.line}")
            del self._waiting[0]
        with contextlib.suppress(OSError, ValueError):
            self._out.flush()


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in short: `0-3,5`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)
