"""What is kept of the snapshot that a round begins from, and what each member is told of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hetrdzv.core.memo import cached
from hetrdzv.core.snapshots.complete import Gathered
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.snapshots import Chosen, Incomplete, Source

MOST_SOURCES = 1024
"""How many nodes are kept that have a snapshot, unless it is sharded: then all are needed."""

MOST_WHOLE = 8
"""How many sources of what all ranks have alike a member is told, besides itself."""


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
    return Chosen(
        round=found.stamp.round,
        step=found.stamp.step,
        world_size=found.world_size,
        sharded=found.sharded,
        lost=lost,
        newer=newer,
        sources=tuple(
            Source(
                node_id=node.node_id,
                address=node.address,
                port=node.snapshots.port,
                key=node.snapshots.key,
                whole=held.whole,
                ranks=held.ranks,
            )
            for node, held in holders[: None if found.sharded else MOST_SOURCES]
            if node.snapshots is not None
        ),
        on_disk=found.on_disk is not None,
        origin=found.on_disk.origin if found.on_disk is not None else "",
    )


def told(snapshot: Chosen, member: Member) -> Chosen:
    """What a member is told: its own copy first, then those that it needs; see `Chosen`."""
    if snapshot.on_disk:
        return snapshot
    index = _index(snapshot)
    own = index.by_node.get(member.node_id)
    sources = {own.node_id: own} if own is not None else {}
    if snapshot.sharded:
        sources |= index.by_node
    else:
        some = [] if own is None else [own]
        count = len(index.whole)  # each begins elsewhere, so that all are asked alike
        some += [index.whole[(member.group_rank + step) % count] for step in range(min(count, MOST_WHOLE))]
        some += [index.by_rank[rank] for rank in member.ranks if rank in index.by_rank]
        sources |= {source.node_id: source for source in some}
    return replace(snapshot, sources=tuple(sources.values()))


@dataclass(frozen=True, slots=True)
class _Index:
    """The sources of a snapshot by node, by the ranks that they have parts of, and those that have all."""

    by_node: Mapping[str, Source]
    by_rank: Mapping[int, Source]
    whole: Sequence[Source]


@cached
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


@cached
def wrong(snapshot: Chosen) -> tuple[str, ...]:
    """What is impossible in a snapshot that was chosen, in a clause each."""
    if snapshot.on_disk:
        return ("a node has it, though it is on disk",) if snapshot.sources else ()
    index = _index(snapshot)
    found = {
        "nobody has all of it": not index.whole,
        "a node has it twice": len(index.by_node) < len(snapshot.sources),
        "nobody has the parts of some ranks": snapshot.sharded
        and any(rank not in index.by_rank for rank in range(snapshot.world_size)),
    }
    return tuple(clause for clause, is_so in found.items() if is_so)
