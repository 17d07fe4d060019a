"""Which snapshots this node holds, from the indexes that its workers have written."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from hetagent.node.console import WarnOnce
from hetagent.snapshots.folder import Folder, Index, Slot, Stamp
from hetrdzv.protocol.snapshots import MOST_HELD, Held, RankPart

Shard = tuple[Index, str]
"""A rank's part of a snapshot: its index without tensors, and the digest of all of it."""


class SnapshotInventory:
    """Reads the slots of this node."""

    def __init__(self, folder: Folder, log: Callable[[str], None]) -> None:
        self._folder = folder
        self._log_once = WarnOnce(log)

    def held(self, dropped: Collection[Stamp] = ()) -> tuple[Held, ...]:
        """What this node holds, the newest first, without what was dropped."""
        found = []
        for stamp, slot in sorted(self._folder.slots().items(), reverse=True):
            shards = list(self._shards(slot))
            if shards and stamp not in dropped:
                found.append(_held(stamp, shards))
        return tuple(found[:MOST_HELD])

    def _shards(self, slot: Slot) -> Iterator[Shard]:
        for rank, path in sorted(slot.indexes().items()):
            try:
                stats = path.stat()
                shard = _read(path, stats.st_ino, stats.st_mtime_ns, stats.st_size)
            except OSError:  # it is being replaced
                continue
            except ValueError as error:
                step = slot.stamp.step
                self._log_once(f"rank {rank}'s part of the snapshot of step {step} does not count: {error}")
                continue
            if shard[0].stamp == slot.stamp:  # else it is of what the slot held before
                yield shard


@lru_cache(maxsize=256)
def _read(path: Path, *version: int) -> Shard:
    """A part; read again once its file is replaced."""
    text = path.read_bytes()
    return replace(Index.read(text), tensors=()), xxh3_64_hexdigest(text)


def _held(stamp: Stamp, shards: Sequence[Shard]) -> Held:
    indexes = [index for index, _ in shards]
    sizes = {name: content.bytes for index in indexes for name, content in index.files.items()}
    return Held(
        round=stamp.round,
        step=stamp.step,
        world_size=indexes[0].world_size,
        whole=any(index.has_replicated for index in indexes),
        sharded=any(index.sharded for index in indexes),
        size=sum(sizes.values()),
        ranks=tuple(RankPart(rank=index.rank, digest=digest) for index, digest in shards),
    )
