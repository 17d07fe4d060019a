"""Fetches to this node what all ranks have alike, once for all its workers; then it has a copy as well."""

import contextlib
from collections.abc import Mapping

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


def adopt(
    folder: Folder, stamp: Stamp, alike: Mapping[str, list[tuple[Source, Place]]]
) -> tuple[Source, Mapping[str, Place]] | None:
    """Fetch it; workers of this node share that.

    Args:
        alike: where the tensors lie that ranks have alike, by name.

    Returns:
        this node as a source, and where the tensors lie here; None: it has no room, or nobody else has all of it.
    """
    whole = next((source for copies in alike.values() for source, _ in copies if source.whole), None)
    if whole is None:
        return None
    places = {name: place for name, copies in alike.items() for source, place in copies if source is whole}
    size = max((place.at + place.bytes for place in places.values()), default=0)
    allowed = folder.control().memory
    if places.keys() != alike.keys() or (allowed is not None and SLOTS * size > allowed):
        return None
    try:
        slot = folder.begin(stamp)
        memory = Mapped(slot.path / SHARED, size)
        names = sorted(places, key=lambda name: places[name].at)
        with contextlib.closing(Claims(slot.path / ADOPTED, len(names))) as claims:
            for number in claims.mine(wait=True):
                _fetch(memory, places[names[number]], alike[names[number]])
        _index(slot, whole)
    except (SnapshotError, SourceError, OSError):
        return None  # each worker reads from others what it needs
    return Source({"node": "", "path": str(slot.path), "whole": True}, stamp), places


def _fetch(memory: Mapped, place: Place, copies: list[tuple[Source, Place]]) -> None:
    """Fetch a tensor from the first source whose copy is good.

    Raises:
        SourceError: none is.
    """
    into = memory.bytes[place.at : place.at + place.bytes]
    trouble = SourceError(f"nobody has '{place.name}'")
    for source, there in copies:
        try:
            source.read_into(there.file, there.at, into)
            if xxh3_64_hexdigest(into) == place.digest:
                return
        except SourceError as error:
            trouble = error
    raise trouble


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
