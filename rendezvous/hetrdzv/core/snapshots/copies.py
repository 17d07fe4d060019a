"""Who copies what lives once: the parts that ranks have of a sharded snapshot.

Each member has a keeper: the next one in the order of ranks that is in another unit, since a unit fails together; or
the next one at all. Two members copy what a node has that has left.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence

from hetrdzv.core.memo import cached_by_fields
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.selection.select import unit_of
from hetrdzv.core.snapshots.complete import stamp_of, usable
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.snapshots import CopyOrder, SnapshotId, Source, StartSnapshot

COPIES = 2
"""How many nodes have all of a snapshot that outlives any node."""


def copy_for(group: Group, node: Node, safe: SnapshotId | None = None) -> CopyOrder | None:
    """The next parts that a member is to copy, the oldest first: they may be overwritten; None: none by now.

    They are of the snapshot that the round began from, and of those of the round of which the member has something;
    nothing older than what is `safe`. All members ask after each step: only those are looked at whose keeper it is.
    """
    current, own = group.active_round, node.snapshots
    if current is None or own is None:
        return None
    has = {stamp_of(held): {part.rank for part in held.ranks} for held in own.held}
    wanted: list[tuple[SnapshotId, str, Container[int]]] = []
    if (began := _began(current)) is not None:
        wanted += [(stamp_of(began), *lone) for lone in _lone(group).get(node.node_id, ())]
    of_round = [stamp for stamp in has if stamp.round == current.number]
    for stamp in sorted(of_round, key=lambda stamp: stamp.step):
        wanted += [(stamp, one.node_id, one.ranks) for one in _kept_by(group).get(node.node_id, ())]
    copies = (
        _copy(group, holder, stamp, ranks, has.get(stamp, ()))
        for stamp, holder, ranks in wanted
        if safe is None or stamp.sort_key > safe.sort_key
    )
    return next(filter(None, copies), None)


def _copy(
    group: Group, holder: str, stamp: SnapshotId, wanted: Container[int], has: Container[int]
) -> CopyOrder | None:
    """What a node has of some parts of a snapshot, but for those that the one who asks has; None: nothing."""
    node = group.nodes.get(holder)
    if node is None or node.snapshots is None or group.snapshots is None:
        return None
    ranks = tuple(
        part
        for held in usable(group, node, group.snapshots.origin)
        if held.sharded and stamp_of(held) == stamp
        for part in held.ranks
        if part.rank in wanted and part.rank not in has
    )
    if not ranks:
        return None
    source = Source(
        node_id=holder, address=node.address, port=node.snapshots.port, key=node.snapshots.key, ranks=ranks
    )
    return CopyOrder(stamp=stamp, source=source)


def _began(current: Round) -> StartSnapshot | None:
    """What a round began from, if it lives in memory, in parts."""
    began = current.snapshot
    return None if began is None or began.on_disk or not began.sharded else began


@cached_by_fields("spec", "round")
def _lone(group: Group) -> Mapping[str, Sequence[tuple[str, Container[int]]]]:
    """From whom each member is to copy which parts of what the round began from: first from who is not in it.

    Those are the parts of which fewer than `COPIES` members had one then; two members copy those of a node that is not
    in it.
    """
    current = group.active_round
    began = _began(current) if current is not None else None
    if current is None or began is None:
        return {}
    names, keepers = [member.node_id for member in current.members], _keepers(group)
    inside = frozenset(names)
    copies = Counter(part.rank for one in began.sources if one.node_id in inside for part in one.ranks)
    lone: defaultdict[str, list[tuple[str, Container[int]]]] = defaultdict(list)
    for place, source in enumerate(sorted(began.sources, key=lambda source: source.node_id in inside)):
        ranks = {part.rank for part in source.ranks if copies[part.rank] < COPIES}
        turn = place % len(names)
        outside = (names[turn:] + names[:turn])[:COPIES]
        keeper = [keepers[source.node_id]] if source.node_id in keepers else []
        for name in keeper if source.node_id in inside else outside:
            lone[name].append((source.node_id, ranks))
    return lone


@cached_by_fields("spec", "round")
def _kept_by(group: Group) -> Mapping[str, Sequence[Member]]:
    """The members whose keeper each node is."""
    kept: defaultdict[str, list[Member]] = defaultdict(list)
    keepers = _keepers(group)
    for member in group.active_round.members if group.active_round is not None else ():
        if (keeper := keepers.get(member.node_id)) is not None:
            kept[keeper].append(member)
    return kept


@cached_by_fields("spec", "round")
def _keepers(group: Group) -> Mapping[str, str]:
    """The keeper of each member; nobody's where there is only one. A node keeps its labels while its round runs."""
    members = group.active_round.members if group.active_round is not None else ()
    names, count = [member.node_id for member in members], len(members)
    units = [
        unit_of(group.spec, node) if (node := group.nodes.get(member.node_id)) is not None else None
        for member in members
    ]
    keepers: dict[str, str] = {}
    alike = None not in units and len(set(units)) == 1
    for place in reversed(range(2 * count if count > 1 else 0)):
        here, after = place % count, (place + 1) % count
        is_next = alike or units[here] is None or units[here] != units[after]
        keepers[names[here]] = names[after] if is_next else keepers.get(names[after], names[after])
    return keepers
