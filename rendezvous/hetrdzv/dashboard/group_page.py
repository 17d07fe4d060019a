"""The sections of a group's page, each from the template of its name."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from statistics import median

from hetrdzv.api import views
from hetrdzv.core.model import Group
from hetrdzv.dashboard.render import render_section
from hetrdzv.protocol.reasons.advice import advise_after_exit
from hetrdzv.protocol.reasons.snapshots import safe_step_text
from hetrdzv.protocol.replies import WORKER_COLUMNS, WorkerReply
from hetrdzv.protocol.rounds import RoundRecord, total_time, with_downtimes
from hetrdzv.protocol.worker_output import OutputKind
from hetrdzv.service.service import Service

MAX_NODES_WITHOUT_MAP = 15
"""Groups of more nodes show a map of all of them, and rows for those that are not as they should be."""

MAX_ROWS = 5_000
"""How many rows are shown to who asks for all."""

MIN_NODES_FOR_THREAD = 64
"""Sections of groups of more nodes are made in a thread."""

MAX_SHOWN_ROUNDS, UNFOLDED_ROUNDS, MAX_SHOWN_EVENTS = 40, 5, 100
"""How many are shown; rounds after the first few are folded away."""

ORDINARY_NODE_STATES = {"running", "ready", "succeeded", "starting"}
"""States of nodes that need nobody's attention."""

MAX_WORKERS_ALL_SHOWN, SHOWN_OUTLIERS, MAX_SHOWN_WORKERS = 16, 6, 2_000
"""So many workers are all shown with their pace; of more of them those that others wait for most; at most so many."""

SECTIONS = ("now", "cause", "facts", "timeline", "nodes", "pace", "rounds", "history")


@dataclass(frozen=True)
class TimelineBar:
    """What a stretch of time of a round went into (a `RoundPhase`); x and width in thousandths of the timeline."""

    phase: str
    length: float
    round: int
    x: float
    width: float


def make_timeline_bars(rounds: Sequence[RoundRecord]) -> list[TimelineBar]:
    """What the time of rounds went into; what is too short to be seen is made wide enough."""
    drawn: list[TimelineBar] = []
    start, whole_s = 0.0, sum(sum(record.time.values()) for record in rounds)
    for record in rounds:
        for phase, length in record.time.items():
            x, width = 1000 * start / whole_s, 1000 * length / whole_s
            drawn.append(TimelineBar(phase, length, record.number, x, max(2.0, width)))
            start += length
    return drawn


def group_sections(
    service: Service, group: Group, *, acts: bool, whole: bool
) -> Callable[[], Mapping[str, str]]:
    """What makes the sections of a group; all that it takes from the service is taken now, for it may be in a thread.

    Args:
        acts: whether they have the buttons that change something.
        whole: whether all nodes and workers have rows, however many they are.
    """
    group_id, now = group.group_id, service.now()
    rounds, (events, _) = service.rounds(group_id), service.history(group_id)
    seen, heard_at = dict(service.progress.workers(group)), partial(service.leases.heard_at, group)
    stall = group.reported_stall
    kept = service.post_mortems.list_rounds if acts else lambda *_: frozenset()
    outputs, stacks = kept(group_id, OutputKind.LOGS), kept(group_id, OutputKind.STACKS)

    def make() -> Mapping[str, str]:
        reply = views.group_reply(group, now, heard_at, seen)
        running, current, over = group.active_round, reply.current_round, group.state.is_terminal
        failed = running.restarted_by if running is not None and not over else None
        every = reply.nodes if len(reply.nodes) > (MAX_ROWS if whole else MAX_NODES_WITHOUT_MAP) else ()
        unusual = [node for node in every if node.display_state not in ORDINARY_NODE_STATES]
        unusual.sort(key=lambda node: node.display_state == "spare")
        newest = with_downtimes(rounds)[: -MAX_SHOWN_ROUNDS - 1 : -1]
        values = {
            "group": reply,
            "acts": acts,
            "whole": whole,
            "over": over,
            "outputs": outputs,
            "stacks": stacks,
            "snapshot": safe_step_text(reply.snapshot),
            "restarted_by": "; ".join(filter(None, (failed.message, advise_after_exit(failed))))
            if failed
            else "",
            "stack": stall.stack if stall is not None else "",
            "stack_of": stall.hang.ranks[0] if stall is not None and stall.hang.ranks else None,
            "behind": views.list_ranks_waited_for(group),
            "time": total_time(rounds),
            "bars": make_timeline_bars(rounds),
            "rows": unusual[:MAX_NODES_WITHOUT_MAP] if every else reply.nodes,
            "more": max(0, len(unusual) - MAX_NODES_WITHOUT_MAP),
            "dots": every,
            "master": current.master.node_id if current is not None and current.ended is None else None,
            "tally": Counter(node.display_state for node in every).most_common(),
            "paces": make_worker_paces(current.workers, whole=whole)
            if current is not None and running
            else None,
            "newest": newest[:UNFOLDED_ROUNDS],
            "older": newest[UNFOLDED_ROUNDS:],
            "events": events[: -MAX_SHOWN_EVENTS - 1 : -1],
        }
        return {name: render_section(f"{name}.html", **values) for name in SECTIONS}

    return make


# -- the pace of workers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerPaces:
    """The pace of workers in the order of ranks; `usual`: the medians of all `total` of them, unless all are shown."""

    columns: Sequence[str]
    rows: Sequence[tuple[WorkerReply, Sequence[str]]]
    total: int
    usual: Sequence[str] | None


def make_worker_paces(seen: Sequence[WorkerReply], *, whole: bool = False) -> WorkerPaces:
    """The workers with their pace; of many those that others wait for most, unless the `whole` is asked for."""
    few = MAX_SHOWN_WORKERS if whole or len(seen) <= MAX_WORKERS_ALL_SHOWN else SHOWN_OUTLIERS
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
    return WorkerPaces(
        list(used),
        [(worker, [show(worker) for show in used.values()]) for worker in workers],
        len(seen),
        [show(usual) for show in used.values()] if len(workers) < len(seen) else None,
    )


def _median(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return median(known) if known else None
