"""Which world sizes a group allows."""

from collections.abc import Collection
from dataclasses import dataclass
from math import gcd, lcm

from hetrdzv.protocol.settings import GroupSpec


@dataclass(frozen=True, slots=True)
class Worlds:
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

    def downward(self, size: int) -> range:
        """The allowed world sizes up to a number of slots, from the largest down."""
        top = size if self.most is None else min(size, self.most)
        return range(top - top % self.multiple, self.smallest - 1, -self.multiple)

    def up_to(self, size: int) -> int:
        """The largest allowed world size up to a number of slots; 0: there is none."""
        return next(iter(self.downward(size)), 0)

    def never(self, sizes: Collection[int]) -> bool:
        """Whether no number of nodes of these slots makes a world, as far as their common divisor shows that."""
        step = lcm(gcd(*sizes), self.multiple)
        most = None if self.max_nodes is None else self.max_nodes * max(sizes, default=0)
        limits = [limit for limit in (self.largest, most) if limit is not None]
        return bool(limits) and -(-self.least // step) * step > min(limits)
