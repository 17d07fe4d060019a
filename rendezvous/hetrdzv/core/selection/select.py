"""Which nodes form a round, or what is short of one: the answer that everything else reads.

`select` alone compares nodes with the bounds of a group. Forming rounds, timers, the sentence `why` and the reasons
of spares follow from what it answers.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from hetrdzv.core.model import Node
from hetrdzv.core.selection.best_set import Item, best_set
from hetrdzv.core.selection.order import NO_ROUND, Former, by_gaps, in_order, may_be_master
from hetrdzv.core.selection.units import in_units
from hetrdzv.core.selection.worlds import Worlds
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key

Pairs = AbstractSet[tuple[str, str]]
"""(node, master) pairs of node ids: the first could not reach the second's port."""

MOST_TRIED = 8
"""For how many masters the best set of nodes that reach it is looked for."""

MASTERS_TRIED = 3
"""After this many masters in a row that nobody reached, a group gives up: a firewall keeps all of them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Nodes that can form a round.

    Attributes:
        nodes: who is in it, in no particular order (order.py has that).
        master: the node id that must be master, since not everybody reaches the first in order; None: the first that
            may be.
        suspects: ready nodes that were cut off and not heard since: nothing forms before that is settled.
        full: whether no further node could be taken.
        smaller: whether the round has fewer nodes, or slots where those are bounded, than the last one had.
    """

    nodes: tuple[Node, ...]
    master: str | None
    suspects: tuple[Node, ...]
    full: bool
    smaller: bool

    @property
    def world_size(self) -> int:
        """How many workers the round has."""
        return sum(node.slots for node in self.nodes)


class Lack(StrEnum):
    """What a round is short of."""

    NODES = "nodes"
    WORLD = "world"
    MASTER = "master"
    ALLOWED_MASTER = "allowed_master"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why no round can form now.

    Attributes:
        lack: what is missing.
        missing: how many nodes more are needed, or how many slots for the smallest world; 0 where it is a master, or
            where slots are enough, but no set of nodes makes a world.
        never: whether no number of nodes like these would make a world size that is allowed.
        final: whether more nodes would not help: nobody who is missing could serve as master.
        suspects: as `Selection` has them.
    """

    lack: Lack
    missing: int = 0
    never: bool = False
    final: bool = False
    suspects: tuple[Node, ...] = ()


def select(
    spec: GroupSpec,
    ready: Sequence[Node],
    seats: Sequence[str] = (),
    last: Former = NO_ROUND,
    unreachable: Pairs = frozenset(),
    failed_masters: int = 0,
    used_last: AbstractSet[str] = frozenset(),
) -> Selection | Shortfall:
    """Choose the nodes of the next round: the most, or, where world sizes are bounded, those of the largest world.

    Preferred are survivors of the last round, then nodes that have a place, then those that best fill its gaps, then
    (where world sizes are bounded) those with more slots, then natural order. One that may be master is always among
    them. Where no master serves all of those who would be taken, the most that one serves are, if they are enough.

    Args:
        ready: the nodes to choose from.
        seats: places of the past, in rank order.
        last: the last round, or none.
        unreachable: pairs among all nodes of the group.
        failed_masters: how many masters in a row no node could reach.
        used_last: node ids before which all others are taken.
    """
    if len(ready) < spec.min_nodes:
        return Shortfall(lack=Lack.NODES, missing=spec.min_nodes - len(ready))
    suspects = tuple(node for node in ready if node.cut_at is not None)
    choice = _Choice(spec, ready, seats, last, used_last)
    allowed = None if spec.master is None else {node.node_id for node in ready if may_be_master(spec, node)}
    chosen = choice.best(allowed)
    if chosen is None:
        if allowed is not None and choice.best(None) is not None:
            return Shortfall(lack=Lack.ALLOWED_MASTER, suspects=suspects)
        slots = sum(node.slots for node in ready)
        missing = max(0, choice.worlds.smallest - slots)
        never = choice.worlds.never({node.slots for node in ready})
        return Shortfall(lack=Lack.WORLD, missing=missing, never=never)
    master = None
    if unreachable:
        served = choice.served(chosen, unreachable) if failed_masters < MASTERS_TRIED else None
        if served is None:
            here = {node.node_id for node in ready}
            final = failed_masters >= MASTERS_TRIED or here >= last.slots.keys()
            return Shortfall(lack=Lack.MASTER, final=final, suspects=suspects)
        chosen, master = served
    size = choice.size(chosen)
    # more of a unit may be on its way, and then another set is the best
    full = spec.unit is None and (size == choice.worlds.largest or len(chosen) == spec.max_nodes)
    smaller = size < (sum(last.slots.values()) if spec.sized else len(last.slots))
    return Selection(nodes=tuple(chosen), master=master, suspects=suspects, full=full, smaller=smaller)


class _Choice:
    """The choice among the nodes that are ready. Where world sizes are not bounded, every node counts as one slot."""

    def __init__(
        self,
        spec: GroupSpec,
        ready: Sequence[Node],
        seats: Sequence[str],
        last: Former,
        used_last: AbstractSet[str],
    ) -> None:
        self._spec = spec
        self._ready = ready
        self._seats = seats
        self._last = last
        self._used_last = used_last
        self._known: list[tuple[Item, tuple[Node, ...]]] | None = None
        self.worlds = Worlds.of(spec)
        if not spec.sized:
            self.worlds = Worlds(
                least=1,
                most=spec.max_nodes,
                multiple=1,
                min_nodes=spec.min_nodes,
                max_nodes=spec.max_nodes,
            )

    def size(self, nodes: Iterable[Node]) -> int:
        """How many slots nodes have, or how many nodes there are."""
        return sum(self._slots(node) for node in nodes)

    def _slots(self, node: Node) -> int:
        return node.slots if self._spec.sized else 1

    def best(
        self, masters: AbstractSet[str] | None, without: AbstractSet[str] = frozenset()
    ) -> list[Node] | None:
        """The best set of nodes.

        Args:
            masters: node ids, one of which must be in it; None: any will do.
            without: node ids that cannot be.
        """
        everybody = self.worlds.allows(self.size(self._ready)) and (
            self._spec.max_nodes is None or len(self._ready) <= self._spec.max_nodes
        )
        if everybody and not without and (masters is None or masters):
            return list(self._ready)
        units = {
            item.name: (item, nodes)
            for item, nodes in self._items
            if not without or all(node.node_id not in without for node in nodes)
        }
        leaders = None
        if masters is not None:
            leaders = {
                name for name, (_, nodes) in units.items() if any(node.node_id in masters for node in nodes)
            }
        found = best_set([item for item, _ in units.values()], self.worlds, leaders)
        return None if found is None else [node for item in found for node in units[item.name][1]]

    @property
    def _items(self) -> list[tuple[Item, tuple[Node, ...]]]:
        """What is taken as a whole, the preferred first."""
        if self._known is None:
            by_id = {node.node_id: node for node in self._ready}
            gaps = by_gaps(self._spec, by_id, self._seats, self._last, self._used_last)
            seated = frozenset(self._seats)

            def preference(unit: tuple[Node, ...]) -> tuple[object, ...]:
                names = [node.node_id for node in unit]
                return (
                    not self._used_last.isdisjoint(names),
                    any(name not in self._last.slots for name in names),
                    any(name not in seated for name in names),
                    min(gaps.get(name, len(gaps)) for name in names),
                    -self.size(unit) / len(unit),
                    natural_key(names[0]),
                )

            units = sorted(in_units(self._spec, self._ready), key=preference)
            self._known = [(Item(unit[0].node_id, self.size(unit), len(unit)), unit) for unit in units]
        return self._known

    def served(self, chosen: list[Node], unreachable: Pairs) -> tuple[list[Node], str] | None:
        """A master and the nodes that can reach it: all that were chosen, or the most that one serves."""
        ordered, _ = in_order(self._spec, chosen, self._seats, self._last)
        taken = {node.node_id for node in chosen}
        shunned = {master for node_id, master in unreachable if node_id in taken}
        masters = [node.node_id for node in ordered if may_be_master(self._spec, node)]
        master = next((node_id for node_id in masters if node_id not in shunned), None)
        if master is not None:
            return chosen, master
        sizes = {node.node_id: self._slots(node) for node in self._ready}
        cut_off = _cut_off(sizes, unreachable)
        masters += [
            node.node_id
            for _, unit in self._items
            for node in unit
            if node.node_id not in taken and may_be_master(self._spec, node)
        ]
        total = sum(sizes.values())
        most = {
            master: self.worlds.up_to(total - sum(sizes[name] for name in cut_off.get(master, ()))) or 0
            for master in masters
        }
        masters.sort(key=lambda master: -most[master])  # of equals the earlier one
        best: tuple[list[Node], str] | None = None
        largest = 0
        for master in masters[:MOST_TRIED]:
            if most[master] <= largest:
                break
            found = self.best({master}, cut_off.get(master, frozenset()))
            if found is not None and (size := self.size(found)) > largest:
                best, largest = (found, master), size
        return best


def _cut_off(among: Container[str], unreachable: Pairs) -> Mapping[str, AbstractSet[str]]:
    """Which of some nodes cannot reach a master, by master."""
    unable: dict[str, set[str]] = {}
    for node_id, master in unreachable:
        if node_id in among:
            unable.setdefault(master, set()).add(node_id)
    return unable
