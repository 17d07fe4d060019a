"""What workers write to log files, copied to the console in whole lines; with `--collapse` equal lines become one."""

import codecs
import contextlib
import io
import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import BinaryIO, TextIO

from hetrdzv.protocol.texts.node_rank_lists import RankList

WAIT_S = 0.5
"""How long a line waits for its like from other ranks (seconds)."""

INTERVAL_S = 0.1
"""How often to look for new lines (seconds), as torch does."""

MAX_CHARACTERS = 64 << 10
"""The longest line that is not cut."""

BYTES_AT_ONCE = 8 << 10
"""So much of a rank is read before that of the next."""

MAX_LINES = 1000
"""How many lines wait at most."""

_UTF8 = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True)
class _Line:
    """A line that waits, the ranks that have written it so far, and until when it waits (monotonic seconds)."""

    text: str
    ranks: set[int]
    until: float


class LineTail:
    """Copies the log files of several local ranks to a stream, as torch's `TailLog`, which tears lines.

    With `merges` equal lines are shown once, if they come within `WAIT_S`. The lines of each rank stay in order; what
    a rank writes twice is shown twice. `prefix` makes the beginning of a line that some local ranks have written.
    """

    def __init__(
        self, files: Mapping[int, str], out: TextIO, prefix: Callable[[Collection[int]], str], merges: bool
    ) -> None:
        self._merges = merges
        self._files = files
        self._out = out
        self._prefix = prefix
        self._waiting: list[_Line] = []
        self._partial = dict.fromkeys(files, "")  # what has no end of line yet
        self._decoders = {rank: io.IncrementalNewlineDecoder(_UTF8("replace"), True) for rank in files}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)

    def start(self) -> None:
        """Copy what is in the files, which are there, and what is added to them."""
        self._thread.start()

    def stop(self) -> None:
        """Nothing is added any more: copy the rest. Also without `start`: torch may fail to start a worker before."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            files = {rank: stack.enter_context(open(path, "rb")) for rank, path in self._files.items()}
            is_last = False
            while not is_last:
                is_last = self._stopped.wait(INTERVAL_S)
                while self._read_lines(files):
                    self._write_lines()
                self._write_lines()
        for rank, text in sorted(self._partial.items()):
            if text:
                self._add_line(rank, f"{text}\n")
        self._write_lines(is_over=True)

    def _read_lines(self, files: Mapping[int, BinaryIO]) -> bool:
        """Read some of each; whether there was any."""
        read = {rank: file.read(BYTES_AT_ONCE) for rank, file in files.items()}
        for rank, data in read.items():
            *lines, rest = (self._partial[rank] + self._decoders[rank].decode(data)).split("\n")
            for line in lines:
                self._add_line(rank, f"{line}\n")
            if len(rest) >= MAX_CHARACTERS:
                self._add_line(rank, rest)
                rest = ""
            self._partial[rank] = rest
        return any(read.values())

    def _add_line(self, rank: int, text: str) -> None:
        newer = list(itertools.takewhile(lambda line: rank not in line.ranks, reversed(self._waiting)))
        line = next((line for line in reversed(newer) if self._merges and line.text == text), None)
        if line is None:
            line = _Line(text, set(), time.monotonic() + WAIT_S)
            self._waiting.append(line)
        line.ranks.add(rank)

    def _write_lines(self, *, is_over: bool = False) -> None:
        """Write the lines at the front that all ranks have written, or that have waited long enough."""
        while self._waiting:
            line = self._waiting[0]
            is_due = is_over or time.monotonic() >= line.until or len(self._waiting) > MAX_LINES
            if self._merges and line.ranks != self._files.keys() and not is_due:
                break
            del self._waiting[0]
            with contextlib.suppress(OSError, ValueError):  # the console has gone, or cannot show it
                print(f"{self._prefix(line.ranks)}{line.text}", end="", file=self._out, flush=True)


def format_ranks(numbers: Collection[int]) -> str:
    """Ranks in short: `0-3,5`; behind the first few ranges, how many more there are: `+4`."""
    ranks = RankList.of(numbers)
    parts = [f"{first}-{last}" if last > first else str(first) for first, last in ranks.ranges]
    return ",".join(parts + ([f"+{ranks.more}"] if ranks.more else []))
