"""What workers have kept of their last steps, once they are gone: parts of the snapshots that others have saved."""

import contextlib
import os
import struct
from dataclasses import replace
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.errors import Overtaken
from hetagent.snapshots.folder import INDEX, SMALL, Folder, Index, Slot, Stamp, put

NOW = "now"
"""The folder with what is kept at every step: `RANK.small`, and `RANK.json`, an index of that without a step."""

HEADER = struct.Struct("<qqq")
"""Of each half of `RANK.small`: the step (-1: it is being written), where the values begin, how long all is (bytes)."""

FIRST = 64
"""Where the content of a half begins (bytes)."""


def rescue(folder: Folder) -> int:
    """Make parts of what dead workers have kept of their last two steps: which one the living have saved is not known.

    Shards that they had are gone, and tensors on devices: of these there are those of others. What there is no room for
    beside newer snapshots is of no use.

    Returns:
        the newest step that any of them had told (0: none).
    """
    parts: dict[Stamp, list[tuple[Index, bytes]]] = {}
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
        for step, content in steps.items():
            parts.setdefault(Stamp(step, index.stamp.round), []).append((index, content))
    for stamp in sorted(parts, reverse=True):
        with contextlib.suppress(Overtaken):
            slot = folder.begin(stamp, older=True)
            for index, content in parts[stamp]:
                _add(slot, index, content)
    return reached


def _add(slot: Slot, index: Index, content: bytes) -> None:
    """Add a worker's part, unless it has saved it."""
    if index.rank in slot.indexes():
        return
    (slot.path / SMALL.format(index.rank)).write_bytes(content)
    digest = xxh3_64_hexdigest(content)
    part = replace(index, stamp=slot.stamp, small_bytes=len(content), small_digest=digest)
    put(slot.path / INDEX.format(index.rank), part.written())


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
