"""Who waits for whom in torch's process groups: the most advanced members of a group wait for those behind them.

A worker waits in a group if its last collective there is not complete and its numbers no longer change. The numbers
say nothing about point-to-point operations (`send`, `recv`): a wait in one of those is not seen. Those of NCCL may be
numbers of such operations instead, and then say nothing.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import inf
from operator import attrgetter

from hetrdzv.core.budget import Budget
from hetrdzv.protocol.rooms.progress import NO_ANSWER, Collectives, Worker

NOTED_S = 1.0
"""Whoever has moved within this time does not wait (seconds)."""

MOST_LANES = 4
"""In how many process groups of a worker, of those in which it waits, others are looked for."""

PLACES = 4
"""How many places are looked at for each worker, over all process groups; those with most who wait come first."""

PLACES_ANYWAY = 1024
"""How many are looked at however few workers there are, and a quarter as many process groups; of more than that, one
for each two workers."""

MIXED = "/nccl"
"""Ends the name of a group whose numbers count collectives or what was sent and received, whichever was last."""

AHEAD = 8
"""How many collectives a member may have done that another has not asked for: the root of a broadcast does not wait."""

DEFAULT_GROUPS = frozenset({"0", "default_pg"})
"""The names of the process group that all ranks are in."""


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


@dataclass(slots=True)
class Lane:
    """A process group.

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
    def label(self) -> str:
        """Its name, but nothing for the default group."""
        return "" if self.name.partition("/")[0] in DEFAULT_GROUPS else self.name

    @property
    def top(self) -> int:
        """The number of the last collective that a member has asked for."""
        return max((place.at.enqueued for place in self.places if place.at is not None), default=0)

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


@dataclass(slots=True)
class Blame:
    """A worker that is waited for and waits for nobody.

    Attributes:
        wait_s: the least time that it and those who wait for it have not moved (seconds).
        lane, place: where it is behind.
    """

    wait_s: float
    lane: Lane
    place: Place


@dataclass(slots=True)
class Waits:
    """Who waits for whom.

    Attributes:
        lanes: the process groups in which a member's last collective is not complete.
        ranks: the ranks that wait anywhere.
        everybody: whether all workers of the round do.
        of: the lanes and places of each rank.
    """

    lanes: list[Lane]
    ranks: set[int] = field(default_factory=set)
    everybody: bool = False
    of: dict[int, list[tuple[Lane, Place]]] = field(default_factory=dict)

    def blamed(self) -> dict[int, Blame]:
        """Those who are waited for and wait for nobody themselves, by rank."""
        blames: dict[int, Blame] = {}
        for lane in self.lanes:
            if lane.excused or not any(place.waits for place in lane.places):
                continue
            above = inf  # the least idle of those who wait at a higher level
            for _, level in groupby(reversed(lane.places), key=attrgetter("level")):
                places = list(level)
                if above < inf and not _contradicted(lane, places):
                    for place in places:
                        self._blame(blames, lane, place, above)
                above = min([above, *(place.worker.idle_s for place in places if place.waits)])
        return blames

    def _blame(self, blames: dict[int, Blame], lane: Lane, place: Place, above: float) -> None:
        worker = place.worker
        if worker.rank in self.ranks or worker.long_s > 0 or worker.idle_s < NOTED_S:
            return
        known = blames.get(worker.rank)
        if known is None:
            blames[worker.rank] = Blame(min(above, worker.idle_s), lane, place)
        else:
            known.wait_s = min(known.wait_s, above)

    def waiting_for(self, ranks: Iterable[int]) -> set[int]:
        """Who waits for any of these, directly or through others."""
        waiting: set[int] = set()
        heads: dict[int, int] = {id(lane): len(lane.places) for lane in self.lanes}
        queue = list(ranks)
        while queue:
            for lane, place in self.of.get(queue.pop(), ()):
                places, head = lane.places, heads[id(lane)]
                while head and places[head - 1].level > place.level:
                    head -= 1
                    if places[head].waits and (rank := places[head].worker.rank) not in waiting:
                        waiting.add(rank)
                        queue.append(rank)
                heads[id(lane)] = head
        return waiting

    def knot(self) -> list[tuple[Lane, list[Place]]]:
        """Members that wait for each other in a circle, by process group; empty if there is none."""
        edges: dict[Hashable, list[Hashable]] = {}
        waits: list[tuple[Lane, Place, Hashable]] = []
        budget = Budget(PLACES_ANYWAY + PLACES * len(self.ranks))
        for number, lane in enumerate(self.lanes):
            below: Hashable = None
            for level, places in groupby(() if lane.excused else lane.places, key=attrgetter("level")):
                here = (number, level)
                edges[here] = [] if below is None else [below]
                for place in places:
                    rank = place.worker.rank
                    if rank in self.ranks:
                        edges[here].append(rank)
                    if place.waits and below is not None:
                        edges.setdefault(rank, []).append(below)
                        waits.append((lane, place, below))
                below = here
            elsewhere = lane.missing and self.everybody and not lane.excused  # there its other members wait
            if elsewhere and budget.allows(len(self.ranks)):
                outside: Hashable = (number, None)
                inside = {place.worker.rank for place in lane.places}
                edges[outside] = [*(self.ranks - inside)]
                for place in lane.waiting:
                    edges.setdefault(place.worker.rank, []).append(outside)
                    waits.append((lane, place, outside))
        tied = _tied(edges)
        circle = [
            (lane, place) for lane, place, below in waits if place.worker.rank in tied and below in tied
        ]
        return [
            (lane, [place for _, place in several])
            for lane, several in groupby(circle, key=lambda pair: pair[0])
        ]


def who_waits(workers: Sequence[Worker], world_size: int) -> Waits:
    """Who waits for whom among the workers of a round.

    Args:
        workers: those about whom something is known.
    """
    budget = Budget(PLACES_ANYWAY + PLACES * len(workers))
    moving = sum(_moves(worker) for worker in workers)
    lanes = []
    for (name, size), members in _members(workers, budget).items():
        if name.endswith(MIXED) and not _agree([at for _, at in members]):
            continue
        lane = _lane(name, size, members, workers, moving, world_size, budget)
        lane.arrange()
        lanes.append(lane)
    waits = Waits(lanes, {place.worker.rank for lane in lanes for place in lane.places if place.waits})
    waits.everybody = len(waits.ranks) == world_size
    if waits.ranks and len(workers) == world_size and any(lane.missing for lane in lanes):
        _find_missing(waits, [worker for worker in workers if worker.rank not in waits.ranks], budget)
    for lane in lanes:
        for place in lane.places:
            waits.of.setdefault(place.worker.rank, []).append((lane, place))
    return waits


def _members(
    workers: Sequence[Worker], budget: Budget
) -> dict[tuple[str, int], list[tuple[Worker, Collectives]]]:
    """The process groups in which somebody waits, by name and size, with the workers that have used them."""
    waiting = Counter(
        (at.name, at.size)
        for worker in workers
        if worker.idle_s >= NOTED_S and worker.state == "runs"
        for at in islice((at for at in worker.collectives if at.completed < at.enqueued), MOST_LANES)
    )
    by_waiting = sorted(waiting, key=lambda group: (-waiting[group], group))
    chosen = by_waiting[: max(PLACES_ANYWAY // 4, len(workers) // 2)]
    members: dict[tuple[str, int], list[tuple[Worker, Collectives]]] = {group: [] for group in chosen}
    for worker in workers if members else ():
        for at in worker.collectives:
            if (here := members.get((at.name, at.size))) is not None:
                here.append((worker, at))
    kept = {group for group in chosen if budget.allows(len(members[group]))}
    return {group: members[group] for group in waiting if group in kept}


def _lane(
    name: str,
    size: int,
    members: Sequence[tuple[Worker, Collectives]],
    workers: Sequence[Worker],
    moving: int,
    world_size: int,
    budget: Budget,
) -> Lane:
    here = len(members)
    # where all have asked for the same, who has begun less is behind
    same = here == size and len({at.enqueued for _, at in members}) == 1
    places = [
        Place(
            worker,
            at,
            (at.enqueued, at.started if same else 0, worker.state not in NO_ANSWER),
            at.completed < at.enqueued and worker.idle_s >= NOTED_S and worker.state == "runs",
        )
        for worker, at in members
    ]
    excused = any(worker.long_s > 0 for worker, _ in members)
    if here < size == world_size and budget.allows(len(workers)):
        known = {worker.rank for worker, _ in members}
        absent = [worker for worker in workers if worker.rank not in known]
        places += map(_absent, absent)
        excused = excused or any(worker.long_s > 0 for worker in absent)
    missing = max(0, size - len(places))
    if not size and here < world_size:
        # Nobody knows whether these are all: who moves elsewhere may be about to come.
        others_move = moving > sum(_moves(worker) for worker, _ in members)
        missing = int(len(workers) < world_size or others_move or not any(at.completed for _, at in members))
    return Lane(name, places, missing, excused)


def _agree(members: Sequence[Collectives]) -> bool:
    """Whether their numbers may all be those of the same collectives."""
    return max(at.completed for at in members) <= min(at.enqueued for at in members) + AHEAD


def _moves(worker: Worker) -> bool:
    return worker.idle_s < NOTED_S and not worker.ended


def _absent(worker: Worker) -> Place:
    return Place(worker, None, (-1, 0, worker.answers), False)


def _find_missing(waits: Waits, free: Sequence[Worker], budget: Budget) -> None:
    """Who has not asked for a group's first collective: those who wait nowhere, if there are not too many of them."""
    for lane in waits.lanes:
        few = len(free) <= lane.missing + len(lane.places)
        if lane.missing and few and budget.allows(len(free)):
            here = {place.worker.rank for place in lane.places}
            absent = [worker for worker in free if worker.rank not in here]
            if absent and len(absent) <= lane.missing:
                lane.places += map(_absent, absent)
                lane.missing -= len(absent)
                lane.excused = lane.excused or any(worker.long_s > 0 for worker in absent)
                lane.arrange()


def _contradicted(lane: Lane, places: Sequence[Place]) -> bool:
    """Whether only one member says that these are behind it, who agree that what they have asked for is not done."""
    alone = len(lane.places) > len(places) and lane.places[-2] is places[0]
    return alone and len(places) > 1 and all(place.pending for place in places)


def _tied(edges: Mapping[Hashable, Sequence[Hashable]]) -> set[Hashable]:
    """What is left of a graph without all that leads nowhere and all that nothing leads to: its circles."""
    backwards: dict[Hashable, list[Hashable]] = {}
    for here, there in _pairs(edges, edges.keys()):
        backwards.setdefault(there, []).append(here)
    leading = _without_ends(edges, backwards, set(edges))
    return _without_ends(backwards, edges, leading)


def _without_ends(
    forwards: Mapping[Hashable, Sequence[Hashable]],
    backwards: Mapping[Hashable, Sequence[Hashable]],
    among: set[Hashable],
) -> set[Hashable]:
    ways = Counter(here for here, _ in _pairs(forwards, among))
    left = set(among)
    ends = [end for end in among if not ways[end]]
    while ends:
        end = ends.pop()
        left.discard(end)
        for before in backwards.get(end, ()):
            if before in left:
                ways[before] -= 1
                if not ways[before]:
                    ends.append(before)
    return left


def _pairs(
    edges: Mapping[Hashable, Iterable[Hashable]], among: Iterable[Hashable]
) -> Iterator[tuple[Hashable, Hashable]]:
    inside = set(among)
    return ((here, there) for here in inside for there in edges.get(here, ()) if there in inside)
