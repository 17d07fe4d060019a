"""Which snapshots the nodes of a group have together, and what is missing of each."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from hetrdzv.core.memo import kept
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.protocol.rooms.snapshots import (
    Chosen,
    Held,
    Holdings,
    Incomplete,
    Lack,
    NobodyHasAll,
    NotReadable,
    OnDisk,
    PartsMissing,
    Stamp,
    ValuesDiffer,
)
from hetrdzv.protocol.states import NodePhase
from hetrdzv.protocol.texts.who import MOST_RANGES, Nodes, Ranks


@dataclass(frozen=True, slots=True)
class Gathered:
    """A snapshot.

    Attributes:
        holders: who has some of it.
        lack: why it is not complete; None: it is.
        on_disk: what is known of it where it is on disk, and not in the memory of nodes.
    """

    stamp: Stamp
    world_size: int
    sharded: bool
    holders: tuple[tuple[Node, Held], ...] = ()
    lack: Lack | None = None
    on_disk: OnDisk | None = None


@kept
def gathered(group: Group) -> Sequence[Gathered]:
    """All snapshots of a group, the newest first; of its running round, if one runs, each node may use its own."""
    active = group.active_round
    members = [member.node_id for member in active.members] if active is not None else list(group.nodes)
    origin = group.snapshots.origin if group.snapshots is not None else ""
    return gathered_for(group, origin, members, group.last_round)


def gathered_for(group: Group, origin: str, members: Sequence[str], last_round: int) -> Sequence[Gathered]:
    """All snapshots of a job that the nodes of a group have or see on disk, the newest first.

    What one node sees on disk counts: not all have looked lately.

    Args:
        origin: the name of the job.
        members: the nodes that are to use them: what nobody serves is of use to its own node alone.
        last_round: what claims to be of a later one is none.
    """
    alone = members[0] if len(members) == 1 else None
    found: dict[tuple[int, int, int, bool], _Found] = {}
    for node in group.nodes.values():
        for held in usable(group, node, origin, alone):
            if held.round > last_round:
                continue
            key = held.step, held.round, held.world_size, held.sharded
            found.setdefault(key, _Found()).add(node, held)
    refused = _refused(group, members)
    in_memory = [
        Gathered(stamp, key[2], key[3], tuple(one.holders), refused.get(stamp) or _lack(key, one))
        for key, one in found.items()
        for stamp in [Stamp(round=key[1], step=key[0])]
    ]
    on_disk = list(_on_disk(group, origin, members))
    wrote_at: dict[str | None, int] = {}
    for one in on_disk:
        if one.on_disk is not None:
            wrote_at[one.stamp.origin] = max(one.on_disk.written_at, wrote_at.get(one.stamp.origin, 0))

    def newness(one: Gathered) -> tuple[object, ...]:
        """After those of this job, those of the job that wrote last; of one that is in memory and on disk, memory."""
        own, *within = one.stamp.newness
        job = own, wrote_at.get(one.stamp.origin, 0) if not own else 0
        return *job, *within, one.on_disk is None, one.world_size, one.sharded

    return sorted([*in_memory, *on_disk], key=newness, reverse=True)


def _on_disk(group: Group, origin: str, members: Sequence[str]) -> Iterator[Gathered]:
    """The snapshots on disk."""
    known = [node.snapshots for node in group.nodes.values() if node.snapshots and _is_here(group, node)]
    found = {stamp_on_disk(one, origin): one for holdings in known for one in holdings.on_disk}
    if not found:
        return
    refused = _refused(group, members)
    for stamp, one in found.items():
        yield Gathered(stamp, one.world_size, one.sharded, lack=refused.get(stamp), on_disk=one)


def _refused(group: Group, members: Iterable[str]) -> Mapping[Stamp, Lack]:
    """What some members could load no copy of."""
    found: dict[Stamp, list[str]] = {}
    for node in map(group.nodes.get, members):
        for stamp in node.snapshots.refused if node is not None and node.snapshots is not None else ():
            found.setdefault(stamp, []).append(node.node_id)  # type: ignore[union-attr]
    return {stamp: NotReadable(nodes=Nodes.of(nodes)) for stamp, nodes in found.items()}


def has_all(held: Held) -> bool:
    """Whether a node has all of a snapshot."""
    return held.whole and len({part.rank for part in held.ranks}) >= held.world_size


def usable(group: Group, node: Node, origin: str, alone: str | None) -> Iterable[Held]:
    """What a node has of the snapshots of a job that others can use; `alone`: that only it will use them."""
    holdings = node.snapshots
    if holdings is None or not _is_of(holdings, origin) or not (_is_here(group, node) or serves(group, node)):
        return ()
    if not holdings.port and node.node_id != alone:
        return ()
    return holdings.held


def _is_of(holdings: Holdings, origin: str) -> bool:
    return bool(holdings.held) and bool(origin) and holdings.origin == origin


def _is_here(group: Group, node: Node) -> bool:
    return not node.gone and node.job == group.job and node.leaving is None and node.rejected is None


def serves(group: Group, node: Node) -> bool:
    """Whether a node that leaves, or has left, yet serves what it holds."""
    if group.snapshots is None or node.phase is not NodePhase.LEFT or node.job != group.job:
        return False
    return node.incarnation in group.snapshots.parting


def is_copied(one: Gathered) -> bool:
    """Whether a complete snapshot outlives any node: if nothing is sharded all can save again what they have alike."""
    if one.on_disk or not one.sharded:
        return True
    copies = Counter(part.rank for _, held in one.holders for part in held.ranks)
    return sum(held.whole for _, held in one.holders) > 1 and all(
        copies[rank] > 1 for rank in range(one.world_size)
    )


def newer_than(step: int, found: Iterable[Gathered]) -> Incomplete | None:
    """What there is of a job's steps after one, of that step of which least is missing.

    None: nothing, or all of one that is undone.
    """
    newer = [one for one in found if one.stamp.origin is None and one.stamp.step > step]
    lacks = [Incomplete(stamp=one.stamp, lack=one.lack) for one in newer if one.lack is not None]
    if len(lacks) < len(newer):
        return None
    return min(lacks, key=lambda one: _size(one.lack), default=None)


def _size(lack: Lack) -> float:
    """How many ranks have parts that are missing; infinite where all would be of use to nobody."""
    return len(lack.ranks) if isinstance(lack, PartsMissing) else math.inf


def stamp_of(held: Held | Chosen) -> Stamp:
    """Which snapshot in memory it is, or is of."""
    return Stamp(round=held.round, step=held.step)


def stamp_on_disk(one: OnDisk | Chosen, origin: str) -> Stamp:
    """Which snapshot on disk it is, for a job."""
    return Stamp(round=one.round, step=one.step, origin=one.origin if one.origin != origin else None)


def began_from(current: Round, origin: str) -> Stamp | None:
    """Which snapshot a round of a job begins from; None: from none."""
    chosen = current.snapshot
    if chosen is None:
        return None
    return stamp_on_disk(chosen, origin) if chosen.on_disk else stamp_of(chosen)


@dataclass(slots=True)
class _Found:
    """What is found of a snapshot."""

    holders: list[tuple[Node, Held]] = field(default_factory=list)
    whole: bool = False
    ranks: set[int] = field(default_factory=set)
    values: dict[frozenset[tuple[str, str]], list[str]] = field(default_factory=dict)

    def add(self, node: Node, held: Held) -> None:
        self.holders.append((node, held))
        self.whole = self.whole or held.whole
        if held.sharded:
            self.ranks.update(part.rank for part in held.ranks if part.rank < held.world_size)
        if held.values:
            self.values.setdefault(frozenset(held.values.items()), []).append(node.node_id)


def _lack(key: tuple[int, int, int, bool], found: _Found) -> Lack | None:
    step, number, world_size, sharded = key
    if len(found.values) > 1 and (differ := _differing(Stamp(round=number, step=step), found)) is not None:
        return differ
    if not found.whole:
        return NobodyHasAll()
    if sharded and len(found.ranks) < world_size:
        return PartsMissing(ranks=missing(found.ranks, world_size))
    return None


def _differing(stamp: Stamp, found: _Found) -> ValuesDiffer | None:
    """The first value by its name of which nodes have different digests."""
    digests: dict[str, Counter[str]] = {}
    for values, nodes in found.values.items():
        for name, digest in values:
            digests.setdefault(name, Counter())[digest] += len(nodes)
    differ = sorted(name for name, counted in digests.items() if len(counted) > 1)
    if not differ:
        return None
    usual = digests[differ[0]].most_common(1)[0][0]
    odd = [
        node_id
        for values, nodes in found.values.items()
        if dict(values).get(differ[0], usual) != usual
        for node_id in nodes
    ]
    return ValuesDiffer(stamp=stamp, name=differ[0], more=len(differ) - 1, nodes=Nodes.of(odd))


def missing(ranks: AbstractSet[int], world_size: int) -> Ranks:
    """The ranks of a world that are not among some; costs as much as there are of those."""
    gaps: list[tuple[int, int]] = []
    after = -1
    for rank in (*sorted(ranks), world_size):
        if rank > after + 1:
            gaps.append((after + 1, rank - 1))
        after = rank
    more = sum(last - first + 1 for first, last in gaps[MOST_RANGES:])
    return Ranks(ranges=tuple(gaps[:MOST_RANGES]), more=more)
