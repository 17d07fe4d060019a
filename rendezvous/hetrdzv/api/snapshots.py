"""What people see of snapshots. Nobody is shown a key."""

from hetrdzv.core.memo import cached
from hetrdzv.core.model import Group
from hetrdzv.core.snapshots import is_undone, next_snapshot, on_disk, safe_snapshot
from hetrdzv.core.snapshots.complete import Gathered, began_from, gathered
from hetrdzv.protocol.snapshots import SafeShown, SnapshotShown, SnapshotsShown
from hetrdzv.protocol.texts.who import Nodes

MOST_SHOWN = 32
"""How many snapshots are shown: the newest."""


def shown(group: Group) -> SnapshotsShown:
    """The snapshots of a group as people see them."""
    after, newest, known = next_snapshot(group), safe_snapshot(group), group.snapshots
    return SnapshotsShown(
        group_id=group.group_id,
        next=after.stamp if after is not None else None,
        wanted=known is not None and after is not None and known.wanted == after.stamp,
        safe=newest.stamp if newest is not None else None,
        snapshots=tuple(_shown(group, one) for one in gathered(group)[:MOST_SHOWN]),
    )


def _shown(group: Group, one: Gathered) -> SnapshotShown:
    return SnapshotShown(
        stamp=one.stamp,
        world_size=one.world_size,
        sharded=one.sharded,
        lack=one.lack,
        undone=group.snapshots is not None and is_undone(group.snapshots, one.stamp),
        nodes=_holders(one),
        on_disk=one.on_disk is not None,
        size=one.on_disk.size if one.on_disk else sum(held.size for _, held in one.holders),
    )


def _holders(one: Gathered) -> Nodes:
    return Nodes.of([node.node_id for node, _ in one.holders])


@cached
def safe(group: Group) -> SafeShown | None:
    """What of a job's work is safe; None: no node holds snapshots."""
    if group.snapshots is None:
        return None
    newest, current, disk = safe_snapshot(group), group.round, on_disk(group)
    began = current.snapshot if current is not None else None
    return SafeShown(
        safe=newest.stamp if newest is not None else None,
        nodes=_holders(newest) if newest is not None else Nodes(),
        on_disk=disk.stamp if disk is not None else None,
        began=began_from(current, group.snapshots.origin) if current is not None else None,
        lost=began.lost if began is not None else 0,
        newer=began.newer if began is not None else "",
    )
