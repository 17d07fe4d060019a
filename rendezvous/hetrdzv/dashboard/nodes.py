"""The nodes of a group and their workers, as the page shows them: a few in rows, many nodes as a map. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import nsmallest
from statistics import median

from hetrdzv.api.workers import worker_reply
from hetrdzv.core.model import Stall
from hetrdzv.protocol.differences import SCRIPT
from hetrdzv.protocol.pages import GroupReply, NodeReply, WorkerReply
from hetrdzv.service.progress.table import Seen

ORDINARY = {"running", "ready", "succeeded", "starting"}
"""States of nodes that need nobody's attention."""

MOST_CELLS = 16
"""How many slots of a node are shown."""

TILES, LONG_NAME = 128, 12
"""A map of so many nodes says their names, with more room for those of more characters."""

FEW_WORKERS = 16
"""So many workers are all shown with their pace."""

OUTLIERS = 6
"""Of more of them, so many are shown: those that others wait for most."""

ALL_WORKERS = 2_000
"""How many are shown to who asks for all."""

IDLE_S = 10.0
"""It is said of a worker that it has not moved for so long (seconds)."""

NO_SLOWER = 0.95
"""Workers that reach this share of the fastest one's pace are no slower."""


@dataclass(frozen=True, slots=True)
class Row:
    """A node as the page shows it.

    Attributes:
        cells: its first slots, each with its global rank, and whether others wait for it.
        ranks: in words.
        facts: its device, what it runs and its labels, in a line.
    """

    node: NodeReply
    is_master: bool
    is_drained: bool
    cells: Sequence[tuple[int | None, bool]]
    ranks: str
    facts: str


@dataclass(frozen=True, slots=True)
class Pace:
    """A worker with its pace, and how that compares with the fastest (0 to 1)."""

    worker: WorkerReply
    share: float | None


@dataclass(frozen=True, slots=True)
class Paces:
    """The pace of workers.

    Attributes:
        rows: in the order of ranks.
        total: how many workers there are.
        usual: the medians of all workers; None: all are shown.
        columns: those in which something is to be seen.
    """

    rows: Sequence[Pace]
    total: int
    usual: Mapping[str, float | None] | None
    columns: AbstractSet[str]


def master_of(reply: GroupReply) -> str | None:
    """The node id of the master of the round that runs."""
    current = reply.current_round
    return current.master.node_id if current is not None and current.ended is None else None


def rows(reply: GroupReply, nodes: Sequence[NodeReply]) -> list[Row]:
    """Some nodes of a reply."""
    current, master = reply.current_round, master_of(reply)
    behind = set(current.stall.ranks) if current is not None and current.stall is not None else set()
    found = []
    for node in nodes:
        first = node.rank_offset
        ranks = [None if first is None else first + slot for slot in range(min(node.slots, MOST_CELLS))]
        labels = (f"{name}={value}" for name, value in sorted(node.labels.items()))
        found.append(
            Row(
                node,
                is_master=node.node_id == master,
                is_drained=node.node_id in reply.drained,
                cells=[(rank, rank in behind) for rank in ranks],
                ranks=ranks_of(node),
                facts=" · ".join([*_device(node.device), *_script(node), *labels]),
            )
        )
    return found


def ranks_of(node: NodeReply, to: str = " to ") -> str:
    """The global ranks of a node; empty: it has none."""
    first, last = node.rank_offset, (node.rank_offset or 0) + node.slots - 1
    if first is None:
        return ""
    return f"{first}" if first == last else f"{first}{to}{last}"


_NO_VERSIONS = ("name", "kind", "memory_gib", SCRIPT)


def _device(facts: Mapping[str, str]) -> list[str]:
    """What its agent says of a node's devices: what they are, then versions by name."""
    what = [facts[name] for name in ("name", "kind") if name in facts][:1]
    memory = [f"{facts['memory_gib']} GiB"] if "memory_gib" in facts else []
    versions = [f"{name} {value}" for name, value in facts.items() if name not in _NO_VERSIONS]
    return [*what, *memory, *versions]


def _script(node: NodeReply) -> list[str]:
    """What its workers run: by name, and the checksum of that, as far as they are known."""
    known = node.device.get(SCRIPT)
    if not node.script:
        return [f"script {known}"] if known else []
    return [f"{node.script} (checksum {known})" if known else node.script]


def on_map(reply: GroupReply) -> list[NodeReply]:
    """All nodes: members of the newest round in the order of their ranks, then the others.

    One that is lost stays in its place until the next round.
    """
    members = reply.current_round.members if reply.current_round is not None else ()
    places = {member.node_id: place for place, member in enumerate(members)}
    return sorted(reply.nodes, key=lambda node: places.get(node.node_id, len(places)))


def shape(shown: Sequence[NodeReply]) -> str:
    """How the nodes of a map look: the classes of each."""
    if len(shown) > TILES:
        return ""
    return "named long" if any(len(node.node_id) > LONG_NAME for node in shown) else "named"


def tally(shown: Sequence[NodeReply]) -> list[tuple[str, int]]:
    """How many nodes are in each state, most first."""
    return Counter(node.shown_state for node in shown).most_common()


def paces(seen: Collection[Seen], now: float, *, stall: Stall | None = None, whole: bool = False) -> Paces:
    """The workers with their pace; of many those that others wait for most.

    Args:
        stall: who is said to be waited for; None: nobody.
        whole: all of them, up to `ALL_WORKERS`.
    """
    best = max((speed for worker in seen if (speed := _speed(worker)) is not None), default=0.0)
    usual = {
        "steps_per_s": _median([worker.steps.per_s for worker in seen]),
        "per_s": _median([worker.collectives.per_s for worker in seen]),
        "waiting": _median([worker.sample.waiting for worker in seen]),
    }
    behind = stall.ranks if stall is not None else ()

    def attention(worker: Seen) -> tuple[bool, float, int]:
        sample = worker.sample
        runs = sample.state == "runs" and sample.rank not in behind
        return runs, sample.waiting if sample.waiting is not None else 1.0, sample.rank

    few = ALL_WORKERS if whole or len(seen) <= FEW_WORKERS else OUTLIERS
    chosen = nsmallest(few, seen, key=attention)
    chosen.sort(key=lambda worker: worker.sample.rank)
    shown = [
        Pace(worker_reply(worker, stall, now), None if best <= 0 else (_speed(worker) or 0.0) / best)
        for worker in chosen
    ]
    return Paces(shown, len(seen), usual if len(shown) < len(seen) else None, _columns(shown))


def _columns(shown: Sequence[Pace]) -> AbstractSet[str]:
    workers = [pace.worker for pace in shown]
    said = {
        "pid": any(worker.pid for worker in workers),
        "state": any(worker.shown_state != "runs" or worker.idle_s >= IDLE_S for worker in workers),
        "step": any(worker.step is not None for worker in workers),
        "steps": any(worker.steps_per_s is not None for worker in workers),
        "collectives": any(worker.per_s is not None for worker in workers),
        "waits": any(worker.waiting is not None for worker in workers),
        "pace": any(pace.share is not None and pace.share < NO_SLOWER for pace in shown),
    }
    return {name for name, is_said in said.items() if is_said}


def _speed(worker: Seen) -> float | None:
    return worker.steps.per_s if worker.steps.per_s is not None else worker.collectives.per_s


def _median(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return median(known) if known else None
