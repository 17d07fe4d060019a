"""Reads what torch's flight recorder says about a worker's collectives. Pure.

An answer names process groups in two ways. `pg_status` has the counts by a number that torch gives to a process's own
groups, in the order in which it made them: it differs from worker to worker. The `entries`, which are the last few
operations, have that number and the name of the group, which is the same on all its members. So names are remembered.

With gloo the counts include what was sent to and received from single members, which others know nothing of; an entry
says how many of its group's operations were collectives. Two of gloo's threads may finish operations at the same time,
and the older one last: the entries know better what is done. NCCL counts collectives only, and has members in
`pg_config`.

A worker that has asked for a collective need not wait for it: DistributedDataParallel asks for one bucket of gradients
while it computes the next. Operations for which it has been seen not to wait, since it asked for another one before
they were done, are known again by their shapes and those of the operations before them.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetrdzv.protocol.wire import CollectivesFields

CONTEXT = 3
"""By the shapes of so many operations, its own the last, an operation is known again in the next step."""

MOST_KNOWN = 1000
"""Of so many operations it is remembered; where shapes differ from step to step, the oldest are forgotten."""

RARELY = 0.1
"""What was passed by less often than this (of the looks that found it the newest) is waited for all the same: an
operation may be marked as done a moment after the worker has gone on."""

OP_LENGTH, NAME_LENGTH = 120, 120
"""How much is told of an operation, and of a group's name (characters)."""


Operation = tuple[str, ...]
"""What an operation is known by."""

UNKNOWN: Operation = ("?",)
"""One that cannot be told from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one answer says.

    Attributes:
        counts: all counts; if they are the same in two answers, nothing has happened in between.
        groups: of the groups whose name is known.
        newest_at: when the last operation was asked for (seconds of the wall clock); None: unknown.
        nameless: whether there are groups whose name is not known.
        newest: the newest operation, if it is not done: the worker may wait for it; None: it does not wait.
        passed: operations for which it does not wait.
    """

    counts: Mapping[str, tuple[int, int, int]]
    groups: Sequence[CollectivesFields]
    newest_at: float | None
    nameless: bool
    newest: Operation | None
    passed: Collection[Operation]


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
    """

    world_size: int
    suffix: str = ""
    _groups: dict[str, _Group] = field(default_factory=dict)
    # operations that it was seen to pass by: how often, and how often it had come no further than to them
    _passed: dict[Operation, tuple[int, int]] = field(default_factory=dict)
    _newest: Operation | None = UNKNOWN  # if it is not done

    def read(self, answer: bytes) -> Seen:
        """Read an answer.

        Raises:
            ValueError: it is none.
        """
        try:
            found = json.loads(answer)
            newest_ns = self._read_entries(found.get("entries", ()))
            sizes = {str(one["name"]): _members(one) for one in found.get("pg_config", {}).values()}
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
            newest=self._newest if any(one.enqueued > one.completed for one in groups) else None,
            passed=frozenset(
                one for one, (passed, stood) in self._passed.items() if passed >= RARELY * stood
            ),
        )

    def _read_entries(self, entries: Sequence[Any]) -> int:
        """Remember what the entries say about their groups; when the newest was asked for (nanoseconds, 0: never)."""
        newest_ns = 0
        undone: dict[str, int] = {}
        seen: list[tuple[str, bool]] = []  # the shape of each, and whether it is done
        for entry in entries:  # in the order of time
            newest_ns = max(newest_ns, int(entry["time_created_ns"]))
            if entry.get("is_p2p"):
                continue
            group = self._groups.setdefault(str(entry["pg_id"]), _Group(str(entry["process_group"][0])))
            if not self.suffix:
                operation = int(entry["op_id"])
                if not entry.get("retired"):
                    undone.setdefault(str(entry["pg_id"]), operation)
                group.done = undone.get(str(entry["pg_id"]), operation + 1) - 1
                group.apart = max(0, operation - int(entry["collective_seq_id"]))
            name = str(entry.get("profiling_name", "")).rpartition(":")[2]
            sizes = json.dumps(entry.get("input_sizes", []), separators=(",", ":"))
            group.op = f"{name} {sizes}"[:OP_LENGTH]
            seen.append((f"{entry['pg_id']} {group.op}", bool(entry.get("retired"))))
        if not self.suffix:
            self._learn(seen)
        return newest_ns

    def _learn(self, seen: Sequence[tuple[str, bool]]) -> None:
        """Note which operations it has passed by, and which one is the newest."""
        shapes = [shape for shape, _ in seen]
        known = [tuple(shapes[end - CONTEXT : end]) for end in range(CONTEXT, len(shapes) + 1)] or [UNKNOWN]
        undone = [not is_done for _, is_done in seen[CONTEXT - 1 :]] or [True]
        for one in (one for one, is_undone in zip(known[:-1], undone, strict=False) if is_undone):
            passed, stood = self._passed.pop(one, (0, 0))
            self._passed[one] = passed + 1, stood
        while len(self._passed) > MOST_KNOWN:
            del self._passed[next(iter(self._passed))]
        self._newest = known[-1] if undone[-1] else None
        if self._newest in self._passed:
            passed, stood = self._passed[self._newest]
            self._passed[self._newest] = passed, stood + 1

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
