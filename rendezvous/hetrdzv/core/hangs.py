"""Whether a round's workers hang, who is to blame, and what that does to the round.

In each of torch's process groups the most advanced members wait for those behind them: a worker waits if its last
collective there is not complete and its numbers no longer change. To blame is who is waited for and waits for nobody.
The numbers say nothing about point-to-point operations (`send`, `recv`). A healthy job is never blamed as long as each
of its workers moves, or has announced a long pause; a worker of which nothing is known is neither blamed nor waits.
Where only steps are known, they are compared as the collectives of one group.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from math import inf, prod
from operator import attrgetter
from typing import Any

from hetrdzv.core.commands import RecordStall
from hetrdzv.core.model import EndCause
from hetrdzv.core.rounds.timers import STALL_REPORTED_AFTER_S, is_stall_ignored, stall_ends_round_at
from hetrdzv.core.rounds.transitions import StepContext, end_round
from hetrdzv.protocol.progress import UNRESPONSIVE_STATES, ProcessGroupProgress, WorkerProgress
from hetrdzv.protocol.reasons import ends, hangs
from hetrdzv.protocol.reasons.hangs import Hang
from hetrdzv.protocol.rounds import WorkerFailure
from hetrdzv.protocol.states import EndKind, StallKind
from hetrdzv.protocol.texts.node_rank_lists import RankList, join_words

RECENTLY_MOVED_S = 1.0
"""Whoever has moved within this time does not wait (seconds)."""

MIN_STEP_STALL_S = 60.0
"""How long nobody must have moved where only steps are known, of which a single one may take long (seconds)."""

EQUAL_BLAME_TOLERANCE_S = 1.0
"""Workers that have kept others waiting as long as the worst one, but for this (seconds), are to blame as well."""

SAME_STALL_TOLERANCE_S = 2.0
"""Two looks at one stall may differ by this in when it began (seconds)."""

COMPUTING_CPU_SHARE, SLEEPING_CPU_SHARE = 0.1, 0.05
"""Whoever has taken more of a core than the first of these computes (it may have to share it), and whoever has taken
less than the second sleeps."""

MAX_WAITING_GROUPS_PER_WORKER = 4
"""In how many process groups of a worker, of those in which it waits, others are looked for."""

MAX_UNUSED_PLACES_PER_WORKER = 4
"""How many places in groups that they have not used yet are looked at, for each worker of the world."""

MAX_NAMES_IN_HANG = 3
"""How many nodes, process groups or operations a hang names; the others are counted."""

MAX_RANKS_IN_HANG = 8
"""How many of the ranks that are waited for are named one by one."""

MIXED_COUNTS_SUFFIX = "/nccl"
"""Ends the name of a group whose numbers count collectives or what was sent and received, whichever was last."""

MAX_COLLECTIVES_AHEAD = 8
"""How many collectives a member may have done that another has not asked for: the root of a broadcast does not wait."""

DEFAULT_PROCESS_GROUPS = frozenset({"0", "default_pg"})
"""The names of the process group that all ranks are in."""

_KNOWN_STATES = frozenset({"runs", "ended", *UNRESPONSIVE_STATES})
"""The states of a worker of which something is known: of one that is `unknown` at most its step."""

_EQUAL_SIZE_OPS = ("all_reduce", "allreduce", "broadcast", "reduce_scatter")
"""Operations whose members must all give inputs of the same size."""

_POINT_TO_POINT_OPS = ("send", "recv")
"""Operations that differ on both ends."""

NodeOf = Callable[[int], str]
"""The node of a rank."""


@dataclass(slots=True)
class WorkerPosition:
    """Where a worker stands in a process group.

    Attributes:
        at: its collectives there.
        level: what members are compared by: a wait is for those of the lowest level.
        pending: whether its last collective there is not complete, and the worker does not move.
    """

    worker: WorkerProgress
    at: ProcessGroupProgress
    level: tuple[int, int, bool]
    pending: bool


@dataclass
class ProcessGroup:
    """A process group in which somebody waits.

    Attributes:
        size: how many members it has; 0: unknown.
        positions: of its known members, the furthest behind first.
        missing: how many members are not known.
        unit: what its numbers count.
        stuck: whether all members stand at the same collective, and it completes for none of them.
        waiting: the members that wait, for those behind them or because nothing completes.
    """

    name: str
    size: int
    positions: list[WorkerPosition]
    missing: int = 0
    unit: str = "collective"
    stuck: bool = field(init=False)
    waiting: list[WorkerProgress] = field(init=False)

    def __post_init__(self) -> None:
        """Put the members in order, and see which of them wait."""
        places = self.positions
        places.sort(key=attrgetter("level"))
        lowest = places[0].level
        self.stuck = (
            lowest == places[-1].level and not self.missing and all(place.pending for place in places)
        )
        self.waiting = [
            place.worker
            for place in places
            if place.pending and (self.stuck or place.level > lowest or self.missing > 0)
        ]

    @property
    def last_collective(self) -> int:
        """The number of the last collective that a member has asked for."""
        return max(place.at.enqueued for place in self.positions)

    def name_suffix(self, preposition: str) -> str:
        """` of process group tp`; empty for the default group."""
        default = self.name.partition("/")[0] in DEFAULT_PROCESS_GROUPS
        return "" if default else f" {preposition} process group {self.name}"

    def describe_position(self, number: int) -> str:
        """`collective 5`, `collective 5 of 6 in process group tp`."""
        if number == self.last_collective:
            return f"{self.unit} {number:,}{self.name_suffix('of')}"
        return f"{self.unit} {number:,} of {self.last_collective:,}{self.name_suffix('in')}"


def find_hang(workers: Sequence[WorkerProgress], world_size: int, node_of: NodeOf) -> Hang | None:
    """Who is waited for, by whom, and since when; None: nobody, as far as can be seen."""
    known = sorted((worker for worker in workers if worker.state in _KNOWN_STATES), key=attrgetter("rank"))
    if any(worker.collectives for worker in known):
        groups = _make_process_groups(known, world_size)
    else:
        groups = _make_step_group(workers, world_size)
    waiting = {worker.rank for group in groups for worker in group.waiting}
    # where a member has announced a long pause nothing need move
    groups = [group for group in groups if not any(place.worker.long_s > 0 for place in group.positions)]
    if not waiting or not groups:
        return None
    quiet = len(known) == world_size and all(
        worker.idle_s >= RECENTLY_MOVED_S and not worker.long_s for worker in known
    )
    return (
        _find_mismatched_collective(groups, node_of)
        or _find_lagging_workers(groups, waiting, node_of)
        or _find_incomplete_collective(
            [group for group in groups if group.stuck or (quiet and group.waiting)]
        )
    )


# -- who waits for whom --------------------------------------------------------------------------------------


def _make_process_groups(workers: Sequence[WorkerProgress], world_size: int) -> list[ProcessGroup]:
    """The process groups in which somebody waits, of the world's known workers."""
    moving = sum(map(_moved_recently, workers))
    groups = []
    for (name, size), members in _find_waiting_groups(workers).items():
        if name.endswith(MIXED_COUNTS_SUFFIX) and not _counts_agree([at for _, at in members]):
            continue
        # where all have asked for the same, who has begun less is behind
        same = len(members) == size and len({at.enqueued for _, at in members}) == 1
        places = [_locate_worker(worker, at, at.started if same else 0) for worker, at in members]
        missing = max(0, size - len(places))
        if not size and len(members) < world_size:
            # nobody knows whether these are all: who moves elsewhere may be about to come
            others_move = moving > sum(_moved_recently(worker) for worker, _ in members)
            unknown = len(workers) < world_size or not any(at.completed for _, at in members)
            missing = int(unknown or others_move)
        groups.append(ProcessGroup(name, size, places, missing))
    waiting = {worker.rank for group in groups for worker in group.waiting}
    free = [worker for worker in workers if worker.rank not in waiting]  # these may not have used a group yet
    room = MAX_UNUSED_PLACES_PER_WORKER * len(workers)
    for index, group in enumerate(groups):
        most = min(group.missing, room) if world_size in (len(workers), group.size) else 0
        if most and len(free) - len(group.positions) <= most:
            here = {place.worker.rank for place in group.positions}
            absent = [worker for worker in free if worker.rank not in here]
            if len(absent) <= most:
                nothing = ProcessGroupProgress(name=group.name, size=group.size)
                places = [*group.positions, *(_locate_worker(worker, nothing, 0) for worker in absent)]
                groups[index] = ProcessGroup(group.name, group.size, places, group.missing - len(absent))
                room -= len(absent)
    return groups


def _find_waiting_groups(
    workers: Sequence[WorkerProgress],
) -> Mapping[tuple[str, int], list[tuple[WorkerProgress, ProcessGroupProgress]]]:
    """The process groups in which somebody waits, by name and size, with the workers that have used them."""
    members: dict[tuple[str, int], list[tuple[WorkerProgress, ProcessGroupProgress]]] = {
        (at.name, at.size): []
        for worker in workers
        if _is_standing_still(worker)
        for at in islice(
            (at for at in worker.collectives if at.completed < at.enqueued), MAX_WAITING_GROUPS_PER_WORKER
        )
    }
    for worker in workers if members else ():
        for at in worker.collectives:
            if (here := members.get((at.name, at.size))) is not None:
                here.append((worker, at))
    return members


def _make_step_group(workers: Sequence[WorkerProgress], world_size: int) -> list[ProcessGroup]:
    """The steps of scripts as collectives; nothing unless those of all are known and none has moved for long."""
    known = [worker for worker in workers if worker.state in _KNOWN_STATES or worker.step is not None]
    places = []
    for worker in known:
        if worker.step is not None and worker.idle_s >= MIN_STEP_STALL_S:
            at = ProcessGroupProgress(
                name="0", size=world_size, enqueued=worker.step, completed=worker.step - 1
            )
            places.append(
                WorkerPosition(worker, at, (worker.step, 0, worker.is_able_to_run), worker.is_able_to_run)
            )
    if len(known) < world_size or not places or len(places) < sum(not worker.has_ended for worker in known):
        return []
    return [ProcessGroup("0", world_size, places, unit="step")]


def _locate_worker(worker: WorkerProgress, at: ProcessGroupProgress, started: int) -> WorkerPosition:
    pending = at.completed < at.enqueued and _is_standing_still(worker)
    return WorkerPosition(worker, at, (at.enqueued, started, worker.is_able_to_run), pending)


def _counts_agree(members: Sequence[ProcessGroupProgress]) -> bool:
    """Whether their numbers may all be those of the same collectives."""
    return max(at.completed for at in members) <= min(at.enqueued for at in members) + MAX_COLLECTIVES_AHEAD


def _moved_recently(worker: WorkerProgress) -> bool:
    return worker.idle_s < RECENTLY_MOVED_S and not worker.has_ended


def _is_standing_still(worker: WorkerProgress) -> bool:
    return worker.idle_s >= RECENTLY_MOVED_S and worker.state == "runs"


# -- somebody is behind --------------------------------------------------------------------------------------


def _find_lagging_workers(
    groups: Sequence[ProcessGroup], waiting: Iterable[int], node_of: NodeOf
) -> Hang | None:
    """Those who are furthest behind in a group, and wait in none, keep all others waiting."""
    waiting = frozenset(waiting)
    found: dict[int, tuple[ProcessGroup, WorkerPosition]] = {}
    wait_s: dict[int, float] = {}
    for group in groups:
        above = min((worker.idle_s for worker in group.waiting), default=inf)
        lowest = [place for place in group.positions if place.level == group.positions[0].level]
        # that others are behind it may be wrong where one alone says so, and they agree on what is not complete
        alone = 1 < len(lowest) == len(group.positions) - 1 and all(place.pending for place in lowest)
        for place in lowest if above < inf and not alone else ():
            worker = place.worker
            if worker.rank not in waiting and worker.idle_s >= RECENTLY_MOVED_S:
                found.setdefault(worker.rank, (group, place))
                wait_s[worker.rank] = min(wait_s.get(worker.rank, worker.idle_s), above)
    if not found:
        return None
    for_s = max(wait_s.values())
    worst = [found[rank] for rank, waited_s in wait_s.items() if waited_s >= for_s - EQUAL_BLAME_TOLERANCE_S]
    worst.sort(key=lambda blame: (blame[1].worker.is_able_to_run, blame[1].worker.rank))
    culprits = [place.worker for _, place in worst]
    group, place, first = *worst[0], culprits[0]
    alike = all(other is group and one.level == place.level for other, one in worst)
    who, named = _name_culprits(culprits, node_of)
    which = "which" if alike else f"of which rank {first.rank}"
    state = _describe_culprits(group, place, culprits if alike else [first])
    return Hang(
        kind=StallKind.BEHIND if first.is_able_to_run else StallKind.NO_ANSWER,
        waiting=RankList.of(waiting),
        wait_for=f"{who}, {which} {state}",
        for_s=for_s,
        **named,
    )


def _describe_culprits(group: ProcessGroup, place: WorkerPosition, culprits: Sequence[WorkerProgress]) -> str:
    """What those do that are waited for: `is at collective 5 of 6, and sleeps`."""
    is_, has, s = ("are", "have", "") if len(culprits) > 1 else ("is", "has", "s")
    state, at = place.worker.state, group.describe_position(place.at.enqueued) if place.at.enqueued else ""
    if state in UNRESPONSIVE_STATES:
        what = "stopped by a signal" if state == "stopped" else "stuck in the kernel (state D)"
        return f"{is_} {what}{f', last seen at {at}' if at else ''}"
    if state == "ended":
        return f"{has} ended{f' after {at}' if at else ''}"
    shares = [worker.cpu for worker in culprits if worker.cpu is not None]
    cpu = ""
    if len(shares) == len(culprits):
        burns, sleeps = min(shares) > COMPUTING_CPU_SHARE, max(shares) < SLEEPING_CPU_SHARE
        cpu = f", and burn{s} CPU" if burns else f", and sleep{s}" if sleeps else ""
    if not place.at.enqueued:
        return f"{has} not started a collective{group.name_suffix('of')} yet{cpu}"
    return (
        f"{has} not begun {at}{cpu}" if place.at.enqueued == group.last_collective else f"{is_} at {at}{cpu}"
    )


def _name_culprits(culprits: Sequence[WorkerProgress], node_of: NodeOf) -> tuple[str, Mapping[str, Any]]:
    """`rank 3 (gpu2) and rank 5 (gpu3)`, of many the first few and how many more; and who is named in the hang."""
    by_node = defaultdict[str, list[int]](list)
    for worker in culprits:
        by_node[node_of(worker.rank)].append(worker.rank)
    nodes = tuple(by_node)[:MAX_NAMES_IN_HANG]
    more = len(culprits) - sum(len(by_node[node_id]) for node_id in nodes)
    who = [f"{RankList.of(by_node[node_id])} ({node_id})" for node_id in nodes]
    ranks = tuple(worker.rank for worker in culprits[:MAX_RANKS_IN_HANG])
    return join_words(who + ([f"{more} more"] if more else [])), {"ranks": ranks, "nodes": nodes}


# -- nobody is -----------------------------------------------------------------------------------------------


def _find_incomplete_collective(groups: Sequence[ProcessGroup]) -> Hang | None:
    """Members wait at the same collective, or for each other in several groups, or for some that cannot be told."""
    if not groups:
        return None
    workers = {worker.rank: worker for group in groups for worker in group.waiting}
    shown = [group.describe_position(group.last_collective) for group in groups[:MAX_NAMES_IN_HANG]]
    more = [f"{len(groups) - MAX_NAMES_IN_HANG} more"] if len(groups) > MAX_NAMES_IN_HANG else []
    do = "does" if len(groups) == 1 else "do"
    return Hang(
        kind=StallKind.NOTHING_COMPLETES,
        waiting=RankList.of(workers),
        wait_for=f"{join_words([*shown, *more])}, which {do} not complete although nobody is behind",
        for_s=min(worker.idle_s for worker in workers.values()),
    )


def _find_mismatched_collective(groups: Iterable[ProcessGroup], node_of: NodeOf) -> Hang | None:
    """Members of a group have asked for different operations; if most agree, the others are to blame."""
    for group in groups:
        top, alike = group.last_collective, defaultdict[str, list[WorkerProgress]](list)
        for place in group.positions:
            if place.pending and place.at.enqueued == top and (what := _comparable_op(place.at.op)):
                alike[what].append(place.worker)
        if len(alike) < 2:
            continue
        sides = sorted(alike.items(), key=lambda side: -len(side[1]))
        most, second = sides[0][1], sides[1][1]
        wrong = sorted((worker for _, side in sides[1:] for worker in side), key=attrgetter("rank"))
        is_clear = len(most) > len(second) + group.missing  # those may have asked for the same as the others
        who, named = _name_culprits(wrong, node_of) if is_clear else ("each other", {})
        ops = ", ".join(f"{_list_ranks(side)} asked for {op}" for op, side in sides[:MAX_NAMES_IN_HANG])
        return Hang(
            kind=StallKind.MISMATCH,
            waiting=_list_ranks(most if is_clear else [*most, *wrong]),
            wait_for=f"{who}: as {group.describe_position(top)}, {ops}",
            for_s=min(worker.idle_s for worker in [*most, *wrong]),
            **named,
        )
    return None


def _list_ranks(workers: Iterable[WorkerProgress]) -> RankList:
    return RankList.of(worker.rank for worker in workers)


@lru_cache(maxsize=1024)
def _comparable_op(op: str) -> str:
    """What members of a group must agree on; empty: nothing.

    Inputs of the same size may have different shapes: only how many elements each has is compared.
    """
    name, _, sizes = op.partition(" ")
    name = name.rpartition(":")[2]
    if any(word in name for word in _POINT_TO_POINT_OPS):
        return ""
    if not any(word in name for word in _EQUAL_SIZE_OPS) or not sizes.endswith("]]"):
        return name
    shapes = [re.findall(r"\d{1,18}", shape) for shape in re.findall(r"\[([\d,]*)\]", sizes)]
    return f"{name} [{','.join(f'[{prod(map(int, shape))}]' for shape in shapes)}]"


# -- what follows for the round ------------------------------------------------------------------------------


def record_stall(context: StepContext, command: RecordStall) -> None:
    """Record who is waited for in the running round; nothing happens if that round is over."""
    active, new = context.group.running_round, command.stall
    if active is None or active.number != command.round:
        return
    old = active.stall
    if old is not None and old.reported and (new is None or new.since > old.since + SAME_STALL_TOLERANCE_S):
        context.add_event(
            hangs.stall_reported(active.number, old.hang_with_duration(context.now), goes_on=True)
        )
        active = replace(active, hung_s=active.hung_s + context.now - old.since)
        old = None
    if new is not None and old is not None and new.since <= old.since + SAME_STALL_TOLERANCE_S:
        if not new.stack and new.hang.ranks[:1] == old.hang.ranks[:1]:  # it has stood there all the time
            new = replace(new, stack=old.stack)
        if new.since >= old.since - SAME_STALL_TOLERANCE_S:
            ranks, before = set(new.hang.ranks), set(old.hang.ranks)
            same = new.hang.kind == old.hang.kind and bool(ranks == before or ranks & before)
            new = replace(new, since=old.since, reported=old.reported and same)
    if new != active.stall:
        context.update_group(round=replace(active, stall=new))


def escalate_stall(context: StepContext) -> None:
    """Tell of a stall that has lasted, and end its round where it lasts for too long."""
    active = context.group.running_round
    if active is None or active.stall is None or is_stall_ignored(context.group, active):
        return
    stall, end_at = active.stall, stall_ends_round_at(context.group, active.stall)
    at = min(stall.since + STALL_REPORTED_AFTER_S, end_at or inf)
    if not stall.reported and at <= stall.known_until and context.is_due(at):
        context.update_group(round=replace(active, stall=replace(stall, reported=True)))
        context.add_event(hangs.stall_reported(active.number, stall.hang_with_duration(context.now)))
    if end_at is not None and end_at <= stall.known_until and context.is_due(end_at):
        hang = stall.hang_with_duration(context.now)
        failure = WorkerFailure(local_rank=-1, rank=-1, at=stall.since)
        node_id = hang.nodes[0] if hang.nodes else None
        if node_id is not None:
            rank, offset = hang.ranks[0], active.members_by_id[node_id].rank_offset
            failure = replace(failure, rank=rank, local_rank=rank - offset, message=stall.stack)
        cause = EndCause(kind=EndKind.FAILED, reason=ends.workers_hang(hang), node_id=node_id)
        end_round(context, cause, hang=failure, since=stall.since)
