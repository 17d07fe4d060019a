"""Which world sizes a group allows."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from math import gcd

from hetrdzv.core.budget import Budget
from hetrdzv.protocol.facts.parts import WorldBounds
from hetrdzv.protocol.settings import GroupSpec

MOST_SEARCHED = 1 << 16
"""Up to which world size `never` looks at all sums (slots)."""

NEVER_WORK = 1 << 15
"""How much work `never` may do, since only a sentence depends on it; see `Budget`."""

SUMS_AT_ONCE = 1 << 11
"""How many sums a shift of a large number looks at in the time of an addition to a dict."""


class Worlds(WorldBounds):
    """The world sizes that a group allows."""

    __slots__ = ()

    @classmethod
    def of(cls, spec: GroupSpec) -> "Worlds":
        """The world sizes that settings allow."""
        return cls(
            least=max(1, spec.min_world_size or 1),
            most=spec.max_world_size,
            multiple=spec.world_size_multiple,
            min_nodes=spec.min_nodes,
            max_nodes=spec.max_nodes,
        )

    def allows(self, size: int) -> bool:
        """Whether a world may have this size."""
        return size >= self.least and size % self.multiple == 0 and (self.most is None or size <= self.most)

    @property
    def bounds(self) -> WorldBounds:
        """The same for others, who need no more than the numbers."""
        return WorldBounds(**{field.name: getattr(self, field.name) for field in fields(self)})

    def downward(self, size: int, start: int = 0, unit: int = 1) -> Iterator[int]:
        """The allowed world sizes up to a number of slots, from the largest down.

        Args:
            start, unit: only those that a number of slots and a multiple of another one add up to.
        """
        top = size if self.most is None else min(size, self.most)
        common = gcd(self.multiple, unit)
        if start % common:
            return iter(())
        every = unit // common  # one in so many multiples
        rest = self.multiple * (start // common * pow(self.multiple // common, -1, every) % every)
        stride = self.multiple * every
        return iter(range(top - (top - rest) % stride, self.smallest - 1, -stride))

    def up_to(self, size: int) -> int | None:
        """The largest allowed world size up to a number of slots; None: there is none."""
        return next(self.downward(size), None)

    def never(self, sizes: Iterable[int]) -> bool:
        """Whether any number of nodes of these slots could never make a world.

        False also where that would take too long to find out.
        """
        known = frozenset(sizes)
        limit = self.largest
        for size in known:  # copies of one size alone
            step = size * (self.multiple // gcd(size, self.multiple))
            world = -(-self.least // step) * step
            count = world // size
            fits = limit is None or world <= limit
            if fits and count >= self.min_nodes and (self.max_nodes is None or count <= self.max_nodes):
                return False
        if limit is None and self.max_nodes is not None:
            limit = self.max_nodes * max(known, default=0)
        if limit is None or limit > MOST_SEARCHED:
            return False
        return not self._ever(known, limit)

    def _ever(self, sizes: Collection[int], limit: int) -> bool:
        """Whether some number of nodes of these slots makes a world of at most so many slots, or may do so."""
        wanted = _every(self.multiple, self.smallest, limit)
        within = (1 << limit + 1) - 1
        # bit n: n slots can be had with `count` nodes, or with at most as many once that is allowed
        known, count = 1, 0
        budget = Budget(NEVER_WORK)
        while count < (limit if self.max_nodes is None else min(limit, self.max_nodes)):
            if not budget.allows(len(sizes) * (1 + limit // SUMS_AT_ONCE)):
                return True
            more = 0
            for size in sizes:
                more |= known << size
            more &= within
            count += 1
            known, before = (more | known if count > self.min_nodes else more), known
            if count >= self.min_nodes and known & wanted:
                return True
            if count > self.min_nodes and known == before:
                return False
        return False


def _every(step: int, first: int, last: int) -> int:
    """Bits at each so many places."""
    if last < first:
        return 0
    bits, count, wanted = 1, 1, (last - first) // step + 1
    while count < wanted:
        more = min(count, wanted - count)
        bits |= bits << step * more
        count += more
    return bits << first
