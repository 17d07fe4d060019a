"""Who has what a round begins from, whom each member is told of; and who copies parts of a sharded snapshot.

Each member has a keeper: the next one in the order of ranks that is in another unit, since a unit fails together; or
the next one at all. Two members copy what a node has that has left.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from hetrdzv.core.memo import cache_on_value
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.selection.select import node_unit
from hetrdzv.core.snapshots.catalog import GroupSnapshot, list_usable_snapshots, memory_snapshot_id
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.snapshots import (
    CopyOrder,
    RankPart,
    SnapshotId,
    SnapshotInventory,
    SnapshotSource,
    StartSnapshot,
)

MAX_STORED_SOURCES = 1024
"""How many nodes are kept that have a snapshot, unless it is sharded: then all are needed."""

MAX_WHOLE_SOURCES_PER_MEMBER = 8
"""How many sources of what all ranks have alike a member is told, besides itself."""

SAFE_COPY_COUNT = 2
"""How many nodes have all of a snapshot that outlives any node."""


def make_start_snapshot(found: GroupSnapshot, members: Iterable[str], lost: int | None) -> StartSnapshot:
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
            _make_source(node, held.ranks, whole=held.whole)
            for node, held in holders[: None if found.sharded else MAX_STORED_SOURCES]
        ),
        on_disk=found.on_disk is not None,
        origin=found.on_disk.origin if found.on_disk is not None else "",
    )


def _make_source(node: Node, ranks: tuple[RankPart, ...], *, whole: bool = False) -> SnapshotSource:
    own = node.snapshots or SnapshotInventory()
    return SnapshotSource(
        node_id=node.node_id, address=node.address, port=own.port, key=own.key, whole=whole, ranks=ranks
    )


def select_sources(snapshot: StartSnapshot, member: Member) -> StartSnapshot:
    """What a member is told: its own copy first, then those that it needs; see `StartSnapshot`."""
    if snapshot.on_disk:
        return snapshot
    by_node, by_rank, whole = _index_sources(snapshot)
    own = [by_node[member.node_id]] if member.node_id in by_node else []
    if snapshot.sharded:
        needed = [*own, *snapshot.sources]
    else:
        count = len(whole)  # each begins elsewhere, so that all are asked alike
        some = [
            whole[(member.group_rank + step) % count]
            for step in range(min(count, MAX_WHOLE_SOURCES_PER_MEMBER))
        ]
        needed = [*own, *some, *(by_rank[rank] for rank in member.ranks if rank in by_rank)]
    return replace(snapshot, sources=tuple({source.node_id: source for source in needed}.values()))


@cache_on_value
def _index_sources(
    snapshot: StartSnapshot,
) -> tuple[Mapping[str, SnapshotSource], Mapping[int, SnapshotSource], Sequence[SnapshotSource]]:
    """The sources of a snapshot by node, by the ranks that they have parts of, and those that have all."""
    by_rank: dict[int, SnapshotSource] = {}
    for source in snapshot.sources:
        for part in source.ranks:
            by_rank.setdefault(part.rank, source)
    by_node = {source.node_id: source for source in snapshot.sources}
    return by_node, by_rank, [source for source in snapshot.sources if source.whole]


# -- copies of what lives once -----------------------------------------------------------------------------


def next_copy_order(group: Group, node: Node, safe: SnapshotId | None = None) -> CopyOrder | None:
    """The next parts that a member is to copy, the oldest first: they may be overwritten; None: none by now.

    They are of the snapshot that the round began from, and of those of the round of which the member has something;
    nothing older than what is `safe`. All members ask after each step: only those are looked at whose keeper it is.
    """
    current, own = group.active_round, node.snapshots
    if current is None or own is None:
        return None
    has = {memory_snapshot_id(held): {part.rank for part in held.ranks} for held in own.held}
    wanted: list[tuple[SnapshotId, str, Container[int]]] = []
    if (began := _find_sharded_start(current)) is not None:
        wanted += [(memory_snapshot_id(began), *lone) for lone in _plan_copies(group).get(node.node_id, ())]
    of_round = [stamp for stamp in has if stamp.round == current.number]
    for stamp in sorted(of_round, key=lambda stamp: stamp.step):
        wanted += [
            (stamp, one.node_id, one.ranks) for one in map_backed_up_members(group).get(node.node_id, ())
        ]
    copies = (
        _make_copy_order(group, holder, stamp, ranks, has.get(stamp, ()))
        for stamp, holder, ranks in wanted
        if safe is None or stamp.sort_key > safe.sort_key
    )
    return next(filter(None, copies), None)


def _make_copy_order(
    group: Group, holder: str, stamp: SnapshotId, wanted: Container[int], has: Container[int]
) -> CopyOrder | None:
    """What a node has of some parts of a snapshot, but for those that the one who asks has; None: nothing."""
    node = group.nodes.get(holder)
    if node is None or node.snapshots is None or group.snapshots is None:
        return None
    ranks = tuple(
        part
        for held in list_usable_snapshots(group, node, group.snapshots.origin)
        if held.sharded and memory_snapshot_id(held) == stamp
        for part in held.ranks
        if part.rank in wanted and part.rank not in has
    )
    return CopyOrder(stamp=stamp, source=_make_source(node, ranks)) if ranks else None


def _find_sharded_start(current: Round) -> StartSnapshot | None:
    """What a round began from, if it lives in memory, in parts."""
    began = current.snapshot
    return None if began is None or began.on_disk or not began.sharded else began


@cache_on_value
def _plan_copies(group: Group) -> Mapping[str, Sequence[tuple[str, Container[int]]]]:
    """From whom each member is to copy which parts of what the round began from: first from who is not in it.

    Those are the parts of which fewer than `SAFE_COPY_COUNT` members had one then; two members copy those of a node
    that is not in it.
    """
    current = group.active_round
    began = _find_sharded_start(current) if current is not None else None
    if current is None or began is None:
        return {}
    names = [member.node_id for member in current.members]
    keepers = {
        member.node_id: keeper for keeper, kept in map_backed_up_members(group).items() for member in kept
    }
    inside = frozenset(names)
    copies = Counter(part.rank for one in began.sources if one.node_id in inside for part in one.ranks)
    lone: defaultdict[str, list[tuple[str, Container[int]]]] = defaultdict(list)
    for place, source in enumerate(sorted(began.sources, key=lambda source: source.node_id in inside)):
        ranks = {part.rank for part in source.ranks if copies[part.rank] < SAFE_COPY_COUNT}
        turn = place % len(names)
        outside = (names[turn:] + names[:turn])[:SAFE_COPY_COUNT]
        keeper = [keepers[source.node_id]] if source.node_id in keepers else []
        for name in keeper if source.node_id in inside else outside:
            lone[name].append((source.node_id, ranks))
    return lone


@cache_on_value
def map_backed_up_members(group: Group) -> Mapping[str, Sequence[Member]]:
    """The members whose keeper each node is; nobody's where there is only one."""
    members = group.active_round.members if group.active_round is not None else ()
    units = [  # a node keeps its labels while its round runs
        node_unit(group.spec, node) if (node := group.nodes.get(member.node_id)) is not None else None
        for member in members
    ]
    kept, keeper, count = defaultdict[str, list[Member]](list), "", len(members)
    alike = None not in units and len(set(units)) == 1
    # twice around, since the last has the keeper of the first
    for place in reversed(range(2 * count if count > 1 else 0)):
        here, after = place % count, (place + 1) % count
        if alike or not keeper or units[here] is None or units[here] != units[after]:
            keeper = members[after].node_id
        if place < count:
            kept[keeper].append(members[here])
    return kept
