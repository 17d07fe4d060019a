"""What is kept of the snapshot that a round begins from, and what each member is told of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hetrdzv.core.memo import kept
from hetrdzv.core.model import Node
from hetrdzv.core.snapshots.complete import Gathered
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.rooms.snapshots import Chosen, Held, Incomplete, RankPart, Source

MOST_SOURCES = 1024
"""How many nodes are kept that have a snapshot, unless it is sharded: then all are needed."""

MOST_WHOLE = 8
"""How many sources of what all ranks have alike a member is told."""


def chosen(
    found: Gathered, members: Iterable[str], lost: int | None, newer: Incomplete | None = None
) -> Chosen:
    """A snapshot as a round keeps it: first who has all that its ranks have alike, and of those its members.

    Args:
        lost: how many steps are lost with it; None: nobody knows.
        newer: what there is of these; None: nothing.
    """
    inside = frozenset(members)
    holders = sorted(found.holders, key=lambda holder: (not holder[1].whole, holder[0].node_id not in inside))
    most = None if found.sharded else MOST_SOURCES
    return Chosen(
        round=found.stamp.round,
        step=found.stamp.step,
        world_size=found.world_size,
        sharded=found.sharded,
        lost=lost,
        newer=newer,
        sources=tuple(_source(node, held) for node, held in holders[:most]),
        on_disk=found.on_disk is not None,
        origin=found.on_disk.origin if found.on_disk is not None else "",
    )


def _source(node: Node, held: Held) -> Source:
    holdings = node.snapshots
    assert holdings is not None
    return Source(
        node_id=node.node_id,
        address=node.address,
        port=holdings.port,
        key=holdings.key,
        whole=held.whole,
        ranks=held.ranks,
    )


def told(snapshot: Chosen, member: Member) -> Chosen:
    """What a member is told: its own copy first, then those that it needs; see `Chosen`."""
    if snapshot.on_disk:
        return snapshot
    index = _index(snapshot)
    own = index.by_node.get(member.node_id)
    if snapshot.sharded:
        others = (source for source in snapshot.sources if source is not own)
        return replace(snapshot, sources=(*((own,) if own is not None else ()), *others))
    new = member.ranks
    sources = {source.node_id: source for source in ((own,) if own is not None else ())}
    for source in _from(index.whole, member.group_rank):
        if sum(one.whole for one in sources.values()) >= MOST_WHOLE:
            break
        sources.setdefault(source.node_id, source)
    for rank in new:
        if (holder := index.by_rank.get(rank)) is not None:
            sources.setdefault(holder.node_id, holder)
    needed = (
        source if source is own or source.whole else replace(source, ranks=_only(source.ranks, new))
        for source in sources.values()
    )
    return replace(snapshot, sources=tuple(needed))


def _from(sources: Sequence[Source], place: int) -> Iterator[Source]:
    """The first few of some sources, beginning at another one for each member, so that all are asked alike."""
    for step in range(min(len(sources), MOST_WHOLE)):
        yield sources[(place + step) % len(sources)]


def _only(parts: Sequence[RankPart], ranks: range) -> tuple[RankPart, ...]:
    return tuple(part for part in parts if part.rank in ranks)


@dataclass(frozen=True, slots=True)
class _Index:
    """The sources of a snapshot by node, by the ranks that they have parts of, and those that have all."""

    by_node: Mapping[str, Source]
    by_rank: Mapping[int, Source]
    whole: Sequence[Source]


@kept
def _index(snapshot: Chosen) -> _Index:
    by_rank: dict[int, Source] = {}
    for source in snapshot.sources:
        for part in source.ranks:
            by_rank.setdefault(part.rank, source)
    return _Index(
        by_node={source.node_id: source for source in snapshot.sources},
        by_rank=by_rank,
        whole=[source for source in snapshot.sources if source.whole],
    )


@kept
def wrong(snapshot: Chosen) -> tuple[str, ...]:
    """What is impossible in a snapshot that was chosen, in a clause each."""
    if snapshot.on_disk:
        return ("a node has it, though it is on disk",) if snapshot.sources else ()
    clauses: list[str] = []
    index = _index(snapshot)
    if not index.whole:
        clauses.append("nobody has all of it")
    if len(index.by_node) < len(snapshot.sources):
        clauses.append("a node has it twice")
    if snapshot.sharded and any(rank not in index.by_rank for rank in range(snapshot.world_size)):
        clauses.append("nobody has the parts of some ranks")
    return tuple(clauses)
