"""Which snapshots the nodes of a group have together, and what is missing of each."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from hetrdzv.core.memo import cache_on_value
from hetrdzv.core.model import Group, Node
from hetrdzv.protocol.snapshots import DiskSnapshot, HeldSnapshot, SnapshotId, StartSnapshot
from hetrdzv.protocol.states import NodePhase
from hetrdzv.protocol.texts.node_rank_lists import MAX_LISTED_RANGES, NodeList, RankList
from hetrdzv.protocol.texts.phrasing import singular_or_plural


@dataclass(frozen=True)
class GroupSnapshot:
    """A snapshot.

    Attributes:
        holders: who has some of it.
        missing: why it is not complete, in a clause; empty: it is.
        on_disk: what is known of it where it is on disk, and not in the memory of nodes.
    """

    stamp: SnapshotId
    world_size: int
    sharded: bool
    holders: tuple[tuple[Node, HeldSnapshot], ...] = ()
    missing: str = ""
    on_disk: DiskSnapshot | None = None


@cache_on_value
def list_group_snapshots(group: Group) -> Sequence[GroupSnapshot]:
    """All snapshots of a group, the newest first; of its running round, if one runs, each node may use its own."""
    active = group.active_round
    members = [member.node_id for member in active.members] if active is not None else list(group.nodes)
    origin = group.snapshots.origin if group.snapshots is not None else ""
    return list_job_snapshots(group, origin, members, group.last_round)


def list_job_snapshots(
    group: Group, origin: str, members: Sequence[str], last_round: int
) -> Sequence[GroupSnapshot]:
    """All snapshots of a job (`origin`) that the nodes of a group have or see on disk, the newest first.

    What one node sees on disk counts: not all have looked lately. What nobody serves is of use to its own node alone,
    if that is the only member; what claims to be of a later round than the last is none.
    """
    alone = members[0] if len(members) == 1 else None
    holders: defaultdict[tuple[SnapshotId, int, bool], list[tuple[Node, HeldSnapshot]]] = defaultdict(list)
    disk: dict[SnapshotId, DiskSnapshot] = {}
    for node in group.nodes.values():
        if node.snapshots is None:
            continue
        for held in list_usable_snapshots(group, node, origin, alone):
            if held.round <= last_round:
                holders[memory_snapshot_id(held), held.world_size, held.sharded].append((node, held))
        if is_present_and_staying(group, node):
            disk.update((disk_snapshot_id(one, origin), one) for one in node.snapshots.on_disk)
    found = [
        GroupSnapshot(stamp, size, sharded, tuple(some), _describe_missing_ranks(size, sharded, some))
        for (stamp, size, sharded), some in holders.items()
    ]
    found += [GroupSnapshot(stamp, one.world_size, one.sharded, on_disk=one) for stamp, one in disk.items()]
    refused = _list_unloadable_snapshots(group, members)
    found = [replace(one, missing=refused.get(one.stamp, one.missing)) for one in found] if refused else found
    wrote_at: dict[str | None, int] = {}
    for stamp, one in disk.items():
        wrote_at[stamp.origin] = max(one.written_at, wrote_at.get(stamp.origin, 0))

    def snapshot_sort_key(one: GroupSnapshot) -> tuple[object, ...]:
        """After those of this job, those of the job that wrote last; of one that is in memory and on disk, memory."""
        own, *within = one.stamp.sort_key
        wrote_last = wrote_at.get(one.stamp.origin, 0)
        return own, wrote_last, *within, one.on_disk is None, one.world_size, one.sharded

    return sorted(found, key=snapshot_sort_key, reverse=True)


def _list_unloadable_snapshots(group: Group, members: Iterable[str]) -> Mapping[SnapshotId, str]:
    """What some members could load no copy of."""
    found: defaultdict[SnapshotId, list[str]] = defaultdict(list)
    for node in map(group.nodes.get, members):
        if node is not None and node.snapshots is not None:
            for stamp in node.snapshots.refused:
                found[stamp].append(node.node_id)
    return {
        stamp: f"workers on {NodeList.of(nodes)} could load no copy of it" for stamp, nodes in found.items()
    }


def has_all_parts(held: HeldSnapshot) -> bool:
    """Whether a node has all of a snapshot."""
    return held.whole and len({part.rank for part in held.ranks}) >= held.world_size


def list_usable_snapshots(
    group: Group, node: Node, origin: str, alone: str | None = None
) -> Iterable[HeldSnapshot]:
    """What a node has of the snapshots of a job that others can use; `alone`: that only it will use them."""
    inventory = node.snapshots
    assert inventory is not None
    served = bool(inventory.port) or node.node_id == alone
    is_of = bool(origin) and inventory.origin == origin
    return (
        inventory.held
        if served and is_of and (is_present_and_staying(group, node) or is_serving_snapshots(group, node))
        else ()
    )


def is_present_and_staying(group: Group, node: Node) -> bool:
    """Whether a node is there, and does not leave."""
    return not node.is_gone and node.job == group.job and node.leaving is None and node.rejected is None


def is_serving_snapshots(group: Group, node: Node) -> bool:
    """Whether a node that leaves, or has left, yet serves what it holds."""
    if group.snapshots is None or node.phase is not NodePhase.LEFT or node.job != group.job:
        return False
    return node.incarnation in group.snapshots.parting


def survives_node_loss(one: GroupSnapshot) -> bool:
    """Whether a complete snapshot outlives any node: if nothing is sharded all can save again what they have alike."""
    if one.on_disk or not one.sharded:
        return True
    copies = Counter(part.rank for _, held in one.holders for part in held.ranks)
    return sum(held.whole for _, held in one.holders) > 1 and all(
        copies[rank] > 1 for rank in range(one.world_size)
    )


def describe_newer_step(step: int, found: Iterable[GroupSnapshot]) -> str:
    """What there is of a job's steps after one: the newest; empty: nothing, or all of one that is undone."""
    newer = [one for one in found if one.stamp.origin is None and one.stamp.step > step]
    if not newer or not all(one.missing for one in newer):
        return ""
    return f"step {newer[0].stamp.step} is incomplete: {newer[0].missing}"


def memory_snapshot_id(held: HeldSnapshot | StartSnapshot) -> SnapshotId:
    """Which snapshot in memory it is, or is of."""
    return SnapshotId(round=held.round, step=held.step)


def disk_snapshot_id(one: DiskSnapshot | StartSnapshot, origin: str) -> SnapshotId:
    """Which snapshot on disk it is, for a job."""
    return SnapshotId(round=one.round, step=one.step, origin=one.origin if one.origin != origin else None)


def _describe_missing_ranks(
    world_size: int, sharded: bool, holders: Sequence[tuple[Node, HeldSnapshot]]
) -> str:
    if not any(held.whole for _, held in holders):
        return "no node has the complete replicated state"
    if sharded:
        ranks = {part.rank for _, held in holders for part in held.ranks if part.rank < world_size}
        if len(ranks) < world_size:
            gone = list_missing_ranks(ranks, world_size)
            what = singular_or_plural(gone, "shard", "shards")
            return f"{what} missing of {gone}"
    return ""


def list_missing_ranks(ranks: AbstractSet[int], world_size: int) -> RankList:
    """The ranks of a world that are not among some; costs as much as there are of those."""
    gaps: list[tuple[int, int]] = []
    after = -1
    for rank in (*sorted(ranks), world_size):
        if rank > after + 1:
            gaps.append((after + 1, rank - 1))
        after = rank
    more = sum(last - first + 1 for first, last in gaps[MAX_LISTED_RANGES:])
    return RankList(ranges=tuple(gaps[:MAX_LISTED_RANGES]), more=more)
