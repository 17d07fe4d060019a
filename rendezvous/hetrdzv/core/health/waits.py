"""Who waits for whom in torch's process groups: the most advanced members of a group wait for those behind them.

A worker waits in a group if its last collective there is not complete and its numbers no longer change. The numbers
say nothing about point-to-point operations (`send`, `recv`): a wait in one of those is not seen. Those of NCCL may be
numbers of such operations instead, and then say nothing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import inf
from operator import attrgetter

from hetrdzv.protocol.rooms.progress import NO_ANSWER, Collectives, Worker

NOTED_S = 1.0
"""Whoever has moved within this time does not wait (seconds)."""

MOST_LANES = 4
"""In how many process groups of a worker, of those in which it waits, others are looked for."""

PLACES, PLACES_ANYWAY = 4, 1024
"""How many places are looked at for each worker, over all process groups, and how many anyway; groups in which most
wait come first."""

MOST_WIDE = 4
"""In how many groups as large as the world workers that have not used them yet are looked for."""

MOST_FREE = 64
"""Up to how many workers that wait nowhere may be the ones that have not used a group yet."""

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


def who_waits(workers: Sequence[Worker], world_size: int) -> Waits:
    """Who waits for whom among the workers of a round.

    Args:
        workers: those about whom something is known.
    """
    moving = sum(_moves(worker) for worker in workers)
    lanes, wide = [], MOST_WIDE
    for (name, size), members in _members(workers).items():
        if name.endswith(MIXED) and not _agree([at for _, at in members]):
            continue
        absent: Sequence[Worker] = ()
        if len(members) < size == world_size and wide:
            known, wide = {worker.rank for worker, _ in members}, wide - 1
            absent = [worker for worker in workers if worker.rank not in known]
        lane = _lane(name, size, members, absent)
        if not size and len(members) < world_size:
            # Nobody knows whether these are all: who moves elsewhere may be about to come.
            others_move = moving > sum(_moves(worker) for worker, _ in members)
            unknown = len(workers) < world_size or not any(at.completed for _, at in members)
            lane.missing = int(unknown or others_move)
        lane.arrange()
        lanes.append(lane)
    waits = Waits(lanes, {place.worker.rank for lane in lanes for place in lane.places if place.waits})
    waits.everybody = len(waits.ranks) == world_size
    if waits.ranks and len(workers) == world_size and any(lane.missing for lane in lanes):
        _find_missing(waits, [worker for worker in workers if worker.rank not in waits.ranks])
    for lane in lanes:
        for place in lane.places:
            waits.of.setdefault(place.worker.rank, []).append((lane, place))
    return waits


def _members(workers: Sequence[Worker]) -> dict[tuple[str, int], list[tuple[Worker, Collectives]]]:
    """The process groups in which somebody waits, by name and size, with the workers that have used them."""
    waiting = Counter(
        (at.name, at.size)
        for worker in workers
        if worker.idle_s >= NOTED_S and worker.state == "runs"
        for at in islice((at for at in worker.collectives if at.completed < at.enqueued), MOST_LANES)
    )
    members: dict[tuple[str, int], list[tuple[Worker, Collectives]]] = {
        group: [] for group in sorted(waiting, key=lambda group: (-waiting[group], group))
    }
    for worker in workers if members else ():
        for at in worker.collectives:
            if (here := members.get((at.name, at.size))) is not None:
                here.append((worker, at))
    left, chosen = PLACES_ANYWAY + PLACES * len(workers), set()
    for group, here in members.items():
        left -= len(here)
        if left < 0:
            break
        chosen.add(group)
    return {group: members[group] for group in waiting if group in chosen}


def _lane(
    name: str, size: int, members: Sequence[tuple[Worker, Collectives]], absent: Sequence[Worker]
) -> Lane:
    # where all have asked for the same, who has begun less is behind
    same = len(members) == size and len({at.enqueued for _, at in members}) == 1
    places = [
        Place(
            worker,
            at,
            (at.enqueued, at.started if same else 0, worker.state not in NO_ANSWER),
            at.completed < at.enqueued and worker.idle_s >= NOTED_S and worker.state == "runs",
        )
        for worker, at in members
    ]
    places += map(_absent, absent)
    return Lane(
        name, places, max(0, size - len(places)), excused=any(place.worker.long_s > 0 for place in places)
    )


def _agree(members: Sequence[Collectives]) -> bool:
    """Whether their numbers may all be those of the same collectives."""
    return max(at.completed for at in members) <= min(at.enqueued for at in members) + AHEAD


def _moves(worker: Worker) -> bool:
    return worker.idle_s < NOTED_S and not worker.ended


def _absent(worker: Worker) -> Place:
    return Place(worker, None, (-1, 0, worker.answers), False)


def _find_missing(waits: Waits, free: Sequence[Worker]) -> None:
    """Who has not asked for a group's first collective: those who wait nowhere, if there are not too many of them."""
    for lane in waits.lanes if len(free) <= MOST_FREE else ():
        if lane.missing and len(free) <= lane.missing + len(lane.places):
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
