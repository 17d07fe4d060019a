"""Fetches to this node what all ranks have alike, once for all its workers; then it has a copy as well."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import (
    ADOPTED,
    INDEX,
    SHARED,
    SLOTS,
    SMALL,
    Claims,
    Folder,
    Place,
    Slot,
    Stamp,
    put,
)
from hetagent.snapshots.memory import Mapped
from hetagent.snapshots.sources import Source, SourceError, read_index

FETCHED = 32 << 20
"""How much is fetched with one request at least (bytes)."""


def adopt(
    folder: Folder, stamp: Stamp, whole: Source, places: Mapping[str, Place]
) -> tuple[Source, Mapping[str, Place]] | None:
    """Fetch it; workers of this node share that.

    Args:
        whole: who has all of it.
        places: where the tensors lie there, by name.

    Returns:
        this node as a source, and where the tensors lie here; None: it has no room, or that node's copy is not good.
    """
    size = max((place.at + place.bytes for place in places.values()), default=0)
    allowed = folder.control().memory
    if allowed is not None and SLOTS * size > allowed:
        return None
    try:
        slot = folder.begin(stamp)
        memory = Mapped(slot.path / SHARED, size)
        parts = _blocks(places.values())
        with contextlib.closing(Claims(slot.path / ADOPTED, len(parts))) as claims:
            for number in claims.mine(wait=True):
                _fetch(memory, whole, parts[number])
        _index(slot, whole)
    except (SnapshotError, SourceError, OSError):
        return None  # each worker reads what it needs, from whoever has a good copy
    known_good = {name: replace(place, digest="") for name, place in places.items()}
    return Source({"node": "", "path": str(slot.path), "whole": True}, stamp), known_good


def _blocks(places: Iterable[Place]) -> list[list[Place]]:
    """Tensors of a file that lie side by side, of `FETCHED` bytes together at least."""
    found: list[list[Place]] = []
    for place in sorted(places, key=lambda place: place.at):
        if not found or place.at - found[-1][0].at >= FETCHED:
            found.append([])
        found[-1].append(place)
    return found


def _fetch(memory: Mapped, source: Source, block: list[Place]) -> None:
    """Fetch a block.

    Raises:
        SourceError: it cannot be had, or is corrupt.
    """
    first, end = block[0], block[-1].at + block[-1].bytes
    source.read_into(first.file, first.at, memory.bytes[first.at : end])
    for place in block:
        if memory.digest(place) != place.digest:
            raise SourceError(f"'{place.name}' {source.where} is corrupt")


def _index(slot: Slot, source: Source) -> None:
    """Say what this node has now: the parts of the ranks of the node that it comes from."""
    for rank in source.ranks:
        if (slot.path / INDEX.format(rank)).exists():
            continue
        text = source.index(rank)
        small = memoryview(bytearray(read_index(source, rank, xxh3_64_hexdigest).small_bytes))
        source.read_into(SMALL.format(rank), 0, small)
        put(slot.path / SMALL.format(rank), bytes(small))
        put(slot.path / INDEX.format(rank), text)
