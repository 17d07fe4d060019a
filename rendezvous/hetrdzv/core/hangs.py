"""Whether a round's workers hang, who is to blame, and what that does to the round.

In each of torch's process groups the most advanced members wait for those behind them: a worker waits if its last
collective there is not complete and its numbers no longer change. To blame is who is waited for and waits for nobody.
The numbers say nothing about point-to-point operations (`send`, `recv`). A healthy job is never blamed as long as each
of its workers moves, or has announced a long pause; a worker of which nothing is known is neither blamed nor waits.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from math import inf, prod
from operator import attrgetter

from hetrdzv.core.commands import NoteStall
from hetrdzv.core.model import Cause, Round, Stall
from hetrdzv.core.rounds.timers import hangs_at, stall_rests, told_at
from hetrdzv.core.rounds.transitions import Work, end_round
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.hangs import MOST_RANKS, MOST_SHOWN, Culprit, Hang, culprits_of, culprits_text
from hetrdzv.protocol.progress import NO_ANSWER, Collectives, Worker
from hetrdzv.protocol.reasons import ends, hangs
from hetrdzv.protocol.states import EndKind, StallKind
from hetrdzv.protocol.texts.who import Ranks

NOTED_S = 1.0
"""Whoever has moved within this time does not wait (seconds)."""

STEPS_S = 60.0
"""How long nobody must have moved where only steps are known, of which a single one may take long (seconds)."""

SAME_WAIT_S = 1.0
"""Workers that have kept others waiting as long as the worst one, but for this (seconds), are to blame as well."""

SAME_S = 2.0
"""Two looks at one stall may differ by this in when it began (seconds)."""

BURNS, SLEEPS = 0.1, 0.05
"""Whoever has taken more of a core than the first of these computes (it may have to share it), and whoever has taken
less than the second sleeps."""

MOST_GROUPS = 4
"""In how many process groups of a worker, of those in which it waits, others are looked for."""

MOST_WIDE = 4
"""In how many groups as large as the world workers that have not used them yet are looked for."""

MOST_FREE = 64
"""Up to how many workers that wait nowhere may be the ones that have not used a group yet."""

MOST_OPS = 1024
"""Of how many different operations, in one collective, it is worth finding out which of them are alike."""

MIXED = "/nccl"
"""Ends the name of a group whose numbers count collectives or what was sent and received, whichever was last."""

AHEAD = 8
"""How many collectives a member may have done that another has not asked for: the root of a broadcast does not wait."""

DEFAULT_GROUPS = frozenset({"0", "default_pg"})
"""The names of the process group that all ranks are in."""

_SEEN = frozenset({"runs", "ended", *NO_ANSWER})
"""The states of a worker of which something is known: of one that is `unknown` at most its step."""

_SIZED = ("all_reduce", "allreduce", "broadcast", "reduce_scatter")
"""Operations whose members must all give inputs of the same size."""

_PAIRED = ("send", "recv")
"""Operations that differ on both ends."""

NodeOf = Callable[[int], str]
"""The node of a rank."""


@dataclass(slots=True)
class Place:
    """Where a worker stands in a process group.

    Attributes:
        at: its collectives there; None: none yet.
        level: what members are compared by: a wait is for those of a lower level.
        pending: whether its last collective there is not complete, and the worker does not move.
        waits: whether it waits, for members behind it or because nothing completes.
    """

    worker: Worker
    at: Collectives | None
    level: tuple[int, int, bool]
    pending: bool
    waits: bool = False

    @property
    def number(self) -> int:
        """Of the last collective that it has asked for; 0: none."""
        return self.at.enqueued if self.at is not None else 0


@dataclass(slots=True)
class ProcessGroup:
    """A process group in which somebody waits.

    Attributes:
        places: of its known members, the furthest behind first.
        missing: how many members are not known; at least one where the group's size is not, as long as it may be new to
            some members.
        excused: whether a member has announced that nothing need move.
        stuck: whether all members stand at the same collective, and it completes for none of them.
    """

    name: str
    places: list[Place]
    missing: int
    excused: bool
    stuck: bool = False

    @property
    def top(self) -> int:
        """The number of the last collective that a member has asked for."""
        return max((place.number for place in self.places), default=0)

    @property
    def waiting(self) -> list[Place]:
        """The members that wait."""
        return [place for place in self.places if place.waits]

    def arrange(self) -> None:
        """Put the members in order, and see which of them wait."""
        places = self.places
        places.sort(key=attrgetter("level"))
        lowest = places[0].level
        self.stuck = (
            lowest == places[-1].level and not self.missing and all(place.pending for place in places)
        )
        for place in places:
            place.waits = place.pending and (self.stuck or place.level > lowest or self.missing > 0)

    def named(self, preposition: str) -> str:
        """` of process group tp`; empty for the default group."""
        default = self.name.partition("/")[0] in DEFAULT_GROUPS
        return "" if default else f" {preposition} process group {self.name}"

    def collective(self, number: int) -> str:
        """`collective 5`, `collective 5 of 6 in process group tp`."""
        if number == self.top:
            return f"collective {number:,}{self.named('of')}"
        return f"collective {number:,} of {self.top:,}{self.named('in')}"


@dataclass(slots=True)
class _Blame:
    """A worker that is waited for and waits for nobody: for how long (seconds), and where it is behind."""

    wait_s: float
    group: ProcessGroup
    place: Place


@dataclass(slots=True)
class _Waits:
    """Who waits for whom.

    Attributes:
        groups: the process groups in which a member's last collective is not complete.
        ranks: the ranks that wait anywhere.
        of: the groups and places of each rank.
    """

    groups: list[ProcessGroup]
    ranks: set[int]
    of: dict[int, list[tuple[ProcessGroup, Place]]] = field(default_factory=dict)


def judge(workers: Sequence[Worker], world_size: int, node_of: NodeOf) -> Hang | None:
    """Who is waited for, by whom, and since when; None: nobody, as far as can be seen.

    Args:
        workers: of one round, at most one per rank.
    """
    known = sorted((worker for worker in workers if worker.state in _SEEN), key=attrgetter("rank"))
    if not any(worker.collectives for worker in known):
        return _by_steps(workers, world_size, node_of)
    waits = _who_waits(known, world_size)
    if not waits.ranks:
        return None
    everybody = len(waits.ranks) == world_size
    nobody_moves = len(known) == world_size and not any(
        _moves(worker) or worker.long_s > 0 for worker in known
    )
    return (
        _mismatch(waits, node_of)
        or _behind(waits, node_of)
        or (_deadlock(waits) if everybody else None)
        or _nothing_completes(waits)
        or (_first_use(waits) if nobody_moves else None)
    )


# -- who waits for whom --------------------------------------------------------------------------------------


def _who_waits(workers: Sequence[Worker], world_size: int) -> _Waits:
    moving = sum(map(_moves, workers))
    groups, wide = [], MOST_WIDE
    for (name, size), members in _members(workers).items():
        if name.endswith(MIXED) and not _agree([at for _, at in members]):
            continue
        absent: Sequence[Worker] = ()
        if len(members) < size == world_size and wide:
            here, wide = {worker.rank for worker, _ in members}, wide - 1
            absent = [worker for worker in workers if worker.rank not in here]
        group = _group(name, size, members, absent)
        if not size and len(members) < world_size:
            # nobody knows whether these are all: who moves elsewhere may be about to come
            others_move = moving > sum(_moves(worker) for worker, _ in members)
            unknown = len(workers) < world_size or not any(at.completed for _, at in members)
            group.missing = int(unknown or others_move)
        group.arrange()
        groups.append(group)
    waits = _Waits(groups, {place.worker.rank for group in groups for place in group.waiting})
    free = [worker for worker in workers if worker.rank not in waits.ranks]
    if waits.ranks and len(workers) == world_size and len(free) <= MOST_FREE:
        for group in groups:
            _find_missing(group, free)
    for group in groups:
        for place in group.places:
            waits.of.setdefault(place.worker.rank, []).append((group, place))
    return waits


def _members(workers: Sequence[Worker]) -> dict[tuple[str, int], list[tuple[Worker, Collectives]]]:
    """The process groups in which somebody waits, by name and size, with the workers that have used them."""
    waiting = Counter(
        (at.name, at.size)
        for worker in workers
        if worker.idle_s >= NOTED_S and worker.state == "runs"
        for at in islice((at for at in worker.collectives if at.completed < at.enqueued), MOST_GROUPS)
    )
    members: dict[tuple[str, int], list[tuple[Worker, Collectives]]] = {group: [] for group in waiting}
    for worker in workers if members else ():
        for at in worker.collectives:
            if (here := members.get((at.name, at.size))) is not None:
                here.append((worker, at))
    return members


def _group(
    name: str, size: int, members: Sequence[tuple[Worker, Collectives]], absent: Sequence[Worker]
) -> ProcessGroup:
    # where all have asked for the same, who has begun less is behind
    same = len(members) == size and len({at.enqueued for _, at in members}) == 1
    places = [
        Place(
            worker,
            at,
            (at.enqueued, at.started if same else 0, worker.answers),
            at.completed < at.enqueued and worker.idle_s >= NOTED_S and worker.state == "runs",
        )
        for worker, at in members
    ]
    places += map(_absent, absent)
    excused = any(place.worker.long_s > 0 for place in places)
    return ProcessGroup(name, places, max(0, size - len(places)), excused)


def _absent(worker: Worker) -> Place:
    return Place(worker, None, (-1, 0, worker.answers), False)


def _find_missing(group: ProcessGroup, free: Sequence[Worker]) -> None:
    """Who has not asked for a group's first collective: those who wait nowhere, if there are not too many of them."""
    if group.missing and len(free) <= group.missing + len(group.places):
        here = {place.worker.rank for place in group.places}
        absent = [worker for worker in free if worker.rank not in here]
        if absent and len(absent) <= group.missing:
            group.places += map(_absent, absent)
            group.missing -= len(absent)
            group.excused = group.excused or any(worker.long_s > 0 for worker in absent)
            group.arrange()


def _agree(members: Sequence[Collectives]) -> bool:
    """Whether their numbers may all be those of the same collectives."""
    return max(at.completed for at in members) <= min(at.enqueued for at in members) + AHEAD


def _moves(worker: Worker) -> bool:
    return worker.idle_s < NOTED_S and not worker.ended


# -- somebody is behind --------------------------------------------------------------------------------------


def _behind(waits: _Waits, node_of: NodeOf) -> Hang | None:
    blames = _blames(waits)
    if not blames:
        return None
    for_s = max(blame.wait_s for blame in blames)
    worst = [blame for blame in blames if blame.wait_s >= for_s - SAME_WAIT_S]
    worst.sort(key=lambda blame: (blame.place.worker.answers, blame.place.worker.rank))
    culprits = [blame.place.worker for blame in worst]
    group, place, first = worst[0].group, worst[0].place, culprits[0]
    alike = all(blame.group is group and blame.place.level == place.level for blame in worst)
    where = group.collective(place.number) if place.at is not None else ""
    if place.at is None and not first.ended:
        state = f"asked for no collective{group.named('of')} yet"
    elif place.number == group.top:
        state = f"not begun {where}"
    else:
        state = ""
    waiting = _waiting_for(waits, [worker.rank for worker in culprits])
    return _blaming(culprits, node_of, waiting, for_s, where=where, has=state, alike=alike)


def _blames(waits: _Waits) -> list[_Blame]:
    """Those who are waited for and wait for nobody themselves."""
    blames: dict[int, _Blame] = {}
    for group in waits.groups:
        if group.excused or not group.waiting:
            continue
        above = inf  # the least idle of those who wait at a higher level
        for _, level in groupby(reversed(group.places), key=attrgetter("level")):
            places = list(level)
            if above < inf and not _contradicted(group, places):
                for place in places:
                    worker = place.worker
                    if worker.rank in waits.ranks or worker.long_s > 0 or worker.idle_s < NOTED_S:
                        continue
                    blame = blames.setdefault(worker.rank, _Blame(worker.idle_s, group, place))
                    blame.wait_s = min(blame.wait_s, above)
            above = min([above, *(place.worker.idle_s for place in places if place.waits)])
    return list(blames.values())


def _contradicted(group: ProcessGroup, places: Sequence[Place]) -> bool:
    """Whether only one member says that these are behind it, who agree that what they have asked for is not done."""
    alone = len(group.places) > len(places) and group.places[-2] is places[0]
    return alone and len(places) > 1 and all(place.pending for place in places)


def _waiting_for(waits: _Waits, ranks: Sequence[int]) -> set[int]:
    """Who waits for any of these, directly or through others."""
    waiting: set[int] = set()
    heads = {id(group): len(group.places) for group in waits.groups}
    queue = list(ranks)
    while queue:
        for group, place in waits.of.get(queue.pop(), ()):
            head = heads[id(group)]
            while head and group.places[head - 1].level > place.level:
                head -= 1
                if group.places[head].waits and (rank := group.places[head].worker.rank) not in waiting:
                    waiting.add(rank)
                    queue.append(rank)
            heads[id(group)] = head
    return waiting


def _blaming(
    culprits: Sequence[Worker],
    node_of: NodeOf,
    waiting: Iterable[int],
    for_s: float,
    *,
    where: str,
    has: str = "",
    alike: bool = True,
) -> Hang:
    """Some wait for others.

    Args:
        where: how far the first of those is; empty: unknown.
        has: what it has not done, if that says more.
        alike: whether the others are there, too.
    """
    first, plural = culprits[0], alike and len(culprits) > 1
    is_, has_, s = ("are", "have", "") if plural else ("is", "has", "s")
    cpu = _cpu(culprits if alike else [first], s)
    match first.state:
        case "stopped" | "blocked":
            what = "stopped by a signal" if first.state == "stopped" else "stuck in the kernel (state D)"
            state = f"{is_} {what}{f', last seen at {where}' if where else ''}"
        case "ended":
            state = f"{has_} ended{f' after {where}' if where else ''}"
        case _:
            state = f"{has_} {has}{cpu}" if has else f"{is_} at {where}{cpu}"
    which = "which" if alike or len(culprits) == 1 else f"of which rank {first.rank}"
    by_node = _by_node(culprits, node_of)
    return Hang(
        kind=StallKind.BEHIND if first.answers else StallKind.NO_ANSWER,
        waiting=Ranks.of(waiting),
        wait_for=f"{culprits_text(by_node)}, {which} {state}",
        ranks=_first(culprits),
        culprits=by_node[:MOST_SHOWN],
        stopped=first.state == "stopped",
        for_s=for_s,
    )


def _cpu(workers: Sequence[Worker], s: str) -> str:
    """Whether workers that are behind compute or sleep; empty where nobody can tell, or they differ."""
    shares = [worker.cpu for worker in workers if worker.cpu is not None]
    if len(shares) == len(workers) and min(shares) > BURNS:
        return f", and burn{s} CPU"
    return f", and sleep{s}" if len(shares) == len(workers) and max(shares) < SLEEPS else ""


def _first(workers: Iterable[Worker]) -> tuple[int, ...]:
    return tuple(worker.rank for worker in islice(workers, MOST_RANKS))


def _by_node(workers: Iterable[Worker], node_of: NodeOf) -> tuple[Culprit, ...]:
    return culprits_of((node_of(worker.rank), worker.rank, worker.pid) for worker in workers)


# -- nobody is -----------------------------------------------------------------------------------------------


def _ranks(places: Iterable[Place]) -> Ranks:
    return Ranks.of(place.worker.rank for place in places)


def _idle_s(places: Iterable[Place]) -> float:
    return min(place.worker.idle_s for place in places)


def _deadlock(waits: _Waits) -> Hang | None:
    """Everybody waits, and in no process group do all stand at the same collective: so they wait for each other."""
    if any(group.stuck or group.excused for group in waits.groups):
        return None
    waiting = [(group, places) for group in waits.groups if (places := group.waiting)]
    parts = [
        f"{_ranks(places)} at {group.collective(max(place.number for place in places))}"
        for group, places in waiting[:MOST_SHOWN]
    ]
    if (more := len(waiting) - MOST_SHOWN) > 0:
        parts.append(f"others in {more} more process group{'' if more == 1 else 's'}")
    return Hang(
        kind=StallKind.DEADLOCK,
        waiting=Ranks.of(waits.ranks),
        wait_for=f"each other: {', '.join(parts)}",
        ranks=tuple(sorted(waits.ranks)[:MOST_RANKS]),
        for_s=min(_idle_s(places) for _, places in waiting),
    )


def _nothing_completes(waits: _Waits) -> Hang | None:
    stuck = [group for group in waits.groups if group.stuck and not group.excused]
    if not stuck:
        return None
    group = max(stuck, key=lambda candidate: _idle_s(candidate.places))
    return Hang(
        kind=StallKind.NOTHING_COMPLETES,
        waiting=_ranks(group.places),
        wait_for=f"{group.collective(group.top)}, which does not complete although nobody is behind",
        for_s=_idle_s(group.places),
    )


def _first_use(waits: _Waits) -> Hang | None:
    """Members of a group wait for one that cannot be told, since it has not used the group yet: anybody may be it."""
    groups = [group for group in waits.groups if group.missing and not group.excused and group.waiting]
    if not groups:
        return None
    group = max(groups, key=lambda candidate: _idle_s(candidate.waiting))
    others, has = ("another member", "has") if group.missing == 1 else ("other members", "have")
    return Hang(
        kind=StallKind.BEHIND,
        waiting=_ranks(group.waiting),
        wait_for=f"{others}{group.named('of')}, which {has} asked for none of its collectives yet",
        for_s=_idle_s(group.waiting),
    )


def _mismatch(waits: _Waits, node_of: NodeOf) -> Hang | None:
    """Members of a group have asked for different operations; if most agree, the others are to blame."""
    for group in waits.groups:
        if group.excused:
            continue
        top, by_op = group.top, dict[str, list[Worker]]()
        for place in group.places:
            if place.pending and place.at is not None and place.number == top:
                by_op.setdefault(place.at.op, []).append(place.worker)
        if not 1 < len(by_op) <= MOST_OPS:  # almost always all of them say the same
            continue
        asked: dict[str, list[Worker]] = {}
        for op, workers in by_op.items():
            if alike := _comparable(op):
                asked.setdefault(alike, []).extend(workers)
        if len(asked) > 1:
            return _unlike(group, asked, node_of)
    return None


def _unlike(group: ProcessGroup, asked: Mapping[str, list[Worker]], node_of: NodeOf) -> Hang:
    sides = sorted(asked.items(), key=lambda item: -len(item[1]))
    (op, most), others = sides[0], sides[1:]
    by_rank = {op: Ranks.of(worker.rank for worker in side) for op, side in sides}
    wrong = sorted((worker for _, side in others for worker in side), key=attrgetter("rank"))
    for_s = min(worker.idle_s for worker in [*most, *wrong])
    as_what = f"as {group.collective(group.top)}, {by_rank[op]} asked for {op}"
    if len(most) <= len(others[0][1]) + group.missing:  # those may have asked for the same as the others
        rest = "".join(f", {by_rank[other]} for {other}" for other, _ in others[: MOST_SHOWN - 1])
        waiting = Ranks.of(worker.rank for worker in [*most, *wrong])
        wait_for = f"each other: {as_what}{rest}"
        return Hang(kind=StallKind.MISMATCH, waiting=waiting, wait_for=wait_for, for_s=for_s)
    by_node = _by_node(wrong, node_of)
    return Hang(
        kind=StallKind.MISMATCH,
        waiting=by_rank[op],
        wait_for=f"{Ranks.of(worker.rank for worker in wrong)}: {as_what}, {culprits_text(by_node)} for {others[0][0]}",
        ranks=_first(wrong),
        culprits=by_node[:MOST_SHOWN],
        for_s=for_s,
    )


def _comparable(op: str) -> str:
    """What members of a group must agree on; empty: nothing."""
    name, _, sizes = op.partition(" ")
    name = name.rpartition(":")[2]
    if any(word in name for word in _PAIRED):
        return ""
    return f"{name} {_elements(sizes)}".strip() if any(word in name for word in _SIZED) else name


def _elements(sizes: str) -> str:
    """How many elements each input has, since members may give them different shapes; empty: it does not say."""
    if not sizes.endswith("]]"):
        return ""
    shapes = [re.findall(r"\d{1,18}", shape) for shape in re.findall(r"\[([\d,]*)\]", sizes)]
    return f"[{','.join(f'[{prod(map(int, shape))}]' for shape in shapes)}]"


def _by_steps(workers: Sequence[Worker], world_size: int, node_of: NodeOf) -> Hang | None:
    """As `judge`, where nothing is known but the steps that scripts say."""
    known = [worker for worker in workers if worker.state in _SEEN or worker.step is not None]
    working = sorted((worker for worker in known if not worker.ended), key=attrgetter("rank"))
    steps = [worker.step for worker in working if worker.step is not None]
    if len(known) < world_size or len(steps) < len(working) or not steps:
        return None
    for_s, first, last = min(worker.idle_s for worker in working), min(steps), max(steps)
    if for_s < STEPS_S or any(worker.long_s > 0 for worker in working):
        return None
    no_answer = [worker for worker in working if not worker.answers]
    if not no_answer and first == last:
        waiting = Ranks.of(worker.rank for worker in working)
        wait_for = f"the end of step {first:,}, and none is behind"
        return Hang(kind=StallKind.NOTHING_COMPLETES, waiting=waiting, wait_for=wait_for, for_s=for_s)
    culprits = no_answer or [worker for worker in working if worker.step == first]
    step, ranks = culprits[0].step, {worker.rank for worker in culprits}
    where = f"step {step:,}" if step == last else f"step {step:,} of {last:,}"
    waits = [worker.rank for worker in working if worker.rank not in ranks]
    return _blaming(culprits, node_of, waits, for_s, where=where)


# -- what follows for the round ------------------------------------------------------------------------------


def note_stall(work: Work, command: NoteStall) -> None:
    """Record who is waited for in the running round; nothing happens if that round is over."""
    active, new = work.group.active_round, command.stall
    if active is None or active.number != command.round or work.group.state.terminal:
        return
    old = active.stall
    if old is not None and old.told and (new is None or new.since > old.since + SAME_S):
        work.say(hangs.goes_on(active.number, old.at(work.now)))
        old = None
    if new is not None and old is not None and new.since <= old.since + SAME_S:
        if not new.stack and new.ranks[:1] == old.ranks[:1]:  # it has stood there all the time
            new = replace(new, stack=old.stack)
        if new.since >= old.since - SAME_S:
            same = new.kind == old.kind and (
                new.ranks == old.ranks or not set(new.ranks).isdisjoint(old.ranks)
            )
            new = replace(new, since=old.since, told=old.told and same)
    if new != active.stall:
        work.change(round=replace(active, stall=new))


def settle_stall(work: Work) -> None:
    """Tell of a stall that has lasted, and end its round where it lasts for too long."""
    active = work.group.active_round
    if active is None or active.stall is None or work.group.state.terminal or stall_rests(work.group):
        return
    stall, end_at = active.stall, hangs_at(work.group, active.stall)
    if not stall.told and stall.is_known(at := told_at(work.group, stall)) and work.now >= at:
        work.change(round=replace(active, stall=replace(stall, told=True)))
        work.say(hangs.stalled(active.number, stall.at(work.now)))
    if end_at is not None and stall.is_known(end_at) and work.now >= end_at:
        failure = _failure(active, stall)
        node_id = _node_id(active, stall) if failure.rank >= 0 else None
        why = ends.hangs(stall.at(work.now), node_id, failure.rank)
        cause = Cause(kind=EndKind.FAILED, reason=why, node_id=node_id)
        end_round(work, cause, hang=failure, since=stall.since)


def hang_of(active: Round | None, now: float) -> Hang | None:
    """The hang of a round of which people have been told, so far; None: there is none."""
    stall = active.told_stall if active is not None else None
    return stall.at(now) if stall is not None else None


def _failure(active: Round, stall: Stall) -> Failure:
    """The hang as a failure of the first worker that is waited for, or of nobody."""
    member = active.holder(stall.ranks)
    if member is None or stall.kind is StallKind.DEADLOCK:
        return Failure(local_rank=-1, rank=-1, at=stall.since)
    rank = stall.ranks[0]
    local_rank = rank - member.rank_offset
    return Failure(local_rank=local_rank, rank=rank, message=stall.stack, at=stall.since)


def _node_id(active: Round, stall: Stall) -> str | None:
    """The node of the first worker that is waited for; None: nobody is."""
    member = active.holder(stall.ranks)
    return member.node_id if member is not None else None
