"""What a node holds of snapshots, from the indexes that its workers have written: pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hetagent.snapshots.folder import Index
from hetrdzv.protocol.rooms.snapshots import MOST_HELD, Held, RankPart, Stamp

MOST_WHY = 256
"""How long a reason may be that the server hears (characters)."""


class Unusable(ValueError):
    """A part of a snapshot that does not count; the text says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of a snapshot on this node; `digest` is that of its index."""

    index: Index
    digest: str

    @property
    def stamp(self) -> Stamp:
        """Of which snapshot."""
        return Stamp(round=self.index.stamp.round, step=self.index.stamp.step)


def read(text: bytes, digest: str, stamp: Stamp, rank: int, sizes: Mapping[str, int]) -> Part | None:
    """A part from its index; None: it is of what its slot held before.

    Args:
        digest: of the text.
        stamp: what the slot holds.
        rank: whose part this should be.
        sizes: of the files of the slot (bytes).

    Raises:
        Unusable: it does not count.
    """
    try:
        index = Index.read(text)
    except ValueError as error:
        raise Unusable(f"its index cannot be read: {str(error)[:200]}") from None
    if index.stamp != (stamp.round, stamp.step):
        return None
    if index.rank != rank:
        raise Unusable(f"its index is of rank {index.rank} of {index.world_size}")
    for name, expected in index.files.items():
        if expected.bytes > sizes.get(name, 0):
            raise Unusable(f"{name} is too short")
    return Part(index, digest)


def held(parts: Sequence[Part]) -> Held:
    """What a node has of one snapshot.

    Args:
        parts: of different ranks, at least one.

    Raises:
        Unusable: they do not fit together.
    """
    first = parts[0].index
    for part in parts:
        if (part.index.world_size, part.index.sharded) != (first.world_size, first.sharded):
            raise Unusable(f"ranks {first.rank} and {part.index.rank} are of different rounds or layouts")
    files = {name: expected.bytes for part in parts for name, expected in part.index.files.items()}
    return Held(
        round=first.stamp.round,
        step=first.stamp.step,
        world_size=first.world_size,
        whole=any(part.index.has_alike for part in parts),
        sharded=first.sharded,
        size=sum(files.values()),
        ranks=tuple(RankPart(rank=part.index.rank, digest=part.digest) for part in sorted(parts, key=_rank)),
    )


def _rank(part: Part) -> int:
    return part.index.rank


def newest(all_held: Iterable[Held], dropped: Collection[Stamp]) -> tuple[Held, ...]:
    """What a node declares: the newest snapshots first, without those that it has dropped."""
    counts = [each for each in all_held if Stamp(round=each.round, step=each.step) not in dropped]
    return tuple(sorted(counts, key=lambda each: (each.round, each.step), reverse=True)[:MOST_HELD])
