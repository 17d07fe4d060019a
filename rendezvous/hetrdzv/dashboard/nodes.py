"""The nodes of a group and their workers, as the page shows them: a few in rows, many nodes as a map. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from statistics import median

from hetrdzv.protocol.errors import SCRIPT
from hetrdzv.protocol.pages import WORKER_COLUMNS, NodeReply, WorkerReply

ORDINARY = {"running", "ready", "succeeded", "starting"}
"""States of nodes that need nobody's attention."""

FEW_WORKERS, OUTLIERS, ALL_WORKERS = 16, 6, 2_000
"""So many workers are all shown with their pace; of more of them those that others wait for most; at most so many."""


@dataclass(frozen=True, slots=True)
class Paces:
    """The pace of workers in the order of ranks; `usual`: the medians of all `total` of them, unless all are shown."""

    columns: Sequence[str]
    rows: Sequence[tuple[WorkerReply, Sequence[str]]]
    total: int
    usual: Sequence[str] | None


def facts_of(node: NodeReply) -> str:
    """A node's device, what it runs and its labels, in a line."""
    device = dict(node.device)
    checksum, kind, name = (device.pop(key, "") for key in (SCRIPT, "kind", "name"))
    memory = device.pop("memory_gib", "")
    script = f"{node.script} (checksum {checksum})" if node.script and checksum else node.script
    parts = [
        name or kind,
        memory and f"{memory} GiB",
        *(f"{key} {value}" for key, value in device.items()),
        script or (checksum and f"script {checksum}"),
        *(f"{key}={value}" for key, value in sorted(node.labels.items())),
    ]
    return " · ".join(filter(None, parts))


def paces(seen: Sequence[WorkerReply], *, whole: bool = False) -> Paces:
    """The workers with their pace; of many those that others wait for most, unless the `whole` is asked for."""
    few = ALL_WORKERS if whole or len(seen) <= FEW_WORKERS else OUTLIERS
    chosen = nsmallest(few, seen, key=lambda worker: worker.sort_key)
    workers = sorted(chosen, key=lambda worker: worker.rank)
    usual = WorkerReply(
        rank=-1,
        node_id="",
        state="",
        idle_s=0.0,
        steps_per_s=_median([worker.steps_per_s for worker in seen]),
        per_s=_median([worker.per_s for worker in seen]),
        waiting=_median([worker.waiting for worker in seen]),
    )
    used = {
        name: show
        for name, show in WORKER_COLUMNS.items()
        if any(show(worker) not in ("", "runs") for worker in workers)
    }
    return Paces(
        list(used),
        [(worker, [show(worker) for show in used.values()]) for worker in workers],
        len(seen),
        [show(usual) for show in used.values()] if len(workers) < len(seen) else None,
    )


def _median(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return median(known) if known else None
