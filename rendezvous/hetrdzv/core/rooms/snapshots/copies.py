"""Who keeps copies for whom of what lives once: the parts that ranks have of a sharded snapshot.

Each member has a keeper: the next one in the order of ranks that is in another unit, since a unit fails together; or
the next one at all.
"""

from collections.abc import Iterator

from hetrdzv.core.model import Group, Member, Node, Round
from hetrdzv.core.selection.units import value_of
from hetrdzv.protocol.rooms.snapshots import Copy, Held, Source, Stamp


def copy_for(group: Group, node: Node) -> Copy | None:
    """The next parts that a member is to copy, of a snapshot of its round that it has a part of; None: none by now."""
    current, own = group.active_round, node.snapshots
    if current is None or own is None:
        return None
    mine = [held for held in own.held if held.sharded and held.round == current.number]
    for held in sorted(mine, key=lambda held: -held.step):
        for member in kept_by(group, current, node.node_id):
            if (copy := _lacking(group, member, held)) is not None:
                return copy
    return None


def kept_by(group: Group, current: Round, node_id: str) -> Iterator[Member]:
    """The members whose keeper a node is: the ones right before it, as far as they are of one unit."""
    members = current.members
    place = next((at for at, member in enumerate(members) if member.node_id == node_id), None)
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
    return value_of(group.spec, node) if node is not None else None


def _lacking(group: Group, kept: Member, mine: Held) -> Copy | None:
    """What a keeper lacks of a member's own parts of a snapshot; None: nothing, or that does not have them yet."""
    node = group.speaker(kept)
    theirs = node.snapshots if node is not None else None
    if node is None or theirs is None or not theirs.port:
        return None
    held = next((each for each in theirs.held if (each.round, each.step) == (mine.round, mine.step)), None)
    known = {part.rank for part in mine.ranks}
    own = kept.ranks
    ranks = tuple(
        part for part in (held.ranks if held else ()) if part.rank in own and part.rank not in known
    )
    if not ranks:
        return None
    return Copy(
        stamp=Stamp(round=mine.round, step=mine.step),
        source=Source(
            node_id=node.node_id, address=node.address, port=theirs.port, key=theirs.key, ranks=ranks
        ),
    )
