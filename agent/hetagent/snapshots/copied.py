"""What was copied for a snapshot, until it has its digests and its index."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.errors import Overtaken
from hetagent.snapshots.folder import INDEX, SMALL, Folder, Index, Place, Slot, put
from hetagent.snapshots.memory import Mapped
from hetagent.snapshots.small import digests, unpack


class Copy:
    """What was copied for a snapshot, without its digests.

    Attributes:
        index: of this worker's part.
    """

    def __init__(
        self,
        folder: Folder,
        slot: Slot,
        index: Index,
        places: Sequence[Place],
        small: bytes,
        files: Mapping[tuple[int, str], Mapped],
    ) -> None:
        self.index = index
        self._folder = folder
        self._slot = slot
        self._places = places
        self._small = small
        self._files = files

    def finish(self) -> None:
        """Digest it, and write the index, with which this worker's part is complete.

        Raises:
            Overtaken: the slot was given away meanwhile.
        """
        number, rank = self._slot.number, self.index.rank
        alike, _ = unpack(memoryview(self._small)[self.index.values :])
        (self._slot.path / SMALL.format(rank)).write_bytes(self._small)
        index = replace(
            self.index,
            tensors=tuple(
                replace(place, digest=self._files[number, place.file].digest(place)) for place in self._places
            ),
            small_digest=xxh3_64_hexdigest(self._small),
            digests=digests(alike),
        )
        if self._slot.stamp not in self._folder.slots():
            raise Overtaken(f"the snapshot of step {index.stamp.step} was overtaken")
        put(self._slot.path / INDEX.format(rank), index.written())
