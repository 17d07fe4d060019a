"""The nodes of a group and their workers, as the page shows them: a few in rows, many nodes as a map. Pure."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from statistics import median

from hetrdzv.api.workers import worker_reply
from hetrdzv.core.model import Stall
from hetrdzv.protocol.errors import SCRIPT
from hetrdzv.protocol.pages import GroupReply, NodeReply, WorkerReply
from hetrdzv.protocol.texts.phrasing import digits, duration_text, percent
from hetrdzv.service.progress.samples import WorkerSample

ORDINARY = {"running", "ready", "succeeded", "starting"}
"""States of nodes that need nobody's attention."""

FEW_WORKERS, OUTLIERS, ALL_WORKERS = 16, 6, 2_000
"""So many workers are all shown with their pace; of more of them those that others wait for most; at most so many."""

IDLE_S = 10.0
"""It is said of a worker that it has not moved for so long (seconds)."""


def _number(value: float | None) -> str:
    return "" if value is None else digits(value)


def _state(worker: WorkerReply) -> str:
    idle = f", idle for {duration_text(worker.idle_s)}" if worker.idle_s >= IDLE_S else ""
    return f"{worker.state}{idle}"


COLUMNS: Sequence[tuple[str, Callable[[WorkerReply], str]]] = (
    ("state", _state),
    ("process", lambda worker: str(worker.pid or "")),
    ("step", lambda worker: "" if worker.step is None else str(worker.step)),
    ("steps/s", lambda worker: _number(worker.steps_per_s)),
    ("collectives/s", lambda worker: _number(worker.per_s)),
    ("waits for others", lambda worker: "" if worker.waiting is None else percent(worker.waiting)),
)
"""What is shown of a worker."""


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


def nodes_for_map(reply: GroupReply) -> list[NodeReply]:
    """All nodes: members of the newest round in the order of their ranks, even if they are lost, then the others."""
    members = reply.current_round.members if reply.current_round is not None else ()
    places = {member.node_id: place for place, member in enumerate(members)}
    return sorted(reply.nodes, key=lambda node: places.get(node.node_id, len(places)))


def paces(
    seen: Collection[WorkerSample], now: float, *, stall: Stall | None = None, whole: bool = False
) -> Paces:
    """The workers with their pace; of many those that others wait for most, unless the `whole` is asked for."""
    behind = stall.hang.ranks if stall is not None else ()

    def attention(worker: WorkerSample) -> tuple[bool, float, int]:
        sample = worker.sample
        runs = sample.state == "runs" and sample.rank not in behind
        return runs, sample.waiting if sample.waiting is not None else 1.0, sample.rank

    few = ALL_WORKERS if whole or len(seen) <= FEW_WORKERS else OUTLIERS
    chosen = sorted(nsmallest(few, seen, key=attention), key=lambda worker: worker.sample.rank)
    workers = [worker_reply(worker, stall, now) for worker in chosen]
    usual = WorkerReply(
        rank=-1,
        node_id="",
        state="",
        idle_s=0.0,
        steps_per_s=_median([worker.steps.per_s for worker in seen]),
        per_s=_median([worker.collectives.per_s for worker in seen]),
        waiting=_median([worker.sample.waiting for worker in seen]),
    )
    used = [column for column in COLUMNS if any(column[1](worker) not in ("", "runs") for worker in workers)]
    return Paces(
        [name for name, _ in used],
        [(worker, [show(worker) for _, show in used]) for worker in workers],
        len(seen),
        [show(usual) for _, show in used] if len(workers) < len(seen) else None,
    )


def _median(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return median(known) if known else None
