"""Reads what torch's flight recorder says about a worker's collectives. Pure.

An answer names process groups in two ways. `pg_status` has the counts by a number that torch gives to a process's own
groups, in the order in which it made them: it differs from worker to worker. The `entries`, which are the last few
operations, have that number and the name of the group, which is the same on all its members. So names are remembered.

With gloo and nccl2 the counts include what was sent to and received from single members, which others know nothing of;
an entry says how many of its group's operations were collectives. Several threads may finish operations at the same
time, and the older one last: the entries know better what is done.

The older NCCL counts collectives only. Its entries are not asked for (see sources.py), so its groups have the names
that the worker has noted: torch numbers them in the order in which they were made.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetrdzv.protocol.wire import CollectivesFields

OP_LENGTH, NAME_LENGTH = 120, 120
"""How much is told of an operation, and of a group's name (characters)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one answer says.

    Attributes:
        counts: all counts; if they are the same in two answers, nothing has happened in between.
        groups: of the groups whose name is known.
        newest_at: when the last operation was asked for (seconds of the wall clock); None: unknown.
        nameless: whether there are groups whose name is not known.
        records: whether the recorder knows of any group. It does not if it is switched off.
    """

    counts: Mapping[str, tuple[int, int, int]]
    groups: Sequence[CollectivesFields]
    newest_at: float | None
    nameless: bool
    records: bool


@dataclass(slots=True)
class _Group:
    name: str
    apart: int = 0  # how many of the operations counted so far were no collectives
    op: str = ""
    done: int = 0  # the newest operation before any that is not done, of those of which there are entries


@dataclass(slots=True)
class Trace:
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

    def read(self, answer: bytes, names: Sequence[str] = ()) -> Seen:
        """Read an answer.

        Args:
            names: of all groups of this backend, in the order of their making, if its entries do not tell.

        Raises:
            ValueError: it is none.
        """
        try:
            found = json.loads(answer)
            newest_ns = self._read_entries(found.get("entries", ()))
            sizes = {str(one["name"]): _members(one) for one in found.get("pg_config", {}).values()}
            if not self.counts_operations:
                self._read_names(names, sizes)
            counts = {str(number): _counts(one) for number, one in found.get("pg_status", {}).items()}
        except (AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"not an answer of torch's flight recorder: {error}") from error
        groups = [
            self._collectives(self._groups[number], sizes, *one)
            for number, one in counts.items()
            if number in self._groups
        ]
        return Seen(
            counts=counts,
            groups=groups,
            newest_at=newest_ns / 1e9 if newest_ns else None,
            nameless=len(groups) < len(counts),
            records=bool(sizes),
        )

    def _read_names(self, names: Sequence[str], sizes: Mapping[str, int]) -> None:
        """Give groups their names; none, if there are groups of which the worker has not noted that it made them."""
        known = sizes.keys() <= set(names)
        self._groups = {
            str(number): self._groups.get(str(number)) or _Group(name)
            for number, name in enumerate(names)
            if known and name in sizes
        }

    def _read_entries(self, entries: Sequence[Any]) -> int:
        """Remember what the entries say about their groups; when the newest was asked for (nanoseconds, 0: never)."""
        newest_ns = 0
        undone: dict[str, int] = {}
        for entry in entries:  # in the order of time
            newest_ns = max(newest_ns, int(entry["time_created_ns"]))
            if entry.get("is_p2p"):
                continue
            group = self._groups.setdefault(str(entry["pg_id"]), _Group(str(entry["process_group"][0])))
            if self.counts_operations:
                operation = int(entry["op_id"])
                if not entry.get("retired"):
                    undone.setdefault(str(entry["pg_id"]), operation)
                group.done = undone.get(str(entry["pg_id"]), operation + 1) - 1
                group.apart = max(0, operation - int(entry["collective_seq_id"]))
            name = str(entry.get("profiling_name", "")).rpartition(":")[2]
            sizes = json.dumps(entry.get("input_sizes", []), separators=(",", ":"))
            group.op = f"{name} {sizes}"[:OP_LENGTH]
        return newest_ns

    def _collectives(
        self, group: _Group, sizes: Mapping[str, int], enqueued: int, started: int, completed: int
    ) -> CollectivesFields:
        size = self.world_size if group.name == "0" else sizes.get(group.name, 0)
        return CollectivesFields(
            name=group.name[:NAME_LENGTH] + self.suffix,
            size=size,
            enqueued=max(0, enqueued - group.apart),
            started=max(0, started - group.apart),
            completed=max(0, max(completed, min(enqueued, group.done)) - group.apart),
            op=group.op,
        )


def _counts(status: Mapping[str, Any]) -> tuple[int, int, int]:
    """The last operation asked for, started and completed; -1, which stands for none, becomes 0."""
    enqueued, started, completed = (
        max(0, int(status[f"last_{what}_collective"])) for what in ("enqueued", "started", "completed")
    )
    return enqueued, started, completed


def _members(config: Mapping[str, Any]) -> int:
    """How many members a group has; 0: it does not say."""
    ranks = config.get("ranks", "")
    return len([rank for rank in str(ranks).strip("[] ").split(",") if rank.strip()])
