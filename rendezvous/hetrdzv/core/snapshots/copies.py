"""Who copies what lives once: the parts that ranks have of a sharded snapshot.

Each member has a keeper: the next one in the order of ranks that is in another unit, since a unit fails together; or
the next one at all. Of what only nodes have that have left, the members share out the parts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from hetrdzv.core.memo import cached
from hetrdzv.core.model import Group, Node
from hetrdzv.core.selection.select import unit_of
from hetrdzv.core.snapshots.complete import Gathered, gathered, stamp_of
from hetrdzv.protocol.snapshots import Copy, Held, RankPart, Source, Stamp

COPIES = 2
"""How many nodes have all of a snapshot that outlives any node."""


def copy_for(group: Group, node: Node, safe: Stamp | None = None) -> Copy | None:
    """The next parts that a member is to copy, the oldest first: they may be overwritten; None: none by now.

    They are of the snapshot that the round began from, and of those of the round of which the member has something.

    Args:
        safe: the newest snapshot that outlives any node: nothing older needs copies.
    """
    own = {stamp_of(held) for held in node.snapshots.held} if node.snapshots is not None else ()
    for copy in _lone(group).get(node.node_id, ()) if node.snapshots is not None else ():
        newer = safe is None or copy.stamp.newness > safe.newness
        if newer and (copy.stamp in own or copy.stamp == _began(group)):
            return copy
    return None


def _began(group: Group) -> Stamp | None:
    began = group.active_round.snapshot if group.active_round is not None else None
    return None if began is None or began.on_disk else stamp_of(began)


@cached
def _lone(group: Group) -> Mapping[str, Sequence[Copy]]:
    """What each member is to copy, by node."""
    copies: dict[str, list[Copy]] = {}
    current, began = group.active_round, _began(group)
    for one in reversed(gathered(group)):
        is_of_round = current is not None and one.stamp.round == current.number
        if not one.sharded or one.on_disk or not (is_of_round or one.stamp == began):
            continue
        lone = sorted(_lone_parts(group, one).items(), key=lambda item: not group.nodes[item[0][1]].gone)
        for (keeper, node_id), parts in lone:  # first from who has left, and will soon be gone
            node = group.nodes[node_id]
            assert node.snapshots is not None
            source = Source(
                node_id=node_id,
                address=node.address,
                port=node.snapshots.port,
                key=node.snapshots.key,
                ranks=tuple(parts),
            )
            copies.setdefault(keeper, []).append(Copy(stamp=one.stamp, source=source))
    return copies


def _lone_parts(group: Group, one: Gathered) -> Mapping[tuple[str, str], list[RankPart]]:
    """The parts of a snapshot of which fewer than `COPIES` members have one, by who is to copy them, and from whom.

    What ranks have alike lies in the parts of all ranks of a node together, so who alone has that is copied altogether.
    """
    current = group.active_round
    assert current is not None
    names, keepers = [member.node_id for member in current.members], _keepers(group)
    ranks = {node.node_id: {part.rank for part in held.ranks} for node, held in one.holders}
    nobody: frozenset[int] = frozenset()
    copies = Counter(rank for name in names for rank in ranks.get(name, nobody))
    alone = _alone_whole(one.holders, frozenset(names))
    parts: dict[tuple[str, str], list[RankPart]] = {}
    for node, held in one.holders:
        inside = current.member(node.node_id) is not None
        wanted = [
            part for part in held.ranks if node is alone or copies[part.rank] < (COPIES if inside else 1)
        ]
        shares: dict[str, list[RankPart]] = {}
        if inside:
            shares = {keepers[node.node_id]: wanted} if node.node_id in keepers else {}
        elif node is alone:
            shares = dict.fromkeys(names[:COPIES], wanted)
        else:
            for part in wanted:
                shares.setdefault(names[part.rank % len(names)], []).append(part)
        for keeper, some in shares.items():
            has = ranks.get(keeper, nobody)
            if mine := [part for part in some if part.rank not in has]:
                parts[keeper, node.node_id] = mine
    return parts


def _alone_whole(holders: Sequence[tuple[Node, Held]], inside: frozenset[str]) -> Node | None:
    """The node that alone has all that ranks have alike, a member if one has it; None: more members have."""
    whole = sorted(
        (node.node_id not in inside, place) for place, (node, held) in enumerate(holders) if held.whole
    )
    enough = sum(not outside for outside, _ in whole) >= COPIES
    return holders[whole[0][1]][0] if whole and not enough else None


@cached
def _keepers(group: Group) -> Mapping[str, str]:
    """The keeper of each member; nobody's where there is only one."""
    members = group.active_round.members if group.active_round is not None else ()
    names, count = [member.node_id for member in members], len(members)
    units = [
        unit_of(group.spec, node) if (node := group.speaker(member)) is not None else None
        for member in members
    ]
    keepers: dict[str, str] = {}
    alike = None not in units and len(set(units)) == 1
    for place in reversed(range(2 * count if count > 1 else 0)):
        here, after = place % count, (place + 1) % count
        is_next = alike or units[here] is None or units[here] != units[after]
        keepers[names[here]] = names[after] if is_next else keepers.get(names[after], names[after])
    return keepers
