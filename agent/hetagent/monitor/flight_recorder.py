"""Reads what torch's flight recorder says about a worker's collectives. Pure.

`pg_status` has the counts by a number that torch gives to a process's groups in the order of their making: it differs
between workers. The `entries`, the last few operations, have that number and the group's name, which is the same on all
members. So names are remembered.

gloo and nccl2 count operations, gloo from 1 on, nccl2 from 0; sends and receives count, too, and an entry says how many
of its group's operations were collectives by then. Threads may finish operations out of order: the entries know better
what is done.

The older NCCL counts collectives on their own, and what is sent and received on its own, and tells the number of
whichever was last: the server believes it only where the members' numbers agree (core/hangs.py). Its entries are not
asked for (sources.py). `pg_config` has the names of the groups that have a communicator, counted up like the numbers:
if all names are numbers, and as many, they are the same groups.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetrdzv.protocol import codec
from hetrdzv.protocol.progress import ProcessGroupProgress

OP_LENGTH, NAME_LENGTH = 120, 120
"""How much is told of an operation, and of a group's name (characters)."""

DEFAULT_GROUP_NAME = "0"
"""torch's name of the group that all ranks are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightRecorderDump:
    """What one answer says.

    Attributes:
        counts: all counts; if they are the same in two answers, nothing has happened in between.
        groups: of the groups whose name is known.
        has_groups: whether the recorder knows of any group. It does not if it is switched off.
        has_default_group: whether it knows the group that all ranks are in.
        unknown_reason: why nothing is known of its groups; empty: something is.
    """

    counts: Mapping[str, tuple[int, int, int]]
    groups: Sequence[ProcessGroupProgress]
    has_groups: bool
    has_default_group: bool
    unknown_reason: str


@dataclass(slots=True)
class _Group:
    name: str
    op: str = ""
    done: int = -1  # the newest operation before any that is not done, of those of which there are entries
    # operations: number, how many collectives by then
    entries: list[tuple[int, int]] = field(default_factory=list)

    def count_collectives(self, operation: int) -> int:
        """How many collectives there were up to an operation; those without an entry are taken for some."""
        if not self.entries:
            return max(0, operation)
        number, collectives = self.entries[max(0, bisect_right(self.entries, (operation, operation + 1)) - 1)]
        return max(0, collectives + operation - number)


@dataclass(slots=True)
class FlightRecorderParser:
    """The answers of one worker about one of torch's backends.

    Attributes:
        world_size: of the round: how many members the default group has.
        suffix: what is added to the names of groups: two backends may have groups of the same name.
        counts_operations: the counts are of operations of any kind, not of collectives.
    """

    world_size: int
    suffix: str = ""
    counts_operations: bool = True
    _groups: dict[str, _Group] = field(default_factory=dict)

    def parse(self, answer: bytes) -> FlightRecorderDump:
        """Read an answer; a ValueError: it is none."""
        blind = ""
        try:
            dump = json.loads(answer)
            self._read_entries(dump.get("entries", ()))
            sizes = {
                str(config["name"]): len(re.findall(r"\d+", str(config.get("ranks"))))
                for config in dump.get("pg_config", {}).values()
            }
            counts = {
                str(number): _read_counts(status) for number, status in dump.get("pg_status", {}).items()
            }
            if not self.counts_operations:
                blind = self._read_names(sizes, counts)
        except (AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"not an answer from torch's flight recorder: {error}") from error
        return FlightRecorderDump(
            counts=counts,
            groups=[
                self._make_collectives(self._groups[number], sizes, *count)
                for number, count in counts.items()
                if number in self._groups
            ],
            has_groups=bool(sizes),
            has_default_group=DEFAULT_GROUP_NAME in sizes
            or any(group.name == DEFAULT_GROUP_NAME for group in self._groups.values()),
            unknown_reason=blind,
        )

    def _read_names(self, sizes: Mapping[str, int], counts: Mapping[str, Sequence[int]]) -> str:
        """Give groups their names, if it is certain which is which; why nothing is known of them."""
        self._groups.clear()
        if any(enqueued < 0 for enqueued, *_ in counts.values()):  # torch has recorded an operation
            return "does not count: is TORCH_NCCL_BLOCKING_WAIT set?"
        if not counts:
            return ""
        if len(sizes) != len(counts) or not all(map(str.isdecimal, (*sizes, *counts))):
            return "has groups that torch does not name"
        for number, name in zip(sorted(counts, key=int), sorted(sizes, key=int), strict=True):
            self._groups[number] = _Group(name)
        return ""

    def _read_entries(self, entries: Sequence[Any]) -> None:
        """Remember what the entries say about their groups."""
        undone: dict[str, int] = {}
        for group in self._groups.values():
            del group.entries[:-1]
        for entry in entries:  # in the order of time
            number = str(entry["pg_id"])
            group = self._groups.setdefault(number, _Group(str(entry["process_group"][0])))
            if self.counts_operations:
                operation = int(entry["op_id"])
                group.entries.append((operation, int(entry["collective_seq_id"])))
                if not entry.get("is_p2p"):
                    if not entry.get("retired"):
                        undone.setdefault(number, operation)
                    group.done = undone.get(number, operation + 1) - 1
            if entry.get("is_p2p"):
                continue
            name = str(entry.get("profiling_name", "")).rpartition(":")[2]
            sizes = json.dumps(entry.get("input_sizes", []), separators=(",", ":"))
            group.op = f"{name} {sizes}"[:OP_LENGTH]
        for group in self._groups.values():
            group.entries.sort()

    def _make_collectives(
        self, group: _Group, sizes: Mapping[str, int], enqueued: int, started: int, completed: int
    ) -> ProcessGroupProgress:
        collectives = ProcessGroupProgress(
            name=group.name[:NAME_LENGTH] + self.suffix,
            size=self.world_size if group.name == DEFAULT_GROUP_NAME else sizes.get(group.name, 0),
            enqueued=group.count_collectives(enqueued),
            started=group.count_collectives(started),
            completed=group.count_collectives(max(completed, min(enqueued, group.done))),
            op=group.op,
        )
        return codec.validate_value(ProcessGroupProgress, collectives)


def _read_counts(status: Mapping[str, Any]) -> tuple[int, int, int]:
    """The last operation asked for, started and completed; -1: none."""
    return (
        int(status["last_enqueued_collective"]),
        int(status["last_started_collective"]),
        int(status["last_completed_collective"]),
    )
