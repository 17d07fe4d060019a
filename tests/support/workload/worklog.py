"""Reads the log that worker.py writes, while it grows, and checks what must hold of it."""

import contextlib
import json
import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOG, CHECKPOINT, STOP = "log.jsonl", "checkpoint", "stop"
"""In the workload's directory: what all workers wrote, what rank 0 saved, and the sign to succeed."""

Line = dict[str, Any]


class StepCounter:
    """How many steps a worker knows of, kept in a file that survives the worker's SIGKILL."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._map: mmap.mmap | None = None

    def _path(self, pid: int) -> Path:
        return self._folder / f"{pid}.made"

    def open(self, pid: int) -> None:
        """Start counting for this process."""
        self._path(pid).write_bytes(bytes(8))
        with self._path(pid).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def set(self, made: int) -> None:
        """Record the number."""
        assert self._map is not None, "open it first"
        struct.pack_into("<q", self._map, 0, made)

    def read(self, pid: int) -> int:
        """The number that a process has recorded."""
        (made,) = struct.unpack("<q", self._path(pid).read_bytes())
        return int(made)


@dataclass(frozen=True, slots=True)
class World:
    """The workers of one round, all of which have all-reduced.

    Attributes:
        round: its number; 0 where rounds are not numbered (torchrun, bare processes).
        lines: the line of each rank's first step, by rank.
    """

    round: int
    lines: tuple[Line, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.lines)

    @property
    def restart(self) -> int:
        """Rank 0's restart count."""
        return int(self.lines[0]["restart"])

    @property
    def at(self) -> float:
        """When the last rank had first all-reduced (monotonic seconds)."""
        return self.last("at")

    @property
    def pids(self) -> frozenset[int]:
        """The pids of its workers."""
        return frozenset(line["pid"] for line in self.lines)

    @property
    def resumed_from(self) -> int:
        """How many steps the checkpoint held that it resumed from."""
        return int(self.lines[0]["made"]) - 1

    def last(self, key: str) -> float:
        """When its last worker had `started` (its first line of code), `imported` torch, or all-reduced (`at`)."""
        return float(max(line[key] for line in self.lines))


class WorkLog:
    """The log in a workload's directory."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._offset = 0
        self._lines: list[Line] = []
        self._firsts: dict[int, list[Line]] = {}  # of first steps, by round, since a long log is read often

    def lines(self) -> list[Line]:
        """All complete lines so far, in the order they were written."""
        with contextlib.suppress(FileNotFoundError), (self.folder / LOG).open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._offset += len(whole) + len(newline)
            for line in map(json.loads, whole.splitlines()):
                self._lines.append(line)
                if line["step"] == 1:
                    self._firsts.setdefault(line["round"], []).append(line)
        return self._lines

    def world(self, size: int, *, round_above: int = -1, started_after: float = 0.0) -> World | None:
        """The newest complete world of a size, from rounds above one and processes started after a time."""
        self.lines()
        for number in sorted((number for number in self._firsts if number > round_above), reverse=True):
            by_rank = {
                line["rank"]: line
                for line in self._firsts[number]
                if line["world"] == size and line["started"] > started_after
            }
            if by_rank.keys() == set(range(size)):
                return World(number, tuple(by_rank[rank] for rank in range(size)))
        return None

    def finish(self) -> None:
        """Tell the workload to succeed."""
        (self.folder / STOP).touch()


def complaints(lines: Iterable[Line]) -> list[str]:
    """What is wrong with the lines of a job whose rounds are numbered.

    Within a round all agree on world size, restart count and steps made; ranks are below the world size, each with one
    process; every sum is over all ranks. Once a round has all-reduced, no earlier one does. Restart counts never fall.
    """
    found: dict[str, None] = {}
    shared: dict[int, tuple[int, int, int]] = {}
    holders: dict[tuple[int, int], int] = {}
    newest = newest_restart = 0
    for line in sorted(lines, key=lambda line: float(line["at"])):
        number, rank, world = line["round"], line["rank"], line["world"]
        who = f"round {number}, rank {rank} on {line['node']}"
        agreed = (world, line["restart"], line["made"] - line["step"])
        first = shared.setdefault(number, agreed)
        if agreed != first:
            found[f"{who}: has (world, restart, resumed from) {agreed}, others {first}"] = None
        if not 0 <= rank < world:
            found[f"{who}: no rank of a world of {world}"] = None
        if (holder := holders.setdefault((number, rank), line["pid"])) != line["pid"]:
            found[f"{who}: is two processes, {holder} and {line['pid']}"] = None
        if line["sum"] != world * (world + 1) / 2:
            found[f"{who}: the all-reduce of a world of {world} gave {line['sum']}"] = None
        if number < newest:
            found[f"{who}: all-reduced after round {newest} had"] = None
        elif number > newest:
            if line["restart"] < newest_restart:
                found[f"{who}: restart {line['restart']} after {newest_restart}"] = None
            newest, newest_restart = number, line["restart"]
    return list(found)
