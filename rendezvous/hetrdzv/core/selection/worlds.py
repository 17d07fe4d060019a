"""Which world sizes a group allows, and why another one is none."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from math import gcd

from hetrdzv.core.budget import Budget
from hetrdzv.protocol.settings import GroupSpec

MOST_SEARCHED = 1 << 16
"""Up to which world size `never` looks at all sums (slots)."""

NEVER_WORK = 1 << 15
"""How much work `never` is worth, since only a sentence depends on it; see `Budget`."""

SUMS_AT_ONCE = 1 << 11
"""How many sums a shift of a large number looks at in the time of an addition to a dict."""


@dataclass(frozen=True, slots=True)
class Worlds:
    """The world sizes that a group allows, and how many nodes may make one.

    Attributes:
        least, most: bounds in slots; most is None where there is none.
        multiple: every world size is a multiple of it.
        min_nodes, max_nodes: bounds in nodes.
    """

    least: int
    most: int | None
    multiple: int
    min_nodes: int
    max_nodes: int | None

    @classmethod
    def of(cls, spec: GroupSpec) -> "Worlds":
        """The world sizes that settings allow."""
        least = max(1, spec.min_world_size or 1)
        return cls(least, spec.max_world_size, spec.world_size_multiple, spec.min_nodes, spec.max_nodes)

    def allows(self, size: int) -> bool:
        """Whether a world may have this size."""
        return size >= self.least and size % self.multiple == 0 and (self.most is None or size <= self.most)

    @property
    def smallest(self) -> int:
        """The smallest world size of all."""
        return -(-self.least // self.multiple) * self.multiple

    @property
    def largest(self) -> int | None:
        """The largest world size of all; None where there is no bound."""
        return None if self.most is None else self.most - self.most % self.multiple

    def downward(self, size: int, start: int = 0, unit: int = 1) -> Iterator[int]:
        """The world sizes from the largest that is not above a number of slots, down to the smallest.

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
        """The largest world size that is not above a number of slots; None where all are."""
        return next(self.downward(size), None)

    def __str__(self) -> str:
        """`from 8 to 16 and a multiple of 4`, to be put after "the world size must be"."""
        if self.smallest == self.largest:
            return str(self.smallest)
        parts = []
        if self.most is not None:
            parts.append(f"from {self.least} to {self.most}" if self.least > 1 else f"at most {self.most}")
        elif self.least > 1:
            parts.append(f"at least {self.least}")
        if self.multiple > 1:
            parts.append(f"a multiple of {self.multiple}")
        return " and ".join(parts) or "at least 1"

    def excludes(self, size: int) -> str:
        """Why a world cannot have this size, in a clause; empty where it can."""
        if self.most is not None and size > self.most:
            return f"above max_world_size, which is {self.most}"
        if size < self.least:
            return f"below min_world_size, which is {self.least}"
        return f"not a multiple of {self.multiple}" if size % self.multiple else ""

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
