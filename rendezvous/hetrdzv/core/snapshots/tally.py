"""Which snapshot is complete while a round runs, counted along as its members say one after another what they hold.

It outlives any node: a sharded one counts once each part of a rank is on two nodes, as is what all ranks have alike; or
once the only member has all of it.

To look at all nodes at each message would take as long as there are nodes, each time.
"""

from hetrdzv.core.model import Group, Node
from hetrdzv.core.snapshots.complete import gathered_for, is_copied, stamp_of, usable
from hetrdzv.protocol.rooms.snapshots import Held, Holdings, SnapshotsReply, Stamp

COUNTED_ANEW_FOR = 64
"""All is counted anew at most this often while each node says something once."""

ALIKE = -1
"""What all ranks have alike, as if it were the part of a rank."""

_Key = tuple[int, int, int, bool]

MOST_TALLIES = 256
"""Of how many groups what their nodes hold is counted along; of others it is counted anew when it is needed."""


class Tally:
    """What the nodes of a group hold in a round.

    Args:
        group: as it is when the first of them says something.
    """

    def __init__(self, group: Group) -> None:
        self._origin = group.snapshots.origin if group.snapshots is not None else ""
        current = group.active_round
        members = [member.node_id for member in current.members] if current is not None else []
        self._members = frozenset(members)
        self._alone = members[0] if len(members) == 1 else None
        self._count(group)

    def _count(self, group: Group) -> None:
        self._complete: Stamp | None = None
        self._whole: set[_Key] = set()
        self._ranks: dict[_Key, dict[int, str]] = {}  # and a node that has their parts
        self._copied: dict[_Key, set[int]] = {}  # those that another one has, too
        self._values: dict[_Key, dict[str, str]] = {}
        self._differ: set[_Key] = set()
        self._known: dict[str, Holdings | None] = {}
        self._stale = False
        self._said = 0
        for one in gathered_for(group, self._origin, sorted(self._members), group.last_round):
            alone = any(node.node_id == self._alone and _has_all(held) for node, held in one.holders)
            if one.lack is None and not one.on_disk and (alone or is_copied(one)):
                self._complete = one.stamp
                break
        for node in group.nodes.values():  # that look has judged them all
            self._add(group, node)

    def _add(self, group: Group, node: Node) -> list[Held]:
        """Add what a node holds; returns what of it may make a snapshot complete."""
        news: list[Held] = []
        self._known[node.node_id] = node.snapshots
        for held in usable(group, node, self._origin, self._alone):
            if held.round <= group.last_round and not _is_newer(self._complete, stamp_of(held)):
                self._gather(held, node.node_id)
                news.append(held)
        return news

    def _gather(self, held: Held, node_id: str) -> None:
        key = held.step, held.round, held.world_size, held.sharded
        if held.whole:
            self._whole.add(key)
        values = self._values.setdefault(key, {})
        if any(values.setdefault(name, digest) != digest for name, digest in held.values.items()):
            self._differ.add(key)
            self._stale = self._stale or self._complete == stamp_of(held)
        if held.sharded:
            ranks, copied = self._ranks.setdefault(key, {}), self._copied.setdefault(key, set())
            parts = [part.rank for part in held.ranks if part.rank < held.world_size]
            for rank in (*parts, ALIKE) if held.whole else parts:
                if ranks.setdefault(rank, node_id) != node_id:
                    copied.add(rank)

    def _judge(self, held: Held) -> None:
        """See whether a snapshot is complete by now."""
        key = held.step, held.round, held.world_size, held.sharded
        alone = self._alone is not None and _has_all(held)
        everything = held.world_size + 1  # each rank's part, and what is alike
        if held.sharded and not alone and len(self._copied.get(key, ())) < everything:
            return
        if key in self._whole and key not in self._differ:
            self._complete = stamp_of(held)
            for known in [one for one in self._values if one[:2] < key[:2]]:
                self._whole.discard(known)
                self._ranks.pop(known, None)
                self._copied.pop(known, None)
                del self._values[known]

    def said(self, group: Group, node: Node) -> SnapshotsReply:
        """What all hold, now that a member has said what it does."""
        before = self._known.get(node.node_id)
        if before is not node.snapshots:
            if before is not None:
                self._stale = self._stale or self._has_dropped(before, node.snapshots)
            for held in self._add(group, node):
                self._judge(held)
        self._said += 1
        if self._stale and self._said > len(group.nodes) // COUNTED_ANEW_FOR:
            self._count(group)
        return SnapshotsReply(complete=None if self._stale else self._complete)

    def _has_dropped(self, before: Holdings, after: Holdings | None) -> bool:
        """Whether a node has less of the snapshot that is complete, or of one that is being gathered."""
        has = {stamp_of(held): held for held in after.held} if after is not None else {}
        return any(
            not _is_newer(self._complete, stamp_of(held)) and _is_less(has.get(stamp_of(held)), held)
            for held in before.held
        )


def _has_all(held: Held) -> bool:
    return held.whole and len({part.rank for part in held.ranks}) >= held.world_size


def _is_less(after: Held | None, before: Held) -> bool:
    if after is None or (before.whole and not after.whole):
        return True
    return after.ranks != before.ranks and not {*before.ranks} <= {*after.ranks}


def _is_newer(stamp: Stamp | None, than: Stamp | None) -> bool:
    if stamp is None or than is None:
        return stamp is not None
    return stamp.newness > than.newness


class Tallies:
    """What the nodes of each group hold in its running round; made anew from the groups whenever it is not there."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[tuple[str, int], Tally]] = {}  # by the job's own name and its round

    def said(self, group: Group, node: Node) -> SnapshotsReply:
        """What all nodes of a group hold, now that one of them has said something."""
        current = group.active_round
        origin = group.snapshots.origin if group.snapshots is not None else ""
        which = origin, current.number if current is not None else 0
        known = self._of.pop(group.group_id, None)
        tally = known[1] if known is not None and known[0] == which else Tally(group)
        self._of[group.group_id] = which, tally
        if len(self._of) > MOST_TALLIES:
            del self._of[next(iter(self._of))]
        return tally.said(group, node)
