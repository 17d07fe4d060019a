"""The best set of unlike nodes: the largest world size that is allowed, and of those the set that costs least.

Nodes that are alike (`Kind`) differ in nothing but their names. Every node adds its slots to the world and a number
to the cost, so the cheapest set of each sum follows from those of smaller sums (a knapsack).

Of many nodes few need to be tried. Take nodes in the order of preference until the world is full, and call D the most
slots of a node. A best set leaves out fewer than D of those nodes of each kind, and has fewer than 2 D others: of more
than that, some that it leaves out and some others that it has would have equal slots in all, since among any s numbers
the sum of some is a multiple of s; they could change places, and the set would be better.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from hetrdzv.core.budget import Budget, Spent
from hetrdzv.core.selection.worlds import SUMS_AT_ONCE, Worlds
from hetrdzv.protocol.texts.ids import natural_key

MOST_WORK = 1 << 18
"""How much work all searches of a selection may do together (`Budget`) before a nearby set is good enough."""

SPARSE = 16
"""A search that might look at more than this many times the sums it may is not begun."""

ROUGH_SUMS = 1 << 22
"""How many sums, each a bit for each kind, a search looks at that is content with a set nearby."""

ROUGHLY = 4
"""How many nodes of each kind, more or fewer than in the order of preference, such a search tries."""


class Kind(NamedTuple):
    """What nodes, or items of several nodes, have in common.

    Attributes:
        last: they are taken last.
        moves: they were not in the last round.
        fresh: they have no place from the past.
        slots: of each.
        nodes: of each.
    """

    last: bool
    moves: bool
    fresh: bool
    slots: int
    nodes: int = 1


Names = Mapping[Kind, Sequence[str]]
"""The names of the nodes of each kind."""


def best_set(
    names: Names, worlds: Worlds, base: tuple[int, int] = (0, 0), budget: Budget | None = None
) -> list[str] | None:
    """The names of the best set of nodes; None where no set makes a world.

    Best is the largest world; then the fewest ranks on nodes that are taken last, on nodes that were not in the last
    round, on nodes without a place from the past; then the fewest nodes; then natural order. That is exact within
    the budget; beyond, the set makes a world, but perhaps not the largest, and a world that few sets make is missed.

    Args:
        names: of the nodes to choose from.
        base: slots and nodes that are in the set anyway; they count, but are not among the names.
    """
    if worlds.max_nodes is not None and base[1] > worlds.max_nodes:
        return None
    budget = budget if budget is not None else Budget(MOST_WORK)
    search = _Search(names, worlds, base, budget)
    best = search.ignoring_nodes()
    if best is None or search.is_allowed(best):
        return None if best is None else best.names
    if search.is_small():
        with suppress(Spent):
            exact = search.with_nodes()
            return None if exact is None else exact.names
    most = None if worlds.max_nodes is None else worlds.max_nodes - base[1]
    if most is not None and best.nodes > most:
        search = _Search(_largest_nodes(names, most), worlds, base, budget)
    else:
        search = _Search(names, worlds, base, budget, many=True)
    best = search.ignoring_nodes()
    return best.names if best is not None and search.is_allowed(best) else None


def _largest_nodes(names: Names, most: int) -> Names:
    """The nodes with the most slots, as many as the bounds allow."""
    largest: dict[Kind, Sequence[str]] = {}
    for kind in sorted(names, key=lambda kind: (-kind.slots / kind.nodes, kind)):
        largest[kind] = heapq.nsmallest(most // kind.nodes, names[kind], natural_key)
        most -= kind.nodes * len(largest[kind])
    return largest


@dataclass(frozen=True, slots=True)
class _Found:
    """A set that makes a world."""

    names: list[str]
    nodes: int


class _Batch(NamedTuple):
    """Nodes of one kind: those that are in the set, and those that may be, in natural order.

    Attributes:
        expected: how many of the undecided ones are in the set if nodes are taken in the order of preference.
    """

    kind: Kind
    taken: Collection[str]
    undecided: Sequence[str]
    expected: int


class _Search:
    """A search among the nodes of one selection. Sums are in units: the greatest common divisor of all slots.

    Args:
        many: prefer more nodes instead of fewer.
    """

    def __init__(
        self, names: Names, worlds: Worlds, base: tuple[int, int], budget: Budget, *, many: bool = False
    ) -> None:
        self._budget = budget
        self._sign = -1 if many else 1
        self._names = {kind: names[kind] for kind in sorted(names, key=self._preference) if names[kind]}
        self._worlds = worlds
        self._base_slots, base_nodes = base
        self._fewest = worlds.min_nodes - base_nodes
        self._nodes = sum(kind.nodes * len(known) for kind, known in self._names.items())
        self._most = (
            self._nodes if worlds.max_nodes is None else min(self._nodes, worlds.max_nodes - base_nodes)
        )
        self._unit = gcd(*(kind.slots for kind in self._names)) or 1
        self._total = sum(self._size(kind) * len(known) for kind, known in self._names.items())
        self._room = min(self._total, self._most_by_nodes())

    def _preference(self, kind: Kind) -> tuple[bool, bool, bool, float]:
        return kind.last, kind.moves, kind.fresh, self._sign * kind.nodes / kind.slots

    def _size(self, kind: Kind) -> int:
        return kind.slots // self._unit

    def _most_by_nodes(self) -> int:
        """The largest sum of the allowed number of nodes, if items could be divided."""
        left, total = self._most, 0
        for kind in sorted(self._names, key=lambda kind: -kind.slots / kind.nodes):
            count = min(len(self._names[kind]), -(-left // kind.nodes))
            total += count * self._size(kind)
            left = max(0, left - count * kind.nodes)
        return total

    def is_allowed(self, chosen: _Found) -> bool:
        """Whether the number of nodes in a set is allowed."""
        return self._fewest <= chosen.nodes <= self._most

    # -- without regard to the number of nodes -------------------------------------------------------------------

    def ignoring_nodes(self) -> _Found | None:
        """The best set, however many nodes it has."""
        target = next(self._targets(), None)
        if target is None:
            return None
        if target == self._total:
            return _Found([name for known in self._names.values() for name in known], self._nodes)
        near = max(self._size(kind) for kind in self._names)
        try:
            batches = self._near(target, near)
            if self._largest(batches) != target:
                every = [_Batch(kind, (), known, 0) for kind, known in self._names.items()]
                if (lower := self._largest(every)) is None:
                    return None
                target, batches = lower, self._near(lower, near)
            return self._cheapest(batches, target, near * near + near)
        except Spent:
            return self._roughly(target, near)

    def _roughly(self, target: int, largest: int) -> _Found | None:
        """The largest world of at most this sum that is found without much work; the last kinds are taken sparingly."""
        batches = self._near(target, largest, reached=False)
        if len(batches) * self._undecided(batches) > ROUGH_SUMS:
            batches = self._fewer(self._near(target, min(largest, ROUGHLY), reached=False))
        known = [1]  # which sums the undecided nodes of the first kinds make
        for batch in batches:
            known.append(_with_copies(known[-1], self._size(batch.kind), len(batch.undecided)))
        nearby = self._largest_of(known[-1], self._taken(batches))
        if nearby is None:
            return None
        names: list[str] = []
        nodes, left = 0, nearby - self._taken(batches)
        for batch, before in zip(reversed(batches), reversed(known[:-1]), strict=True):
            count = 0
            if batch.undecided:
                size, sums = self._size(batch.kind), _Sums(before)
                count = next(count for count in range(left // size + 1) if left - count * size in sums)
                left -= count * size
            names += [*batch.taken, *batch.undecided[:count]]
            nodes += batch.kind.nodes * (len(batch.taken) + count)
        return _Found(names, nodes)

    def _fewer(self, batches: Sequence[_Batch]) -> list[_Batch]:
        """Batches with undecided nodes of few kinds: those with which the world becomes full."""
        edge = next(
            (at for at, batch in enumerate(batches) if batch.expected < len(batch.undecided)), len(batches)
        )
        fewer, kinds, sums = list(batches), 0, 0
        for at in sorted(range(len(batches)), key=lambda at: abs(at - edge)):
            batch = batches[at]
            more = sums + self._size(batch.kind) * len(batch.undecided)
            if (kinds + 1) * more <= ROUGH_SUMS:
                kinds, sums = kinds + 1, more
            else:
                expected = batch.undecided[: batch.expected]
                fewer[at] = _Batch(batch.kind, [*batch.taken, *expected], (), 0)
        return fewer

    def _targets(self) -> Iterator[int]:
        """The sums that make a world, the largest first."""
        most = self._base_slots + self._room * self._unit
        for world in self._worlds.downward(most, self._base_slots, self._unit):
            if world < self._base_slots:
                break
            yield (world - self._base_slots) // self._unit

    def _largest(self, batches: Sequence[_Batch]) -> int | None:
        """The sum of the largest world that the undecided nodes make with those that are taken, or None.

        Raises:
            Spent: that is too much work.
        """
        bits = 1
        for size, count in self._counts(batches).items():
            last = bits.bit_length() + size * count
            self._budget.spend(count.bit_length() * (1 + last // SUMS_AT_ONCE))
            bits = _with_copies(bits, size, count)
        return self._largest_of(bits, self._taken(batches))

    def _largest_of(self, bits: int, taken: int) -> int | None:
        """The largest sum that makes a world; bit n: n and what is taken anyway is a sum."""
        sums = _Sums(bits)
        return next((target for target in self._targets() if target - taken in sums), None)

    def _near(self, target: int, near: int, *, reached: bool = True) -> list[_Batch]:
        """All nodes, of each kind those undecided that may be in a best set or not.

        Args:
            near: the most slots of a node, or less for a smaller search.
            reached: whether a set has this very sum, not a lower one.
        """
        batches, left = [], target
        full: dict[Kind, int] = {}
        for kind, known in self._names.items():
            full[kind] = min(len(known), left // self._size(kind))
            left = left - full[kind] * self._size(kind) if full[kind] == len(known) else 0
        inside = sum(self._size(kind) * count for kind, count in full.items())
        for kind, known in self._names.items():
            size, expected = self._size(kind), full[kind]
            # what is left out makes room for others, of which there are only so many, and the other way round
            room = (self._total - inside) // size if reached else near
            first = max(0, expected - min(near, room))
            end = min(len(known), expected + min(2 * near, target // size))
            taken: Collection[str] = ()
            if first == len(known):
                taken, undecided = known, []
            elif first == 0:
                undecided = heapq.nsmallest(end, known, natural_key)
            elif end == len(known):
                undecided = heapq.nlargest(end - first, reversed(known), natural_key)[::-1]
                taken = frozenset(known).difference(undecided)
            else:
                ordered = sorted(known, key=natural_key)
                taken, undecided = ordered[:first], ordered[first:end]
            batches.append(_Batch(kind, taken, undecided, expected - first))
        return batches

    def _taken(self, batches: Iterable[_Batch]) -> int:
        return sum(self._size(batch.kind) * len(batch.taken) for batch in batches)

    def _undecided(self, batches: Iterable[_Batch]) -> int:
        return sum(self._size(batch.kind) * len(batch.undecided) for batch in batches)

    def _counts(self, batches: Iterable[_Batch]) -> dict[int, int]:
        """How many undecided nodes there are of each size."""
        counts: dict[int, int] = {}
        for batch in batches:
            size = self._size(batch.kind)
            counts[size] = counts.get(size, 0) + len(batch.undecided)
        return counts

    def _cheapest(self, batches: Sequence[_Batch], target: int, apart: int) -> _Found | None:
        """The cheapest set of a sum.

        Args:
            apart: how far a best set may be from nodes taken in the order of preference, at each kind.

        Raises:
            Spent: that is too much work.
        """
        sums = min(self._undecided(batches), apart)
        if sum(len(batch.undecided) for batch in batches) * sums > SPARSE * self._budget.left:
            raise Spent
        costs = _Costs(batches, self._total * self._unit + self._nodes + 1, self._sign)
        rest, at = self._undecided(batches), self._taken(batches)
        best = {at: 0}
        for batch in batches:
            size = self._size(batch.kind)
            for name in batch.undecided:
                self._budget.spend(len(best))
                best = _with(best, size, costs.of(batch.kind, name), target)
            rest -= size * len(batch.undecided)
            at += size * batch.expected
            low, high = max(target - rest, at - apart), at + apart
            best = {reached: cost for reached, cost in best.items() if low <= reached <= high}
        return None if target not in best else costs.found(best[target])

    # -- with bounds in nodes ------------------------------------------------------------------------------------

    def is_small(self) -> bool:
        """Whether all sums and numbers of nodes are few enough to try looking at them."""
        count = sum(min(len(known), self._most) for known in self._names.values())
        return count * self._room * self._most <= SPARSE * self._budget.left

    def with_nodes(self) -> _Found | None:
        """The best set among those with neither too few nodes nor too many.

        Raises:
            Spent: that is too much work.
        """
        largest = self._worlds.up_to(self._base_slots + self._room * self._unit)
        if largest is None:
            return None
        room = (largest - self._base_slots) // self._unit
        batches = [
            _Batch(kind, (), heapq.nsmallest(self._most // kind.nodes, known, natural_key), 0)
            for kind, known in self._names.items()
        ]
        costs = _Costs(batches, self._total * self._unit + self._nodes + 1, self._sign)
        stride = self._nodes + 1  # a sum and its number of nodes are one key
        best = {0: 0}
        for batch in batches:
            step = self._size(batch.kind) * stride + batch.kind.nodes
            for name in batch.undecided:
                self._budget.spend(2 * len(best))
                best = _with(best, step, costs.of(batch.kind, name), room * stride + self._most)
                best = {key: cost for key, cost in best.items() if key % stride <= self._most}
        allowed = [
            (key // stride, -cost)
            for key, cost in best.items()
            if key % stride >= self._fewest
            and self._worlds.allows(self._base_slots + key // stride * self._unit)
        ]
        return costs.found(-max(allowed)[1]) if allowed else None


class _Sums:
    """Numbers as the bits of a large one: looking one up copies nothing."""

    def __init__(self, bits: int) -> None:
        self._bytes = bits.to_bytes(bits.bit_length() // 8 + 1, "little")

    def __contains__(self, number: int) -> bool:
        return 0 <= number >> 3 < len(self._bytes) and self._bytes[number >> 3] >> (number & 7) & 1 == 1


def _with_copies(bits: int, size: int, count: int) -> int:
    """The sums that can be had with so many more nodes of a size; bit n: n is a sum."""
    step = 1
    while count:
        step = min(step, count)
        bits |= bits << size * step
        count -= step
        step *= 2
    return bits


def _with(best: Mapping[int, int], step: int, cost: int, limit: int) -> dict[int, int]:
    """The cheapest sets for all sums after adding one node."""
    sums = dict(best)
    for before, so_far in best.items():
        reached = before + step
        if reached <= limit:
            known = best.get(reached)
            if known is None or so_far + cost < known:
                sums[reached] = so_far + cost
    return sums


class _Costs:
    """What every undecided node adds to the cost of a set, as one number: the sums of several costs side by side.

    The lowest digits have a bit for each undecided node. So of sets that cost the same the first in natural order is
    the cheapest, and the cost of a set says which nodes are in it.

    Args:
        limit: no sum of one of these costs is as large.
        sign: -1 where more nodes are better.
    """

    def __init__(self, batches: Sequence[_Batch], limit: int, sign: int) -> None:
        self._batches = batches
        self._kinds = {name: batch.kind for batch in batches for name in batch.undecided}
        self._ordered = sorted(self._kinds, key=natural_key)
        self._bits = {name: 1 << place for place, name in enumerate(reversed(self._ordered))}
        self._digit = limit.bit_length() + 1
        self._sign = sign

    def of(self, kind: Kind, name: str) -> int:
        """The cost of a node."""
        cost = 0
        for slots in (kind.last * kind.slots, kind.moves * kind.slots, kind.fresh * kind.slots):
            cost = (cost << self._digit) + slots
        cost = (cost << self._digit) + self._sign * kind.nodes
        return (cost << len(self._ordered)) - self._bits[name]

    def found(self, cost: int) -> _Found:
        """The set with this cost, including the nodes that are in every set."""
        bits = -cost & (1 << len(self._ordered)) - 1
        names = [name for name in self._ordered if bits & self._bits[name]]
        nodes = sum(self._kinds[name].nodes for name in names)
        for batch in self._batches:
            names += batch.taken
            nodes += batch.kind.nodes * len(batch.taken)
        return _Found(names, nodes)
