"""Which world sizes a group allows."""

from collections.abc import Collection
from dataclasses import fields
from math import gcd, lcm

from hetrdzv.protocol.reasons.waiting import WorldBounds
from hetrdzv.protocol.settings import GroupSpec


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

    def downward(self, size: int, start: int = 0, unit: int = 1) -> range:
        """The allowed world sizes up to a number of slots, from the largest down.

        Args:
            start, unit: only those that a number of slots and a multiple of another one add up to.
        """
        top = size if self.most is None else min(size, self.most)
        common = gcd(self.multiple, unit)
        if start % common:
            return range(0)
        every = unit // common  # one in so many multiples
        rest = self.multiple * (start // common * pow(self.multiple // common, -1, every) % every)
        stride = self.multiple * every
        return range(top - (top - rest) % stride, self.smallest - 1, -stride)

    def up_to(self, size: int) -> int | None:
        """The largest allowed world size up to a number of slots; None: there is none."""
        return next(iter(self.downward(size)), None)

    def never(self, sizes: Collection[int]) -> bool:
        """Whether no number of nodes of these slots makes a world, as far as their common divisor shows that."""
        step = lcm(gcd(*sizes), self.multiple)
        most = None if self.max_nodes is None else self.max_nodes * max(sizes, default=0)
        limits = [limit for limit in (self.largest, most) if limit is not None]
        return bool(limits) and -(-self.least // step) * step > min(limits)
