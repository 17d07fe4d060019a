"""What a node holds of snapshots, from the indexes that its workers have written: pure."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetagent.snapshots.folder import SHARED, VERSION
from hetrdzv.protocol import codec
from hetrdzv.protocol.bounds import Count, Positive, Rank, ShortText
from hetrdzv.protocol.rooms.snapshots import MOST_HELD, MOST_VALUES, Digest, Held, RankPart, Stamp

MOST_WHY = 256
"""How long a reason may be that the server hears (characters)."""


class Unusable(ValueError):
    """A part of a snapshot that does not count; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some bytes of a tensor: in which file of the slot, from which byte on, and how many."""

    name: str
    file: str
    at: Count
    bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What counts here of the index of a rank's part.

    Attributes:
        v: the version of what it says.
        round, step: of which snapshot.
        alike: the tensors that all ranks have alike, whoever has copied them, with their sizes (bytes).
        tensors: what this rank has copied.
        small_bytes: how much it has copied beside that.
        digests: of values that have to be the same on all ranks.
    """

    v: int
    round: Positive
    step: Count
    rank: Rank
    world_size: Positive
    sharded: bool = False
    alike: Mapping[str, Count]
    tensors: tuple[Block, ...]
    small_bytes: Count = 0
    digests: Mapping[ShortText, Digest]


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of a snapshot on this node; `digest` is that of its index."""

    index: Index
    digest: str

    @property
    def stamp(self) -> Stamp:
        """Of which snapshot."""
        return Stamp(round=self.index.round, step=self.index.step)


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
        index = codec.read(Index, text, unknown="ignore")
    except codec.Malformed as error:
        raise Unusable(_wrong(text, error)) from None
    if index.v != VERSION:
        raise Unusable(_of_version(index.v))
    if (index.round, index.step) != (stamp.round, stamp.step):
        return None
    if index.rank != rank or rank >= index.world_size:
        raise Unusable(f"its index is of rank {index.rank} of {index.world_size}")
    for block in index.tensors:
        if block.at + block.bytes > sizes.get(block.file, 0):
            raise Unusable(f"{block.file} ends before {block.name}")
    return Part(index, digest)


def _wrong(text: bytes, error: codec.Malformed) -> str:
    """What is wrong with an index that cannot be read."""
    try:
        told: Any = json.loads(text)
    except (ValueError, RecursionError):
        return "its index is torn"
    version = told.get("v") if isinstance(told, dict) else None
    return f"its index makes no sense: {str(error)[:200]}" if version == VERSION else _of_version(version)


def _of_version(version: object) -> str:
    return f"its index is of version {version!r:.20}: install the same hetrdzv for agent and workers"


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
    blocks = {
        (block.file, block.at, block.name): block.bytes for part in parts for block in part.index.tensors
    }
    size = sum(blocks.values()) + sum(part.index.small_bytes for part in parts)
    return Held(
        round=first.round,
        step=first.step,
        world_size=first.world_size,
        whole=any(map(_is_whole, parts)),
        sharded=first.sharded,
        size=size,
        ranks=tuple(RankPart(rank=part.index.rank, digest=part.digest) for part in sorted(parts, key=_rank)),
        values=_values(parts),
    )


def _rank(part: Part) -> int:
    return part.index.rank


def _is_whole(part: Part) -> bool:
    """Whether a worker has copied all that the ranks have alike."""
    copied = {block.name: block.bytes for block in part.index.tensors if block.file == SHARED}
    return all(copied.get(name, -1) >= size for name, size in part.index.alike.items())


def _values(parts: Iterable[Part]) -> Mapping[str, str]:
    """The digests of the values that all ranks should have alike.

    Raises:
        Unusable: two ranks of this node have different ones.
    """
    known: dict[str, tuple[str, int]] = {}
    for part in parts:
        for name, digest in part.index.digests.items():
            before, rank = known.setdefault(name, (digest, part.index.rank))
            if before != digest:
                raise Unusable(
                    f"ranks {rank} and {part.index.rank} have different values of '{name}', which has to be the same "
                    "on all ranks: name it in per_rank"
                )
    return {name: known[name][0] for name in sorted(known)[:MOST_VALUES]}


def newest(all_held: Iterable[Held], dropped: Collection[Stamp]) -> tuple[Held, ...]:
    """What a node declares: the newest snapshots first, without those that it has dropped."""
    counts = [each for each in all_held if Stamp(round=each.round, step=each.step) not in dropped]
    return tuple(sorted(counts, key=lambda each: (each.round, each.step), reverse=True)[:MOST_HELD])
