"""The shares of a round, for its workers: a file with the weights of all ranks, and one more for each answer.

A worker asks for decision N by creating the file `FILE.ask.N`, and waits for `FILE.N`. The agent sees that through
inotify, so that it costs nothing where nobody asks. Where the kernel has none left, the agent looks now and then.
"""

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import fsum
from pathlib import Path

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.node import scratch
from hetagent.node.created import Created
from hetagent.roundhook import Environ, Room
from hetagent.session.topics import Message, Topic
from hetagent.shares import ANSWER, ASK, FILE
from hetrdzv.protocol.rooms import shares
from hetrdzv.protocol.rooms.shares import Shares, SharesRequest

SHARES = Topic(route=shares.SHARES)

WEIGHT, SUM = "HET_WEIGHT", "HET_WEIGHT_SUM"
"""Variables of a worker: its own weight, and the sum of all."""

PREFIX = "hetw_"

LOOK_S = 1.0
"""Without inotify, how often to look whether a worker asks (seconds)."""

KEPT = 2
"""How many answers are kept; the server keeps as many."""

Ask = Callable[[Message[Shares]], "Future[Shares]"]
"""Asks the server for a decision; see `Line.ask`."""


class ShareRoom(Room):
    """Gives the workers of each round their shares, and asks the server for others.

    Args:
        ask: asks the server.
        tell: shows one line to the person at the terminal.
        decided: called with the number of each decision that the workers get, and whether its shares are others
            than before.
        one_per_node: a single process stands for all slots of this node; it has a weight of its own only if they have
            the same.
    """

    def __init__(
        self,
        ask: Ask,
        tell: Callable[[str], None],
        decided: Callable[[int, bool], None] = lambda number, others: None,
        *,
        one_per_node: bool = False,
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._decided = decided
        self._one_per_node = one_per_node
        self._folder: scratch.Folder | None = None  # of the round, until it is over
        self._created: Created | None = None
        self._look_at = 0.0
        self._asked: set[int] = set()  # those whose answers are kept, or will come
        self._awaited: dict[int, Future[Shares]] = {}

    def prepare(self, assignment: Assignment, command: WorkerCommand) -> None:
        """Write down the shares that the round begins with.

        Raises:
            OSError: there is no place for the files.
        """
        self._round, self._start = assignment.round, assignment.start
        self._newest = self._start.shares or Shares(round=assignment.round)
        self._weights = self._newest.of_ranks(self._start.world_size)
        parent = Path(tempfile.gettempdir())
        scratch.sweep(PREFIX, parent)
        self._folder = scratch.Folder(PREFIX, parent)
        self._path = str(self._folder.path / "weights")
        try:
            self._write(self._path, self._newest)
            with suppress(OSError):
                self._created = Created(str(self._folder.path))
        except BaseException:
            self.end()
            raise

    def environ(self, local_rank: int) -> Environ:
        first = self._start.rank_offset
        own = self._weights[first : first + self._start.slots]
        weight = own[0 if self._one_per_node else local_rank]
        is_clear = not self._one_per_node or all(other == weight for other in own)
        return {
            FILE: self._path,
            WEIGHT: f"{weight:.12g}" if is_clear else None,
            SUM: f"{fsum(self._weights):.12g}",
        }

    def fileno(self) -> int:
        """A descriptor that is readable when a worker may have asked; -1: there is none, look from time to time."""
        return self._created.fileno() if self._created is not None else -1

    def due_at(self) -> float | None:
        if any(answer.done() for answer in self._awaited.values()):
            return 0.0
        return self._look_at if self._folder is not None and self._created is None else None

    def look(self) -> None:
        """Pass on what the workers have asked since the last look, and give them what the server has answered."""
        if self._folder is None:
            return
        if self._created is not None:
            self._created.clear()
        self._look_at = time.monotonic() + LOOK_S
        names = []
        with suppress(OSError):
            names = os.listdir(self._folder.path)
        numbers = {
            int(match[1]) for name in names if (match := re.fullmatch(r"weights\.ask\.(\d{1,15})", name))
        }
        for number in sorted(numbers - self._asked):
            self._asked.add(number)
            message = Message(SHARES, partial(SharesRequest, round=self._round, number=number))
            self._awaited[number] = self._ask(message)
        for number, answer in list(self._awaited.items()):
            if answer.done():
                del self._awaited[number]
                self._answer(number, answer)

    def end(self) -> None:
        if self._created is not None:
            self._created.close()
        if self._folder is not None:
            self._folder.close()
        self._created = self._folder = None
        self._asked.clear()
        self._awaited.clear()

    def _answer(self, number: int, answer: "Future[Shares]") -> None:
        """Give the workers what the server has answered."""
        if answer.cancelled():
            return
        if (refusal := answer.exception()) is not None:
            self._tell(f"round {self._round}: no new shares: {refusal}")
            with suppress(OSError):
                _put(ANSWER.format(path=self._path, number=number), {"error": str(refusal)})
            return
        former, self._newest = self._newest, answer.result()
        self._decided(number, self._newest.weights != former.weights)
        with suppress(OSError):
            self._write(ANSWER.format(path=self._path, number=number), self._newest)
        for old in sorted(self._asked)[:-KEPT]:
            for path in (
                ANSWER.format(path=self._path, number=old),
                ASK.format(path=self._path, number=old),
            ):
                with suppress(OSError):
                    os.unlink(path)
            self._asked.discard(old)  # whoever asks so late is told by the server that it is too late

    def _write(self, path: str, shares: Shares) -> None:
        weights = shares.of_ranks(self._start.world_size)
        _put(path, {"round": shares.round, "number": shares.number, "weights": weights})


def _put(path: str, content: Mapping[str, object]) -> None:
    """Write a file that others see only once it is complete."""
    Path(f"{path}.new").write_text(json.dumps(content), encoding="utf-8")
    os.replace(f"{path}.new", path)
