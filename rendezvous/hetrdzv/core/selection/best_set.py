"""The set of nodes, or units, that makes the largest world; of several such sets the one that is preferred.

Items come in the order of preference. Of the sets that make the largest world that one is taken which has the first
item, if any has it, then the second, and so on. That is exact for up to `MOST_EXACT` items that do not have many
thousands of slots and nodes together. Of more, the items up to near the place where the world is full are taken as
they come, and those around that place are chosen exactly.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import reduce
from math import gcd, inf
from operator import or_

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
    if _is_small(items, worlds):
        return _exact(items, worlds, leaders)
    if leaders is not None:
        first = next((item for item in items if item.name in leaders), None)
        if first is None:
            return None
        items = [first, *(item for item in items if item is not first)]
    # with few nodes only the large ones may do, with many only the small ones
    by_size = sorted(items, key=lambda item: item.slots / item.nodes)
    tries = (items, by_size[::-1], by_size)
    return next((found for each in tries if (found := _near_full(each, worlds, leaders)) is not None), None)


def _near_full(items: Sequence[Item], worlds: Worlds, leaders: AbstractSet[str] | None) -> list[Item] | None:
    """Take items as they come, but choose those around the place where the world is full."""
    slots = nodes = full_at = 0
    for item in items:
        slots, nodes = slots + item.slots, nodes + item.nodes
        if slots > (worlds.most or inf) or nodes > (worlds.max_nodes or inf):
            break
        full_at += 1
    count = min(len(items), MOST_EXACT)
    while True:
        start = min(max(0, full_at - count // 2), len(items) - count)
        window = items[start : start + count]
        if count == 1 or _is_small(window, worlds):
            break
        count //= 2
    base = items[:start]
    if leaders is not None and any(item.name in leaders for item in base):
        leaders = None
    found = _exact(window, worlds, leaders, base)
    return None if found is None else [*base, *found]


def _counts(worlds: Worlds) -> bool:
    """Whether it matters how many nodes a set has."""
    return worlds.max_nodes is not None or worlds.min_nodes > 1


def _is_small(items: Sequence[Item], worlds: Worlds) -> bool:
    sums = sum(item.slots for item in items) // gcd(*(item.slots for item in items)) + 1
    nodes = sum(item.nodes for item in items) if _counts(worlds) else 0
    return len(items) <= MOST_EXACT and sums * (nodes + 1) <= MOST_STATES


def _exact(
    items: Sequence[Item], worlds: Worlds, leaders: AbstractSet[str] | None, base: Sequence[Item] = ()
) -> list[Item] | None:
    """The best set of a few items besides `base`, which is taken anyway.

    Which sums of slots the items from each place on can make are the bits of a number, by how many nodes they have
    and whether a leader is among them.
    """
    unit = gcd(*(item.slots for item in items))  # sums are in units of it
    base_slots, base_nodes = sum(item.slots for item in base), sum(item.nodes for item in base)
    counts = _counts(worlds)
    fewest = worlds.min_nodes - base_nodes if counts else 0
    most = worlds.max_nodes - base_nodes if worlds.max_nodes is not None else inf
    sizes = [
        (item.slots // unit, item.nodes if counts else 0, leaders is None or item.name in leaders)
        for item in items
    ]
    known = {(leaders is None, 0): 1}
    reach = [known]
    for size, nodes, leads in reversed(sizes):
        more = dict(known)
        for (led, count), bits in known.items():
            if count + nodes <= most:
                key = led or leads, count + nodes
                more[key] = more.get(key, 0) | bits << size
        reach.append(known := more)

    def completing(rest: Mapping[tuple[bool, int], int], nodes: int, led: bool) -> Iterator[int]:
        """The sums with which so many nodes become a set that keeps the other bounds."""
        return (
            bits
            for (leads, count), bits in rest.items()
            if (led or leads) and fewest <= nodes + count <= most
        )

    sums = bin(reduce(or_, completing(known, 0, False), 0))[:1:-1]
    places = (
        (size - base_slots) // unit
        for size in worlds.downward(base_slots + (len(sums) - 1) * unit)
        if size >= base_slots and (size - base_slots) % unit == 0
    )
    left = next((place for place in places if sums[place] == "1"), None)
    if left is None:
        return None
    found, taken, led = [], 0, False
    for item, (size, nodes, leads), rest in zip(items, sizes, reach[-2::-1], strict=True):
        if size <= left and any(
            bits >> left - size & 1 for bits in completing(rest, taken + nodes, led or leads)
        ):
            found.append(item)
            left, taken, led = left - size, taken + nodes, led or leads
    return found
