"""Who: some of the nodes or ranks that a value speaks of, however many there are."""

from collections.abc import Iterable
from dataclasses import dataclass

from hetrdzv.protocol.texts.ids import natural_key

MAX_LISTED_NODES = MAX_LISTED_RANGES = 5
"""How many nodes, or ranges of ranks, are named; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """Some nodes: the first few in natural order by their ids, and how many more there are."""

    first: tuple[str, ...] = ()
    more: int = 0

    @classmethod
    def of(cls, node_ids: Iterable[str]) -> "NodeList":
        """These nodes."""
        known = list(node_ids)
        first = sorted(known, key=natural_key)[:MAX_LISTED_NODES]
        return cls(first=tuple(first), more=len(known) - len(first))

    def __len__(self) -> int:
        return len(self.first) + self.more

    def __str__(self) -> str:
        """As they are listed everywhere: `gpu1, gpu2 and 3 more`."""
        return (", ".join(self.first) or "nobody") + (f" and {self.more} more" if self.more else "")


NO_NODES = NodeList()


RankRange = tuple[int, int]
"""The first and the last of some ranks in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankList:
    """Some ranks: the first few ranges (first and last rank of each), and how many more ranks there are."""

    ranges: tuple[RankRange, ...] = ()
    more: int = 0

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "RankList":
        """These ranks, in order."""
        ranges: list[RankRange] = []
        for rank in sorted(numbers):
            if ranges and rank == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], rank)
            else:
                ranges.append((rank, rank))
        more = sum(last - first + 1 for first, last in ranges[MAX_LISTED_RANGES:])
        return cls(ranges=tuple(ranges[:MAX_LISTED_RANGES]), more=more)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges) + self.more

    def __contains__(self, rank: int) -> bool:
        """Whether it is one of those that are named."""
        return any(first <= rank <= last for first, last in self.ranges)

    def __str__(self) -> str:
        """`rank 3`, `ranks 0 to 2 and 4`, `ranks 0, 2, 4, 6, 8 and 37 more`."""
        parts: list[str] = []
        for first, last in self.ranges:
            parts += [f"{first} to {last}"] if last > first + 1 else sorted({str(first), str(last)}, key=int)
        listed = join_words(parts + ([f"{self.more} more"] if self.more else []))
        return f"{'rank' if len(self) == 1 else 'ranks'} {listed}"


def join_words(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
