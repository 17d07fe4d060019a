"""The set of nodes, or units, that makes the largest world; of several such sets the one that is preferred.

Items come in the order of preference. Of the sets that make the largest world that one is taken which has the first
item, if any has it, then the second, and so on. Up to `MOST_EXACT` items that is exact, if they do not have many
thousands of slots and nodes together: which sums of slots the items from each place on can make are the bits of a
number. Of more, the items up to near the place where the world is full are taken as they come, and `MOST_EXACT` around
that place are chosen exactly.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import gcd

from hetrdzv.core.selection.worlds import Worlds

MOST_EXACT = 64
"""Among how many items the best set is found for certain."""

MOST_STATES = 1 << 22
"""How many pairs of a sum of slots and a number of nodes are looked at per item; for more, fewer items are."""


@dataclass(frozen=True, slots=True)
class Item:
    """What is taken as a whole: a node, or all nodes of a unit."""

    name: str
    slots: int
    nodes: int = 1


def best_set(
    items: Sequence[Item], worlds: Worlds, leaders: AbstractSet[str] | None = None
) -> list[Item] | None:
    """The best set of items; None where no set is found that makes a world.

    Args:
        items: in the order of preference.
        leaders: names of items, one of which must be in the set; None: any will do.
    """
    is_exact = len(items) <= MOST_EXACT and _Exact(items, worlds, [], leaders).states <= MOST_STATES
    if leaders is not None and not is_exact:
        first = next((item for item in items if item.name in leaders), None)
        if first is None:
            return None
        items = [first, *(item for item in items if item is not first)]
    tries = [items]
    if not is_exact:  # with few nodes only the large ones may do, with many only the small ones
        by_size = sorted(items, key=lambda item: item.slots / item.nodes)
        tries += [by_size[::-1], by_size]
    return next((found for each in tries if (found := _near_full(each, worlds, leaders)) is not None), None)


def _near_full(items: Sequence[Item], worlds: Worlds, leaders: AbstractSet[str] | None) -> list[Item] | None:
    """Take items as they come, but choose those around the place where the world is full."""
    slots = nodes = full_at = 0
    for item in items:
        slots, nodes = slots + item.slots, nodes + item.nodes
        if (worlds.most is not None and slots > worlds.most) or nodes > (worlds.max_nodes or nodes):
            break
        full_at += 1
    count = min(len(items), MOST_EXACT)
    while True:
        start = min(max(0, full_at - count // 2), len(items) - count)
        base = items[:start]
        if leaders is not None and any(item.name in leaders for item in base):
            leaders = None
        chosen = _Exact(items[start : start + count], worlds, base, leaders)
        if chosen.states <= MOST_STATES or count == 1:
            break
        count //= 2
    found = chosen.best()
    return None if found is None else [*base, *found]


class _Exact:
    """The choice among a few items.

    Sums are in units of the greatest common divisor of all slots.

    Args:
        base: items that are in the set anyway.
    """

    def __init__(
        self, items: Sequence[Item], worlds: Worlds, base: Sequence[Item], leaders: AbstractSet[str] | None
    ) -> None:
        self._items = items
        self._worlds = worlds
        self._leaders = leaders
        self._base_slots = sum(item.slots for item in base)
        self._unit = gcd(*(item.slots for item in items)) or 1
        base_nodes, total = sum(item.nodes for item in base), sum(item.nodes for item in items)
        self._fewest = max(0, worlds.min_nodes - base_nodes)
        self._most = total if worlds.max_nodes is None else min(total, worlds.max_nodes - base_nodes)
        self._counts = self._most < total or self._fewest > (0 if base else 1)
        if not self._counts:
            self._fewest = self._most = 0
        sums = sum(item.slots for item in items) // self._unit + 1
        self.states = sums * (total + 1 if self._counts else 1) * (1 if leaders is None else 2)

    def best(self) -> list[Item] | None:
        """The items of the best set besides the base."""
        if self._most < 0:
            return None
        reach = self._reached()
        sums = 0
        for (leads, nodes), bits in reach[0].items():
            if leads and self._fewest <= nodes <= self._most:
                sums |= bits
        sums &= self._allowed(sums.bit_length())
        if not sums:
            return None
        left, found = sums.bit_length() - 1, []
        fewest, most, needs_leader = self._fewest, self._most, self._leaders is not None
        for item, rest in zip(self._items, reach[1:], strict=True):
            size, nodes = item.slots // self._unit, item.nodes if self._counts else 0
            still_needs = needs_leader and not self._leads(item)
            if size <= left and any(
                bits >> left - size & 1
                for (leads, count), bits in rest.items()
                if fewest - nodes <= count <= most - nodes and (leads or not still_needs)
            ):
                found.append(item)
                left, fewest, most, needs_leader = left - size, fewest - nodes, most - nodes, still_needs
        return found

    def _leads(self, item: Item) -> bool:
        return self._leaders is None or item.name in self._leaders

    def _reached(self) -> list[Mapping[tuple[bool, int], int]]:
        """For each place the sums of the items from there on: their bits, by leader among them and number of nodes."""
        known: dict[tuple[bool, int], int] = {(self._leaders is None, 0): 1}
        reach: list[Mapping[tuple[bool, int], int]] = [known]
        for item in reversed(self._items):
            size, nodes = item.slots // self._unit, item.nodes if self._counts else 0
            more = dict(known)
            for (leads, count), bits in known.items():
                if count + nodes <= self._most:
                    key = (leads or self._leads(item), count + nodes)
                    more[key] = more.get(key, 0) | bits << size
            reach.append(known := more)
        return reach[::-1]

    def _allowed(self, bits: int) -> int:
        """Which of so many sums make a world together with the base, as bits."""
        base, unit = self._base_slots, self._unit
        worlds = self._worlds.downward(base + (bits - 1) * unit, base, unit)
        if not worlds or worlds[0] < base:
            return 0
        step, last = -worlds.step // unit, (worlds[0] - base) // unit
        return _every(step, max((worlds[-1] - base) // unit, last % step), last)


def _every(step: int, first: int, last: int) -> int:
    """Bits at each so many places."""
    bits, count, wanted = 1, 1, (last - first) // step + 1
    while count < wanted:
        more = min(count, wanted - count)
        bits |= bits << step * more
        count += more
    return bits << first
