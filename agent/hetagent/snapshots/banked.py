"""What workers have kept of their last steps, once they are gone: parts of the snapshots that others have saved."""

import contextlib
import os
import struct
from dataclasses import replace
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.folder import INDEX, SMALL, Folder, Index, Stamp, put

NOW = "now"
"""The folder with what is kept at every step: `RANK.small`, and `RANK.json`, an index of that without a step."""

HEADER = struct.Struct("<qqq")
"""Of each half of `RANK.small`: the step (-1: it is being written), where the values begin, how long all is (bytes)."""

FIRST = 64
"""Where the content of a half begins (bytes)."""


def rescue(folder: Folder) -> int:
    """Make parts of what dead workers have kept of their last two steps: which one the living have saved is not known.

    Shards that they had are gone, and tensors on devices: of these there are those of others.

    Returns:
        the newest step that any of them had told (0: none).
    """
    reached = 0
    for rank in _ranks(folder.path / NOW):
        kept = _kept(folder.path / NOW, rank)
        if kept is None:
            continue
        index, steps = kept
        reached = max(reached, *steps)
        if index.sharded:
            continue
        if any(place.device != "cpu" for place in index.small):
            index = replace(index, small=())
        for step, content in sorted(steps.items()):
            stamp = Stamp(step, index.stamp.round)
            slot = folder.begin(stamp)
            if rank not in slot.indexes():
                (slot.path / SMALL.format(rank)).write_bytes(content)
                part = replace(
                    index, stamp=stamp, small_bytes=len(content), small_digest=xxh3_64_hexdigest(content)
                )
                put(slot.path / INDEX.format(rank), part.written())
    return reached


def _kept(path: Path, rank: int) -> tuple[Index, dict[int, bytes]] | None:
    """A worker's index, and what it has kept of its last steps; None: nothing that can be read."""
    with contextlib.suppress(OSError, ValueError, struct.error):
        index = Index.read((path / INDEX.format(rank)).read_bytes())
        content = (path / SMALL.format(rank)).read_bytes()
        half, steps = len(content) // 2, {}
        for start in (0, half):
            step, _, size = HEADER.unpack_from(content, start)
            if step >= 0 and FIRST + size <= half:
                steps[step] = content[start + FIRST : start + FIRST + size]
        return (index, steps) if steps else None
    return None


def _ranks(path: Path) -> set[int]:
    """The ranks of which something was kept."""
    with contextlib.suppress(OSError):
        words = (name.partition(".")[0] for name in os.listdir(path))
        return {int(word) for word in words if word.isdecimal()}
    return set()
