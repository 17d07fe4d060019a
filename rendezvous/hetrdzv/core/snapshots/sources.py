"""Who has the snapshot that a round begins from, and which of them each member is told."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hetrdzv.core.memo import cached
from hetrdzv.core.snapshots.complete import GroupSnapshot
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.snapshots import Source, StartSnapshot

MOST_SOURCES = 1024
"""How many nodes are kept that have a snapshot, unless it is sharded: then all are needed."""

MOST_WHOLE = 8
"""How many sources of what all ranks have alike a member is told, besides itself."""


def chosen_from(found: GroupSnapshot, members: Iterable[str], lost: int | None) -> StartSnapshot:
    """A snapshot as a round keeps it: first who has all that its ranks have alike, and of those its members."""
    inside = frozenset(members)
    holders = sorted(found.holders, key=lambda holder: (not holder[1].whole, holder[0].node_id not in inside))
    return StartSnapshot(
        round=found.stamp.round,
        step=found.stamp.step,
        world_size=found.world_size,
        sharded=found.sharded,
        lost=lost,
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


def for_member(snapshot: StartSnapshot, member: Member) -> StartSnapshot:
    """What a member is told: its own copy first, then those that it needs; see `StartSnapshot`."""
    if snapshot.on_disk:
        return snapshot
    by_node, by_rank, whole = _index(snapshot)
    own = [by_node[member.node_id]] if member.node_id in by_node else []
    if snapshot.sharded:
        needed = [*own, *snapshot.sources]
    else:
        count = len(whole)  # each begins elsewhere, so that all are asked alike
        some = [whole[(member.group_rank + step) % count] for step in range(min(count, MOST_WHOLE))]
        needed = [*own, *some, *(by_rank[rank] for rank in member.ranks if rank in by_rank)]
    return replace(snapshot, sources=tuple({source.node_id: source for source in needed}.values()))


@cached
def _index(snapshot: StartSnapshot) -> tuple[Mapping[str, Source], Mapping[int, Source], Sequence[Source]]:
    """The sources of a snapshot by node, by the ranks that they have parts of, and those that have all."""
    by_rank: dict[int, Source] = {}
    for source in snapshot.sources:
        for part in source.ranks:
            by_rank.setdefault(part.rank, source)
    by_node = {source.node_id: source for source in snapshot.sources}
    return by_node, by_rank, [source for source in snapshot.sources if source.whole]
