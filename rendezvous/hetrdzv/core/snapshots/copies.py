"""Who keeps copies for whom of what lives once: the parts that ranks have of a sharded snapshot.

Each member has a keeper: the next one in the order of ranks that is in another unit, since a unit fails together; or
the next one at all.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from hetrdzv.core.memo import kept
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.selection.select import unit_of
from hetrdzv.core.snapshots.complete import stamp_of
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.rooms.snapshots import Chosen, Copy, Source, Stamp

COPIES = 2
"""How many nodes have all of a snapshot that outlives any node."""


def copy_for(group: Group, node: Node, safe: Stamp | None = None) -> Copy | None:
    """The next parts that a member is to copy; None: none by now.

    They are of each snapshot of its round those of the members whose keeper it is; and, until something as new is safe,
    what lives once of the snapshot that the round began from. Of that, all members share out what nodes have that have
    left, which comes first; two copy all of a node that alone has what ranks have alike.

    Args:
        safe: the newest snapshot that outlives any node.
    """
    current, own = group.active_round, node.snapshots
    if current is None or own is None:
        return None
    whose = list(kept_by(group, current, node.node_id))
    began = _unsafe(current, safe)
    lone = _lone(current) if began is not None else {}
    stamp = stamp_of(began) if began is not None else None
    known = {part.rank for held in own.held if stamp_of(held) == stamp for part in held.ranks}
    members = current.members
    place = _places(current).get(node.node_id, -1)
    for node_id in _outside(current) if began is not None else ():
        has_all = node_id == _alone_whole(current)
        mine = {
            rank for rank in lone[node_id] if (place < COPIES if has_all else rank % len(members) == place)
        }
        if (copy := _copy(group.nodes.get(node_id), stamp, known, mine)) is not None:
            return copy
    parts = [held for held in own.held if held.sharded and held.round == current.number]
    if safe is not None:
        parts = [held for held in parts if stamp_of(held).newness > safe.newness]
    for held in sorted(parts, key=lambda held: held.step):  # the newest may be overwritten before it is here
        for member in whose:
            has = {part.rank for part in held.ranks}
            if (copy := _copy(group.speaker(member), stamp_of(held), has, member.ranks)) is not None:
                return copy
    copies = (_copy(group.speaker(member), stamp, known, lone.get(member.node_id, ())) for member in whose)
    return next(filter(None, copies), None)


def _unsafe(current: Round, safe: Stamp | None) -> Chosen | None:
    """What a round began from, if it lives in memory, in parts, and nothing as new is safe."""
    began = current.snapshot
    if began is None or began.on_disk or not began.sharded:
        return None
    return None if safe is not None and safe.newness >= stamp_of(began).newness else began


@kept
def _places(current: Round) -> Mapping[str, int]:
    """Where each member is in the order of ranks."""
    return {member.node_id: place for place, member in enumerate(current.members)}


@kept
def _lone(current: Round) -> Mapping[str, AbstractSet[int]]:
    """The ranks of the snapshot that a round began from of which one member alone has the part, by node.

    Of a node that alone has all that ranks have alike it is all ranks: their parts have that, too. Of nodes that have
    left, it is those of which no member has the part.
    """
    sources, inside = current.snapshot.sources if current.snapshot is not None else (), _places(current)
    holders = Counter(part.rank for source in sources if source.node_id in inside for part in source.ranks)
    alone = _alone_whole(current)
    return {
        source.node_id: {
            part.rank
            for part in source.ranks
            if holders[part.rank] == (source.node_id in inside) or source.node_id == alone
        }
        for source in sources
    }


@kept
def _alone_whole(current: Round) -> str | None:
    """The node that alone has all tensors that ranks have alike; None: more members have."""
    sources, inside = current.snapshot.sources if current.snapshot is not None else (), _places(current)
    whole = [source.node_id for source in sources if source.whole]
    members = [node_id for node_id in whole if node_id in inside]
    return (members or whole)[0] if len(members) < COPIES and whole else None


@kept
def _outside(current: Round) -> Sequence[str]:
    """The nodes that are not in a round, and alone have parts of the snapshot that it began from."""
    lone = _lone(current)
    return [node_id for node_id, ranks in lone.items() if ranks and current.member(node_id) is None]


def kept_by(group: Group, current: Round, node_id: str) -> Iterator[Member]:
    """The members whose keeper a node is: the ones right before it, as far as they are of one unit."""
    members = current.members
    place = _places(current).get(node_id)
    if place is None or len(members) == 1:
        return
    before = members[place - 1]
    unit = _unit(group, before)
    if unit is not None and unit == _unit(group, members[place]):
        if all(_unit(group, member) == unit for member in members):
            yield before
        return
    yield before
    for back in range(2, len(members) if unit is not None else 0):
        if _unit(group, members[place - back]) != unit:
            return
        yield members[place - back]


def _unit(group: Group, member: Member) -> str | None:
    node = group.speaker(member)
    return unit_of(group.spec, node) if node is not None else None


def _copy(
    node: Node | None, stamp: Stamp | None, known: AbstractSet[int], wanted: Container[int]
) -> Copy | None:
    """What a keeper lacks of some parts that a node has of a snapshot; None: nothing, or it does not have them yet.

    Args:
        known: the ranks whose parts the keeper has.
        wanted: those whose parts it is to have.
    """
    theirs = node.snapshots if node is not None else None
    if node is None or stamp is None or theirs is None or not theirs.port:
        return None
    held = next((each for each in theirs.held if stamp_of(each) == stamp), None)
    ranks = tuple(
        part for part in (held.ranks if held else ()) if part.rank in wanted and part.rank not in known
    )
    if not ranks:
        return None
    return Copy(
        stamp=stamp,
        source=Source(
            node_id=node.node_id, address=node.address, port=theirs.port, key=theirs.key, ranks=ranks
        ),
    )
