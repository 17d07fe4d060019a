"""The set of nodes, or units, that makes the largest world; of several such sets the one that is preferred.

Items come in the order of preference. Of the sets that make the largest world that one is taken which has the first
item, if any has it, then the second, and so on. That is exact for up to `MAX_EXACT_CANDIDATES` items that do not have
many thousands of slots and nodes together. Of more, the items up to near the place where the world is full are taken as
they come, and those around that place are chosen exactly; where they make no world, some of each size are put there.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import takewhile
from math import gcd, inf, lcm
from operator import or_

from hetrdzv.protocol.settings import GroupSpec

MAX_EXACT_CANDIDATES = 64
"""Among how many items the best set is found for certain."""

MAX_SEARCH_STATES = 1 << 22
"""How many pairs of a sum of slots and a number of nodes are looked at per item; for more, fewer items are."""


@dataclass(frozen=True)
class WorldSizes:
    """The world sizes that a group allows, and how many nodes may make one; None: there is no bound."""

    least: int
    most: int | None
    multiple: int
    min_nodes: int
    max_nodes: int | None

    @property
    def smallest(self) -> int:
        """The smallest world size of all."""
        return -(-self.least // self.multiple) * self.multiple

    @property
    def largest(self) -> int | None:
        """The largest world size of all; None where there is no bound."""
        return None if self.most is None else self.most - self.most % self.multiple

    @classmethod
    def of(cls, spec: GroupSpec) -> "WorldSizes":
        """The world sizes that settings allow."""
        return cls(
            least=spec.min_world_size or 1,
            most=spec.max_world_size,
            multiple=spec.world_size_multiple,
            min_nodes=spec.min_nodes,
            max_nodes=spec.max_nodes,
        )

    def allows(self, size: int) -> bool:
        """Whether a world may have this size."""
        return size in self.sizes_down_from(size)

    def sizes_down_from(self, size: int) -> range:
        """The allowed world sizes up to a number of slots, from the largest down."""
        top = size if self.most is None else min(size, self.most)
        return range(top - top % self.multiple, self.smallest - 1, -self.multiple)

    def largest_up_to(self, size: int) -> int:
        """The largest allowed world size up to a number of slots; 0: there is none."""
        return next(iter(self.sizes_down_from(size)), 0)

    def is_never_possible(self, sizes: Collection[int]) -> bool:
        """Whether no number of nodes of these slots makes a world, as far as their common divisor shows that."""
        step = lcm(gcd(*sizes), self.multiple)
        most = None if self.max_nodes is None else self.max_nodes * max(sizes, default=0)
        limits = [limit for limit in (self.largest, most) if limit is not None]
        return bool(limits) and -(-self.least // step) * step > min(limits)


@dataclass(frozen=True)
class Candidate:
    """What is taken as a whole: a node, or all nodes of a unit."""

    name: str
    slots: int
    nodes: int = 1


def choose_best_set(
    items: Sequence[Candidate], worlds: WorldSizes, base: Sequence[Candidate] = ()
) -> list[Candidate] | None:
    """The best set of items and of those of `base`, which are taken anyway; None where none is found."""
    if _can_choose_exactly(items, worlds):
        return _choose_exactly(items, worlds, base)
    # with few nodes only the large ones may do, with many only the small ones
    by_size = sorted(items, key=lambda item: item.slots / item.nodes)
    tries = (items, _mix_sizes(items, worlds, base), by_size[::-1], by_size)
    return next(
        (found for each in tries if (found := _fill_then_choose_exactly(each, worlds, base)) is not None),
        None,
    )


def _fill_then_choose_exactly(
    items: Sequence[Candidate], worlds: WorldSizes, base: Sequence[Candidate]
) -> list[Candidate] | None:
    """Take items as they come, but choose those around the place where the world is full."""
    full_at, count = _count_items_to_fill(items, worlds, base), min(len(items), MAX_EXACT_CANDIDATES)
    while True:
        start = min(max(0, full_at - count // 2), len(items) - count)
        window = items[start : start + count]
        if count == 1 or _can_choose_exactly(window, worlds):
            return _choose_exactly(window, worlds, [*base, *items[:start]])
        count //= 2


def _count_items_to_fill(items: Sequence[Candidate], worlds: WorldSizes, base: Sequence[Candidate]) -> int:
    """How many items as they come make about the largest world; where they make none, how many fit into one."""
    slots, nodes = sum(item.slots for item in base), sum(item.nodes for item in base)
    sums = [slots]
    for item in items:
        slots, nodes = slots + item.slots, nodes + item.nodes
        if slots > (worlds.most or inf) or nodes > (worlds.max_nodes or inf):
            break
        sums.append(slots)
    return max(1, bisect_right(sums, worlds.largest_up_to(sums[-1]) or sums[-1])) - 1


def _mix_sizes(items: Sequence[Candidate], worlds: WorldSizes, base: Sequence[Candidate]) -> list[Candidate]:
    """Items as they come, but with some of each size around the place where the world is full.

    The larger ones come first, so those around that place may be all of one size, of which no number makes a world.
    """
    sizes = sorted(items, key=lambda item: item.slots)[:: -(-len(items) // MAX_EXACT_CANDIDATES)]
    names = {item.name for item in sizes}
    others = [item for item in items if item.name not in names]
    place = max(0, _count_items_to_fill(items, worlds, base) - len(sizes) // 2)
    return [*others[:place], *sizes, *others[place:]]


def _can_choose_exactly(items: Sequence[Candidate], worlds: WorldSizes) -> bool:
    sums = sum(item.slots for item in items) // (gcd(*(item.slots for item in items)) or 1) + 1
    counts = worlds.max_nodes is not None or worlds.min_nodes > 1
    nodes = sum(item.nodes for item in items) if counts else 0
    return len(items) <= MAX_EXACT_CANDIDATES and sums * (nodes + 1) <= MAX_SEARCH_STATES


def _choose_exactly(
    items: Sequence[Candidate], worlds: WorldSizes, base: Sequence[Candidate]
) -> list[Candidate] | None:
    """The best set of a few items and all of `base`.

    Which sums of slots the items from each place on can make are the bits of a number, by how many nodes they have.
    """
    unit = gcd(*(item.slots for item in items)) or 1  # sums are in units of it
    base_slots, base_nodes = sum(item.slots for item in base), sum(item.nodes for item in base)
    fewest = max(0, worlds.min_nodes - base_nodes)
    counts = worlds.max_nodes is not None or fewest > (0 if base else 1)
    fewest = fewest if counts else 0
    most = worlds.max_nodes - base_nodes if worlds.max_nodes is not None else inf
    sizes = [(item.slots // unit, item.nodes if counts else 0) for item in items]
    known = {0: 1}
    reach = [known]
    for size, nodes in reversed(sizes):
        more = dict(known)
        for count, bits in known.items():
            if count + nodes <= most:
                more[count + nodes] = more.get(count + nodes, 0) | bits << size
        reach.append(known := more)
    sums = bin(reduce(or_, (bits for count, bits in known.items() if fewest <= count <= most), 0))[:1:-1]
    places = (
        (size - base_slots) // unit
        for size in takewhile(base_slots.__le__, worlds.sizes_down_from(base_slots + (len(sums) - 1) * unit))
        if (size - base_slots) % unit == 0
    )
    left = next((place for place in places if sums[place] == "1"), None)
    if left is None:
        return None
    found, taken = list(base), 0
    for item, (size, nodes), rest in zip(items, sizes, reach[-2::-1], strict=True):
        if size <= left and any(
            bits >> left - size & 1 for count, bits in rest.items() if fewest <= taken + nodes + count <= most
        ):
            found.append(item)
            left, taken = left - size, taken + nodes
    return found
