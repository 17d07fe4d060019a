"""Whether the memory of this node's GPUs is free again, by what the driver says (discovery.py). Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SLACK_BYTES = 1 << 30
"""How much more than before may be in use without anybody known to use it: the driver's own, rounding."""


class GpuBroken(Exception):
    """The driver has given up a GPU; says which, in a few words."""


class Holder(NamedTuple):
    """A process that uses a GPU's memory; 0 where the driver does not say how much."""

    pid: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a GPU's memory is in use, and by whom as far as the driver says (in a container often nobody)."""

    gpu: str
    used_bytes: int
    holders: tuple[Holder, ...] = ()
    total_bytes: int = 0

    def unexplained(self, is_ours: Callable[[int], bool]) -> int:
        """How much is in use (bytes), without what processes use that are not ours."""
        others = sum(holder.used_bytes for holder in self.holders if not is_ours(holder.pid))
        return max(0, self.used_bytes - others)


@dataclass(frozen=True, slots=True)
class Left:
    """Memory of a GPU that is still in use after a round.

    Attributes:
        more_bytes: how much more than when the last round began, without what processes of others use.
        ours: the processes of this node that use it.
        others: the other processes.
    """

    gpu: str
    more_bytes: int
    ours: tuple[Holder, ...]
    others: tuple[Holder, ...]


def left_over(before: Sequence[Usage], now: Sequence[Usage], is_ours: Callable[[int], bool]) -> list[Left]:
    """The GPUs that are not free again. What a process of somebody else uses does not count, old or new."""
    former = {usage.gpu: usage.unexplained(lambda pid: False) for usage in before}
    left = []
    for usage in now:
        more = usage.unexplained(is_ours) - former.get(usage.gpu, 0)
        ours = tuple(holder for holder in usage.holders if is_ours(holder.pid))
        if usage.gpu in former and (ours or more > SLACK_BYTES):
            others = tuple(holder for holder in usage.holders if not is_ours(holder.pid))
            left.append(Left(usage.gpu, max(0, more), ours, others))
    return left


def describe(left: Left) -> str:
    """`GPU 2 has 71.2 GiB more in use than before the last round: pid 123 (71.0 GiB)`."""
    holders = left.ours or left.others
    who = ", ".join(
        f"pid {holder.pid}{f' ({_gib(holder.used_bytes)})' if holder.used_bytes else ''}"
        for holder in holders[:5]
    )
    more = f" and {len(holders) - 5} more" if len(holders) > 5 else ""
    return (
        f"{left.gpu} has {_gib(left.more_bytes)} more in use than before the last round: "
        f"{who or 'the driver names no process'}{more}"
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
