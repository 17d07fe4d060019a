"""Whether a round's workers hang, and who is to blame: the worker that is waited for and waits for nobody.

Waits in point-to-point operations are not seen (waits.py). A healthy job is never blamed as long as each of its workers
moves, or has announced a long pause.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import prod
from typing import Literal

from hetrdzv.core.health.waits import NOTED_S, Blame, Lane, Place, Waits, who_waits
from hetrdzv.protocol.rooms import stalls
from hetrdzv.protocol.rooms.progress import NO_ANSWER, Worker
from hetrdzv.protocol.rooms.stalls import (
    MOST_BLAMED,
    Asked,
    Behind,
    BlamedAll,
    Deadlock,
    FirstUse,
    Hang,
    How,
    Knot,
    Mismatch,
    Stuck,
)
from hetrdzv.protocol.texts.who import Ranks

NodeOf = Callable[[int], str]
"""The node of a rank."""

STEPS_S = 60.0
"""How long nobody must have moved where only steps are known, of which a single one may take long (seconds)."""

SAME_WAIT_S = 1.0
"""Workers that have kept others waiting as long as the worst one, but for this (seconds), are to blame as well."""

BURNS, SLEEPS = 0.1, 0.05
"""Whoever has taken more of a core than the first of these computes (it may have to share it), and whoever has taken
less than the second sleeps."""

MOST_RANKS = 8
"""How many of the ranks that are waited for are named."""

MOST_OPS = 1024
"""Of how many different operations, in one collective, it is worth finding out which of them are alike."""

_SEEN = frozenset({"runs", "ended", *NO_ANSWER})
"""The states of a worker of which something is known: of one that is `unknown` at most its step."""

MAY_COMPUTE = ("at", "not_begun", "none_yet")
"""Of workers that are behind in this way it is told whether they compute or sleep."""

_SIZED = ("all_reduce", "allreduce", "broadcast", "reduce_scatter")
"""Operations whose members must all give inputs of the same size."""

_PAIRED = ("send", "recv")
"""Operations that differ on both ends."""


def judge(workers: Sequence[Worker], world_size: int, node_of: NodeOf) -> Hang | None:
    """Who is waited for, by whom, and since when; None: nobody, as far as can be seen.

    Args:
        workers: of one round, at most one per rank; those that are missing or of state `unknown` are neither blamed nor
            said to wait, and nobody is said to wait for them.
        node_of: the node of a rank.
    """
    known = sorted((worker for worker in workers if worker.state in _SEEN), key=lambda worker: worker.rank)
    if not any(worker.collectives for worker in known):
        return _by_steps(_with_steps(workers), world_size, node_of)
    waits = who_waits(known, world_size)
    if not waits.ranks:
        return None
    return (
        _mismatch(waits, node_of)
        or _behind(waits, node_of)
        or _each_other(waits)
        or _nothing_completes(waits)
        or _first_use(waits, len(known) == world_size and not _any_moves(known))
    )


# -- somebody is behind --------------------------------------------------------------------------------------


def _behind(waits: Waits, node_of: NodeOf) -> Hang | None:
    blamed = waits.blamed()
    if not blamed:
        return None
    for_s = max(blame.wait_s for blame in blamed.values())
    worst = [blame for blame in blamed.values() if blame.wait_s >= for_s - SAME_WAIT_S]
    worst.sort(key=lambda blame: (blame.place.worker.answers, blame.place.worker.rank))
    waiting = waits.waiting_for(blame.place.worker.rank for blame in worst)
    return Hang(
        facts=_facts(worst, Ranks.of(waiting), node_of),
        ranks=_first(blame.place.worker for blame in worst),
        for_s=for_s,
    )


def _facts(worst: Sequence[Blame], waiting: Ranks, node_of: NodeOf) -> Behind:
    """What is known of those who are behind; where they differ, of the first."""
    lane, place = worst[0].lane, worst[0].place
    worker, several = place.worker, len(worst) > 1
    alike = all(blame.lane is lane and blame.place.level == place.level for blame in worst)
    how: How = "at"
    if not worker.answers:
        how = "stopped" if worker.state == "stopped" else "blocked"
    elif worker.ended:
        how = "ended"
    elif place.at is None:
        how = "none_yet"
    elif place.at.enqueued == lane.top:
        how = "not_begun"
    return Behind(
        waiting=waiting,
        blamed=_blamed([blame.place.worker for blame in worst], node_of),
        how=how,
        place=_where(lane, place) if place.at is not None else None,
        lane=lane.label,
        rank=worker.rank if several and not alike else None,
        cpu=_cpu([blame.place.worker for blame in worst] if alike else [worker])
        if how in MAY_COMPUTE
        else None,
    )


def _cpu(workers: Sequence[Worker]) -> Literal["burns", "sleeps"] | None:
    """Whether workers that are behind compute or sleep; None where nobody can tell, or they differ."""
    shares = [worker.cpu for worker in workers if worker.cpu is not None]
    if len(shares) < len(workers):
        return None
    if min(shares) > BURNS:
        return "burns"
    return "sleeps" if max(shares) < SLEEPS else None


def _where(lane: Lane, place: Place) -> stalls.Place:
    number = place.at.enqueued if place.at is not None else 0
    return stalls.Place(number=number, of=lane.top if number < lane.top else None, lane=lane.label)


# -- nobody is -----------------------------------------------------------------------------------------------


def _each_other(waits: Waits) -> Hang | None:
    """Everybody waits, and in no process group do all stand at the same collective: so they wait for each other."""
    if not waits.everybody or any(lane.stuck or lane.excused for lane in waits.lanes):
        return None
    workers = [place.worker for lane in waits.lanes for place in lane.waiting]
    known = [(lane, lane.waiting) for lane in waits.lanes if lane.waiting]
    facts = Deadlock(
        waiting=Ranks.of(waits.ranks),
        knots=tuple(
            Knot(
                ranks=Ranks.of(place.worker.rank for place in places),
                place=_where(lane, max(places, key=_enqueued)),
            )
            for lane, places in known[:MOST_BLAMED]
        ),
        more=max(0, len(known) - MOST_BLAMED),
    )
    for_s = min(worker.idle_s for worker in workers)
    return Hang(facts=facts, ranks=tuple(sorted(waits.ranks)[:MOST_RANKS]), for_s=for_s)


def _nothing_completes(waits: Waits) -> Hang | None:
    stuck = [lane for lane in waits.lanes if lane.stuck and not lane.excused]
    if not stuck:
        return None
    lane = max(stuck, key=lambda candidate: min(place.worker.idle_s for place in candidate.places))
    facts = Stuck(
        waiting=Ranks.of(place.worker.rank for place in lane.places), place=_where(lane, lane.places[0])
    )
    for_s = min(place.worker.idle_s for place in lane.places)
    return Hang(facts=facts, for_s=for_s)


def _any_moves(workers: Sequence[Worker]) -> bool:
    return any((worker.idle_s < NOTED_S and not worker.ended) or worker.long_s > 0 for worker in workers)


def _first_use(waits: Waits, nobody_moves: bool) -> Hang | None:
    """Members of a group wait for one that cannot be told, since it has not used the group yet: anybody may be it."""
    lanes = [lane for lane in waits.lanes if lane.missing and not lane.excused and lane.waiting]
    if not lanes or not nobody_moves:
        return None
    lane = max(lanes, key=lambda candidate: min(place.worker.idle_s for place in candidate.waiting))
    waiting = [place.worker for place in lane.waiting]
    facts = FirstUse(
        waiting=Ranks.of(worker.rank for worker in waiting), missing=lane.missing, lane=lane.label
    )
    return Hang(facts=facts, for_s=min(worker.idle_s for worker in waiting))


def _mismatch(waits: Waits, node_of: NodeOf) -> Hang | None:
    for lane in waits.lanes:
        if lane.excused:
            continue
        top = lane.top
        said: dict[str, list[Worker]] = {}
        for place in lane.places:
            if place.pending and place.at is not None and place.at.enqueued == top:
                said.setdefault(place.at.op, []).append(place.worker)
        if not 1 < len(said) <= MOST_OPS:  # almost always all of them say the same
            continue
        asked: dict[str, list[Worker]] = {}
        for op, workers in said.items():
            if alike := _alike(op):
                asked.setdefault(alike, []).extend(workers)
        if len(asked) > 1:
            return _unlike(lane, top, asked, node_of)
    return None


def _unlike(lane: Lane, number: int, asked: Mapping[str, list[Worker]], node_of: NodeOf) -> Hang:
    """Members of a group have asked for different operations; if most agree, the others are to blame."""
    sides = sorted(asked.items(), key=lambda item: -len(item[1]))
    (_, most), others = sides[0], sides[1:]
    for_s = min(worker.idle_s for side in asked.values() for worker in side)
    at = stalls.Place(number=number, lane=lane.label)
    asked_for = tuple(
        Asked(ranks=Ranks.of(worker.rank for worker in side), op=op) for op, side in sides[:MOST_BLAMED]
    )
    if len(most) <= len(others[0][1]) + lane.missing:  # those may have asked for the same as the others
        everybody = Ranks.of(worker.rank for side in asked.values() for worker in side)
        facts = Mismatch(waiting=everybody, place=at, sides=asked_for)
        return Hang(facts=facts, for_s=for_s)
    wrong = sorted((worker for _, side in others for worker in side), key=lambda worker: worker.rank)
    waiting = Ranks.of(worker.rank for worker in most)
    facts = Mismatch(waiting=waiting, place=at, sides=asked_for, wrong=_blamed(wrong, node_of))
    return Hang(facts=facts, ranks=_first(wrong), for_s=for_s)


def _alike(op: str) -> str:
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


# -- without collectives -------------------------------------------------------------------------------------


def _with_steps(workers: Sequence[Worker]) -> list[Worker]:
    """Those of whose state or step something is known, by rank."""
    return sorted(
        (worker for worker in workers if worker.state in _SEEN or worker.step is not None),
        key=lambda worker: worker.rank,
    )


def _by_steps(known: Sequence[Worker], world_size: int, node_of: NodeOf) -> Hang | None:
    working = [worker for worker in known if not worker.ended]
    steps = {worker.rank: worker.step for worker in working if worker.step is not None}
    if len(known) < world_size or len(steps) < len(working) or not steps:
        return None
    for_s = min(worker.idle_s for worker in working)
    if for_s < STEPS_S or any(worker.long_s > 0 for worker in working):
        return None
    last, first = max(steps.values()), min(steps.values())
    hung = [worker for worker in working if not worker.answers]
    behind = hung or [worker for worker in working if worker.step == first]
    if not hung and first == last:
        stuck = Stuck(waiting=Ranks.of(steps), place=stalls.Place(number=first, step=True))
        return Hang(facts=stuck, for_s=for_s)
    waiting = steps.keys() - {worker.rank for worker in behind}
    worker = behind[0]
    step = worker.step
    how: How = "at"
    if hung:
        how = "stopped" if worker.state == "stopped" else "blocked"
    place = None
    if step is not None:
        place = stalls.Place(number=step, of=last if step != last else None, step=True)
    facts = Behind(
        waiting=Ranks.of(waiting) if waiting else None,
        blamed=_blamed(behind, node_of),
        how=how,
        place=place,
        cpu=None if hung else _cpu(behind),
    )
    return Hang(facts=facts, ranks=_first(behind), for_s=for_s)


# -- all of them ---------------------------------------------------------------------------------------------


def _first(blamed: Iterable[Worker]) -> tuple[int, ...]:
    return tuple(worker.rank for worker in islice(blamed, MOST_RANKS))


def _blamed(workers: Sequence[Worker], node_of: NodeOf) -> BlamedAll:
    pids = {worker.rank: worker.pid for worker in workers if worker.pid}
    return BlamedAll.of(((node_of(worker.rank), worker.rank) for worker in workers), pids)


def _enqueued(place: Place) -> int:
    return place.at.enqueued if place.at is not None else 0
