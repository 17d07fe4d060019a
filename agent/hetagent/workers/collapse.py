"""Identical lines of several ranks of a node become one line that names the ranks (`--collapse`)."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TextIO

WAIT_S = 0.5
"""How long a line waits for its like from other ranks (seconds); torch looks for new lines every 0.1 s."""

MOST_CHARACTERS = 64 << 10
"""The longest line that is kept whole."""

MOST_LINES = 1000
"""How many lines wait at most."""


@dataclass(slots=True)
class _Entry:
    """A line that waits.

    Attributes:
        ranks: who has written it so far.
        until: when it waits no longer (seconds of the caller's clock).
    """

    text: str
    until: float
    ranks: list[int] = field(default_factory=list)


Line = tuple[Sequence[int], str]
"""Who has written a line, in ascending order, and the line with its end."""


class Collapser:
    """Which lines are the same. Pure: the caller says what time it is (seconds).

    The lines of each rank stay in order; a line that a rank writes twice is shown twice.

    Args:
        ranks: all that may write.
    """

    def __init__(self, ranks: Collection[int]) -> None:
        self._all = len(ranks)
        self._entries: list[_Entry] = []
        self._partial: dict[int, str] = {}  # by rank, what has no end of line yet

    def add(self, rank: int, text: str, now: float) -> None:
        """A rank has written a line, or a part of one."""
        text = self._partial.pop(rank, "") + text
        if not text.endswith("\n") and len(text) < MOST_CHARACTERS:
            self._partial[rank] = text
        else:
            self._place(rank, text, now)

    def _place(self, rank: int, text: str, now: float) -> None:
        for entry in self._after_last_of(rank):
            if entry.text == text:
                entry.ranks.append(rank)
                return
        self._entries.append(_Entry(text, now + WAIT_S, [rank]))

    def _after_last_of(self, rank: int) -> Sequence[_Entry]:
        """What waits behind the last line of a rank: its next line can be no other."""
        for index in range(len(self._entries), 0, -1):
            if rank in self._entries[index - 1].ranks:
                return self._entries[index:]
        return self._entries

    def due(self, now: float) -> list[Line]:
        """The lines that wait no longer: all ranks have written them, or their time is over."""
        count = 0
        while count < len(self._entries):
            entry = self._entries[count]
            if (
                len(entry.ranks) < self._all
                and now < entry.until
                and len(self._entries) - count <= MOST_LINES
            ):
                break
            count += 1
        return self._take(count)

    def rest(self) -> list[Line]:
        """All lines: nobody writes any more."""
        for rank, text in sorted(self._partial.items()):
            self._place(rank, f"{text}\n", 0.0)
        self._partial.clear()
        return self._take(len(self._entries))

    @property
    def next_at(self) -> float | None:
        """When the next line waits no longer; None: no line waits."""
        return self._entries[0].until if self._entries else None

    def _take(self, count: int) -> list[Line]:
        taken, self._entries = self._entries[:count], self._entries[count:]
        return [(sorted(entry.ranks), entry.text) for entry in taken]


class Merged:
    """A stream for the lines of several ranks, which passes them on to another one.

    Args:
        out: where they go.
        ranks: the local ranks that write.
        offset: the global rank of local rank 0.
        prefix: what a line of some ranks begins with, of their global and their local numbers.
    """

    def __init__(
        self, out: TextIO, ranks: Collection[int], offset: int, prefix: Callable[[str, str], str]
    ) -> None:
        self._out = out
        self._offset = offset
        self._prefix = prefix
        self._lines = Collapser(ranks)
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="collapse", daemon=True)
        self._thread.start()

    @staticmethod
    def mark(rank: int) -> str:
        """What a line has to begin with when it is written here, to say whose it is."""
        return f"{rank}\0"

    def write(self, text: str) -> int:
        """A line, or a part of one, behind its mark."""
        rank, _, line = text.partition("\0")
        with self._changed:
            self._lines.add(int(rank), line, time.monotonic())
            self._pass_on(self._lines.due(time.monotonic()))
            self._changed.notify()
        return len(text)

    def close(self) -> None:
        """Pass on all that is left."""
        with self._changed:
            self._closed = True
            self._pass_on(self._lines.rest())
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                self._pass_on(self._lines.due(time.monotonic()))
                next_at = self._lines.next_at
                self._changed.wait(None if next_at is None else max(0.0, next_at - time.monotonic()))

    def _pass_on(self, lines: Sequence[Line]) -> None:
        if lines:
            self._out.write("".join(f"{self._begin(ranks)}{text}" for ranks, text in lines))
            self._out.flush()

    def _begin(self, ranks: Sequence[int]) -> str:
        return self._prefix(ranges([self._offset + rank for rank in ranks]), ranges(ranks))


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in short: `0-3,5`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)
