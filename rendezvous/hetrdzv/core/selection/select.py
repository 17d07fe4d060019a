"""Which nodes form a round, or what is short of one: the answer that everything else reads.

`select` alone compares nodes with the bounds of a group. Forming rounds, timers, the sentence `why` and the reasons
of spares follow from what it answers.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from hetrdzv.core.budget import Budget
from hetrdzv.core.model import Node
from hetrdzv.core.selection import subset
from hetrdzv.core.selection.order import NO_ROUND, Former, by_gaps, in_order, may_be_master
from hetrdzv.core.selection.subset import Kind
from hetrdzv.core.selection.units import in_units
from hetrdzv.core.selection.worlds import Worlds
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key

Pairs = AbstractSet[tuple[str, str]]
"""(node, master) pairs of node ids: the first could not reach the second's port."""

TRIED_ANYWAY = 4
"""How many masters are tried even if the budget of work is spent."""

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
        suspects, full, smaller: as `Selection` has them.
    """

    lack: Lack
    missing: int = 0
    never: bool = False
    final: bool = False
    suspects: tuple[Node, ...] = ()
    full: bool = False
    smaller: bool = False


def select(
    spec: GroupSpec,
    ready: Sequence[Node],
    seats: Sequence[str] = (),
    last: Former = NO_ROUND,
    unreachable: Pairs = frozenset(),
    failed_masters: int = 0,
    used_last: AbstractSet[str] = frozenset(),
    budget: Budget | None = None,
) -> Selection | Shortfall:
    """Choose the nodes of the next round.

    Survivors of the last round come first, then nodes that have a place, then those that best fill its gaps, then
    natural order; where world sizes are bounded, the best set as `best_set` says. One that may be master is always
    among them. Where no master serves all of those who would be taken, the largest part of all that one serves is
    taken, if it is large enough.

    Args:
        ready: the nodes to choose from.
        seats: places of the past, in rank order.
        last: the last round, or none.
        unreachable: pairs among all nodes of the group.
        failed_masters: how many masters in a row no node could reach.
        used_last: node ids before which all others are taken.
        budget: what is left of the work that all searches share; None: `MOST_WORK`. Beyond it a world is looked for
            nearby, of masters only the first `TRIED_ANYWAY` are tried.
    """
    kind = _Sized if spec.sized else _Counted
    budget = budget if budget is not None else Budget(subset.MOST_WORK)
    return kind(spec, ready, seats, last, used_last, budget).select(unreachable, failed_masters)


class _Choice:
    """A selection in progress."""

    def __init__(
        self,
        spec: GroupSpec,
        ready: Sequence[Node],
        seats: Sequence[str],
        last: Former,
        used_last: AbstractSet[str],
        budget: Budget,
    ) -> None:
        self._spec = spec
        self._ready = ready
        self._seats = seats
        self._last = last
        self._used_last = used_last
        self._budget = budget

    @cached_property
    def _by_id(self) -> Mapping[str, Node]:
        return {node.node_id: node for node in self._ready}

    @cached_property
    def _seated(self) -> AbstractSet[str]:
        return frozenset(self._seats)

    @cached_property
    def _gaps(self) -> Mapping[str, int]:
        """The nodes that fill gaps, with their ranks: 0 fits best."""
        return by_gaps(self._spec, self._by_id, self._seats, self._last, self._used_last)

    @cached_property
    def _allowed(self) -> AbstractSet[str]:
        """Who may be master."""
        return {node.node_id for node in self._ready if may_be_master(self._spec, node)}

    @property
    def _suspects(self) -> tuple[Node, ...]:
        return tuple(node for node in self._ready if node.cut_at is not None)

    def _masters_of(self, chosen: Iterable[str], unreachable: Pairs) -> tuple[list[str], str | None]:
        """Those of the chosen nodes that may be master, in order, and the first of them that all the others reach."""
        taken = frozenset(chosen)
        ordered, _ = in_order(
            self._spec, [self._by_id[node_id] for node_id in taken], self._seats, self._last
        )
        masters = [node.node_id for node in ordered if node.node_id in self._allowed]
        shunned = {master for node_id, master in unreachable if node_id in taken}
        return masters, next((node_id for node_id in masters if node_id not in shunned), None)


class _Counted(_Choice):
    """A selection where only the number of nodes counts."""

    def select(self, unreachable: Pairs, failed_masters: int) -> Selection | Shortfall:
        """As the function of that name."""
        spec, ready, most = self._spec, len(self._ready), self._spec.max_nodes
        if ready < spec.min_nodes:
            return Shortfall(lack=Lack.NODES, missing=spec.min_nodes - ready)
        suspects = self._suspects
        full = most is not None and ready >= most
        smaller = ready < len(self._last.slots)
        enough = most is None or ready <= most
        if spec.master is not None and not self._allowed:
            return Shortfall(lack=Lack.ALLOWED_MASTER, suspects=suspects, full=full, smaller=smaller)
        if not unreachable and enough:
            return Selection(
                nodes=tuple(self._ready), master=None, suspects=suspects, full=full, smaller=smaller
            )
        if failed_masters >= MASTERS_TRIED:
            return Shortfall(lack=Lack.MASTER, final=True, suspects=suspects, full=full, smaller=smaller)
        preferred = self._by_preference()
        chosen, master = preferred[:most], None
        if spec.master is not None and self._allowed.isdisjoint(chosen):
            chosen[-1] = next(node_id for node_id in preferred if node_id in self._allowed)
        if unreachable:
            chosen, master = self._served(chosen, preferred, unreachable)
            if len(chosen) < spec.min_nodes:
                final = self._by_id.keys() >= self._last.slots.keys()
                return Shortfall(lack=Lack.MASTER, final=final, suspects=suspects, full=full, smaller=smaller)
        nodes = tuple(self._by_id[node_id] for node_id in chosen)
        return Selection(nodes=nodes, master=master, suspects=suspects, full=full, smaller=smaller)

    def _by_preference(self) -> list[str]:
        """The order in which a round takes nodes: not taken last, then survivors, nodes with a place, gap fillers."""
        none = len(self._gaps)
        return sorted(
            self._by_id,
            key=lambda node_id: (
                node_id in self._used_last,
                node_id not in self._last.slots,
                node_id not in self._seated,
                self._gaps.get(node_id, none),
                natural_key(node_id),
            ),
        )

    def _served(
        self, chosen: Sequence[str], preferred: Sequence[str], unreachable: Pairs
    ) -> tuple[list[str], str]:
        """A master and the nodes that can reach it: all that were chosen, or as many of them as possible."""
        masters, master = self._masters_of(chosen, unreachable)
        if master is not None:
            return list(chosen), master
        cut_off = _cut_off(frozenset(preferred), unreachable)
        most = self._spec.max_nodes
        limit = len(preferred) if most is None else most
        taken = frozenset(chosen)
        others = [node_id for node_id in preferred if node_id in self._allowed and node_id not in taken]
        # of equals the earlier master
        master = max(
            [*masters, *others],
            key=lambda node_id: min(limit, len(preferred) - len(cut_off.get(node_id, ()))),
        )
        without = cut_off.get(master, frozenset())
        return [master, *(each for each in preferred if each != master and each not in without)][
            :most
        ], master


class _Sized(_Choice):
    """A selection where not every world size is allowed."""

    @cached_property
    def _worlds(self) -> Worlds:
        return Worlds.of(self._spec)

    def select(self, unreachable: Pairs, failed_masters: int) -> Selection | Shortfall:
        """As the function of that name."""
        worlds, suspects = self._worlds, self._suspects
        if len(self._ready) < worlds.min_nodes:
            return Shortfall(lack=Lack.NODES, missing=worlds.min_nodes - len(self._ready))
        slots = sum(node.slots for node in self._ready)
        everybody = worlds.allows(slots) and len(self._ready) <= (worlds.max_nodes or len(self._ready))
        chosen = list(self._by_id) if everybody else None
        if chosen is None and slots >= worlds.smallest:
            chosen = self._best(frozenset())
        if chosen is None:
            never = worlds.never(node.slots for node in self._ready)
            return Shortfall(lack=Lack.WORLD, missing=max(0, worlds.smallest - slots), never=never)
        if self._spec.master is not None and self._allowed.isdisjoint(chosen):
            chosen = self._best_with_master()
            if chosen is None:
                return Shortfall(lack=Lack.ALLOWED_MASTER, suspects=suspects)
        master = None
        if unreachable:
            served = self._served(chosen, unreachable) if failed_masters < MASTERS_TRIED else None
            if served is None:
                final = failed_masters >= MASTERS_TRIED or self._by_id.keys() >= self._last.slots.keys()
                return Shortfall(lack=Lack.MASTER, final=final, suspects=suspects)
            chosen, master = served
        nodes = tuple(self._by_id[node_id] for node_id in chosen)
        world = self._size(chosen)
        full = world == worlds.largest or len(nodes) == worlds.max_nodes
        if self._spec.unit is not None:  # more of a unit may be on its way, and then another set is the best
            full = False
        smaller = world < sum(self._last.slots.values())
        return Selection(nodes=nodes, master=master, suspects=suspects, full=full, smaller=smaller)

    def _size(self, node_ids: Iterable[str]) -> int:
        return sum(self._by_id[node_id].slots for node_id in node_ids)

    @cached_property
    def _units(self) -> Mapping[str, Sequence[Node]] | None:
        """Units by the node id of their first node; None: every node is taken by itself."""
        if self._spec.unit is None:
            return None
        return {unit[0].node_id: unit for unit in in_units(self._spec, self._ready)}

    @cached_property
    def _unit_of(self) -> Mapping[str, str]:
        return {node.node_id: name for name, unit in (self._units or {}).items() for node in unit}

    def _item(self, node_id: str) -> str:
        """The name under which a node is taken: its own, or its unit's."""
        return self._unit_of.get(node_id, node_id)

    def _kind(self, item: str) -> Kind:
        if self._units is None:
            return self._kind_of(self._by_id[item])
        kinds = [self._kind_of(node) for node in self._units[item]]
        last, moves, fresh, slots, nodes = zip(*kinds, strict=True)
        return Kind(any(last), any(moves), any(fresh), sum(slots), sum(nodes))

    def _kind_of(self, node: Node) -> Kind:
        name = node.node_id
        return Kind(
            name in self._used_last, name not in self._last.slots, name not in self._seated, node.slots
        )

    def _best(self, without: AbstractSet[str], master: str | None = None) -> list[str] | None:
        """The best set of nodes.

        Args:
            without: node ids that cannot be in it.
            master: a node id that must be.
        """
        forced = None if master is None else self._item(master)
        excluded = {self._item(node_id) for node_id in without if node_id in self._by_id}
        if forced in excluded:
            return None
        kinds = self._kinds(excluded if forced is None else excluded | {forced})
        if forced is None:
            best = subset.best_set(kinds, self._worlds, budget=self._budget)
        else:
            base = self._kind(forced)
            best = subset.best_set(kinds, self._worlds, (base.slots, base.nodes), self._budget)
        if best is None:
            return None
        taken = best if forced is None else [forced, *best]
        return (
            taken if self._units is None else [node.node_id for item in taken for node in self._units[item]]
        )

    def _kinds(self, excluded: AbstractSet[str]) -> dict[Kind, Sequence[str]]:
        """What may be taken, by kind."""
        kinds: dict[Kind, Sequence[str]] = {}
        if self._units is not None:
            by_kind: dict[Kind, list[str]] = {}
            for item in self._units.keys() - excluded:
                by_kind.setdefault(self._kind(item), []).append(item)
            return {**by_kind}
        by_slots: dict[int, list[str]] = {}
        for node in self._ready:
            by_slots.setdefault(node.slots, []).append(node.node_id)
        for slots, node_ids in by_slots.items():
            usable = [node_id for node_id in node_ids if node_id not in excluded] if excluded else node_ids
            for last, some in _split(usable, self._used_last):
                for stays, part in _split(some, self._last.slots):
                    for seated, alike in _split(part, self._seated):
                        kinds[Kind(last, not stays, not seated, slots)] = alike
        return kinds

    def _best_with_master(self) -> list[str] | None:
        """The best set with a node that may be master; of possible masters of one kind only the first is tried."""
        first: dict[Kind, str] = {}
        for item in sorted({self._item(node_id) for node_id in self._allowed}, key=natural_key):
            first.setdefault(self._kind(item), item)
        sets = []
        for tried, (_, item) in enumerate(sorted(first.items(), key=lambda entry: entry[0][:3])):
            if not self._may_try(tried):
                break
            if (best := self._best(frozenset(), item)) is not None:
                sets.append(best)
        return min(sets, key=self._cost, default=None)

    def _may_try(self, tried: int) -> bool:
        """Whether to try another master, which costs as much work as looking at all nodes."""
        return self._budget.allows(8 * len(self._ready)) or tried < TRIED_ANYWAY

    def _cost(self, chosen: Sequence[str]) -> tuple[object, ...]:
        """What makes a set better than another, the most important first (less is better); as `best_set` has it."""
        kinds = [self._kind(item) for item in {self._item(node_id) for node_id in chosen}]
        worse = ((kind.last * kind.slots, kind.moves * kind.slots, kind.fresh * kind.slots) for kind in kinds)
        return (-self._size(chosen), *map(sum, zip(*worse, strict=True)), len(chosen))

    def _served(self, chosen: Sequence[str], unreachable: Pairs) -> tuple[list[str], str] | None:
        """A master and the nodes that can reach it: all that were chosen, or the largest world possible."""
        masters, master = self._masters_of(chosen, unreachable)
        if master is not None:
            return list(chosen), master
        cut_off = _cut_off(self._by_id, unreachable)
        others = sorted(self._allowed - frozenset(chosen), key=natural_key)
        best: tuple[list[str], str] | None = None
        slots, largest, tried = self._size(self._by_id), 0, 0
        for master in (*masters, *others):  # of equals the earlier one
            without = cut_off.get(master, frozenset())
            if (self._worlds.up_to(slots - self._size(without)) or 0) <= largest:
                continue
            if not self._may_try(tried):
                break
            tried += 1
            served = self._best(without, master)
            if served is not None and (world := self._size(served)) > largest:
                best, largest = (served, master), world
        return best


def _split(names: Sequence[str], by: Collection[str]) -> Iterable[tuple[bool, Sequence[str]]]:
    """The names in a set and those that are not, both in their order."""
    inside = [name for name in names if name in by] if by else ()
    outside = [name for name in names if name not in by] if inside else names
    return (True, inside), (False, outside)


def _cut_off(among: Container[str], unreachable: Pairs) -> Mapping[str, AbstractSet[str]]:
    """Which of some nodes cannot reach a master, by master."""
    unable: dict[str, set[str]] = {}
    for node_id, master in unreachable:
        if node_id in among:
            unable.setdefault(master, set()).add(node_id)
    return unable


# -- the same of a group -------------------------------------------------------------------------------------
