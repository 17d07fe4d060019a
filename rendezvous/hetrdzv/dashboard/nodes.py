"""The nodes of a group and their workers, as the page shows them: a few in rows, many nodes as a map. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import nsmallest
from statistics import median
from typing import NamedTuple

from hetrdzv.api.views import node_state, waited_for
from hetrdzv.api.workers import worker_reply
from hetrdzv.core.model import Group, Stall
from hetrdzv.protocol.facts.differences import SCRIPT
from hetrdzv.protocol.pages import GroupReply, NodeReply, WorkerReply
from hetrdzv.protocol.states import HANGS
from hetrdzv.service.progress.table import Seen
from hetrdzv.words.causes import node_why

ORDINARY = {"running", "ready", "succeeded", "starting"}
"""States of nodes that need nobody's attention."""

MOST_CELLS = 16
"""How many slots of a node are shown."""

TILES, LONG_NAME = 128, 12
"""A map of so many nodes says their names, with more room for those of more characters."""

FEW_WORKERS = 16
"""So many workers are all shown with their pace."""

OUTLIERS = 6
"""Of more of them, this many are shown at most."""

LEAST_SHOWN = 3
"""This many are shown even if none stands out."""

ALL_WORKERS = 2_000
"""How many are shown to who asks for all."""

IDLE_S = 10.0
"""It is said of a worker that it has not moved for so long (seconds)."""

NO_SLOWER = 0.95
"""Workers that reach this share of the fastest one's pace are no slower."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One slot of a node, with its global rank; `behind`: others wait for it."""

    rank: int | None
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A node as the page shows it.

    Attributes:
        state: in a word.
        ranks: in words.
        facts: its device and labels, in a line.
        why: it is in no round, or how its worker failed.
    """

    node: NodeReply
    state: str
    master: bool
    cells: Sequence[Cell]
    ranks: str
    facts: str
    why: str
    can_drain: bool
    can_undrain: bool


class Dot(NamedTuple):
    """A node on the map; `behind`: others wait for its workers."""

    node_id: str
    state: str
    ranks: str
    master: bool
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """A worker with its pace, and how that compares with the fastest (0 to 1)."""

    worker: WorkerReply
    share: float | None


@dataclass(frozen=True, slots=True)
class Usual:
    """The medians of all workers; None: unknown."""

    steps_per_s: float | None
    per_s: float | None
    waiting: float | None


@dataclass(frozen=True, slots=True)
class Paces:
    """The pace of workers.

    Attributes:
        rows: in the order of ranks.
        total: how many workers there are.
        usual: None: all are shown.
        columns: those in which something is to be seen.
    """

    rows: Sequence[Pace]
    total: int
    usual: Usual | None
    columns: AbstractSet[str]


def rows(reply: GroupReply) -> list[Row]:
    """The nodes of a reply, in its order."""
    current = reply.current_round
    master = current.master.node_id if current is not None and current.ended is None else None
    behind = set(current.stall.ranks) if current is not None and current.stall is not None else set()
    drained = set(reply.drained)
    return [_row(node, node.node_id == master, drained, behind) for node in reply.nodes]


def _row(node: NodeReply, is_master: bool, drained: set[str], behind: set[int]) -> Row:
    first = node.rank_offset
    shown = min(node.slots, MOST_CELLS)
    cells = [
        Cell(None) if first is None else Cell(first + slot, first + slot in behind) for slot in range(shown)
    ]
    ranks = "" if first is None else _ranks(first, node.slots)
    facts = [
        *_device(node.device),
        *_script(node),
        *(f"{name}={value}" for name, value in sorted(node.labels.items())),
    ]
    is_out = node.node_id in drained
    is_in = not node.gone and not is_out
    return Row(
        node, node.shown_state, is_master, cells, ranks, " · ".join(facts), node_why(node), is_in, is_out
    )


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


def _ranks(first: int, slots: int, to: str = " to ") -> str:
    return f"{first}" if slots == 1 else f"{first}{to}{first + slots - 1}"


def dots(group: Group) -> list[Dot]:
    """All nodes of a group: members of its newest round in the order of their ranks, then the others by name.

    One that is lost stays in its place until the next round.
    """
    current, active = group.round, group.active_round
    members = {member.node_id: member for member in current.members} if current is not None else {}
    master = active.master.node_id if active is not None else None
    shown = []
    for node_id, member in members.items():
        node = group.nodes.get(node_id)
        if node is not None:
            ranked = active is not None and group.in_round(node)
            ranks = _ranks(member.rank_offset, member.slots, "\N{EN DASH}") if ranked else ""
            behind = ranked and waited_for(group, member)
            state = HANGS if behind else node_state(group, node)
            shown.append(Dot(node_id, state, ranks, node_id == master, behind))
    others = sorted(node_id for node_id in group.nodes if node_id not in members)
    shown += [Dot(node_id, node_state(group, group.nodes[node_id]), "", False) for node_id in others]
    return shown


def shape(shown: Sequence[Dot]) -> str:
    """How the nodes of a map look: the classes of each."""
    if len(shown) > TILES:
        return ""
    return "named long" if any(len(dot.node_id) > LONG_NAME for dot in shown) else "named"


def tally(shown: Sequence[Dot]) -> list[tuple[str, int]]:
    """How many nodes are in each state, most first."""
    return Counter(dot.state for dot in shown).most_common()


def paces(seen: Collection[Seen], now: float, *, stall: Stall | None = None, whole: bool = False) -> Paces:
    """The workers with their pace; of many those that stand out, and `LEAST_SHOWN` in any case.

    Args:
        stall: who is said to be waited for; None: nobody.
        whole: all of them, up to `ALL_WORKERS`.
    """
    best = max((speed for worker in seen if (speed := _speed(worker)) is not None), default=0.0)
    usual = Usual(
        _median([worker.steps.per_s for worker in seen]),
        _median([worker.collectives.per_s for worker in seen]),
        _median([worker.sample.waiting for worker in seen]),
    )
    behind = stall.ranks if stall is not None else ()
    apart = usual.waiting / 2 if usual.waiting is not None else 0.0

    def attention(worker: Seen) -> tuple[bool, float, int]:
        sample = worker.sample
        runs = sample.state == "runs" and sample.rank not in behind
        return runs, sample.waiting if sample.waiting is not None else 1.0, sample.rank

    few = ALL_WORKERS if whole or len(seen) <= FEW_WORKERS else OUTLIERS
    chosen = nsmallest(few, seen, key=attention)
    if few == OUTLIERS:
        others = [worker for worker in chosen[LEAST_SHOWN:] if attention(worker) < (True, apart)]
        chosen = chosen[:LEAST_SHOWN] + others
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
