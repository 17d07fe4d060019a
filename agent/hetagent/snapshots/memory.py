"""Files in memory that a worker copies tensors into: mapped once, and touched before they are needed."""

import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from xxhash import xxh3_64

from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import ALIGNED, SHARED, SLOTS, Folder, Place, Slot, Stamp, Sum

PORTABLE = 1
"""`cudaHostRegister`: pinned for all devices of the process."""

MOST_PLACES = 1 << 16
"""Of how many tensors it is remembered what is known of them."""

_POPULATE_WRITE = 23
"""`madvise`, since Linux 5.14: have all pages, as if each had been written to."""


class Mapped:
    """A file, mapped. What is not there yet takes a while: 10 times as long as a copy.

    One that is larger stays so until its slot is given to another snapshot: somebody may need what is in it.

    Raises:
        SnapshotError: there is no room for it.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size = max(size, 1)
        self._path = path
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, self.size)
            self._inode = os.fstat(fd).st_ino
            self._map = mmap.mmap(fd, self.size)
        except OSError as error:
            raise SnapshotError(
                f"no room for {size / 1e6:.0f} MB in {path.parent}: {error.strerror}"
            ) from None
        finally:
            os.close(fd)
        self.bytes = memoryview(self._map)
        self._tensor = torch.frombuffer(self._map, dtype=torch.uint8)
        self._views: dict[int, tuple[Place, Tensor]] = {}  # by where they begin
        libc = ctypes.CDLL(None)  # without the GIL; older kernels refuse, and the first copy takes longer
        libc.madvise(
            ctypes.c_void_p(self._tensor.data_ptr()),
            ctypes.c_size_t(self.size),
            ctypes.c_int(_POPULATE_WRITE),
        )

    def trimmed(self) -> bool:
        """Give back what the file is larger; returns whether it is still the one that was mapped.

        Only for a slot that has been given to a snapshot that is about to be copied.
        """
        try:
            found = os.stat(self._path)
            if found.st_ino == self._inode and found.st_size > self.size:
                os.truncate(self._path, self.size)
        except OSError:
            return False
        return found.st_ino == self._inode and found.st_size >= self.size

    def pin(self) -> bool:
        """Have GPUs copy to it by themselves, beside what else they do; as torch pins memory that processes share.

        Not for a script's thread, where an error would stay CUDA's last one.

        Returns:
            whether that worked; if not, copies are made all the same, and take longer.
        """
        cudart, address = torch.cuda.cudart(), self._tensor.data_ptr()
        if int(cudart.cudaHostRegister(address, self.size, PORTABLE)):
            return False
        weakref.finalize(self, cudart.cudaHostUnregister, address).atexit = False
        return True

    def tensor(self, place: Place) -> Tensor:
        """The memory of a tensor in the file."""
        known = self._views.get(place.at)
        if known is None or known[0] is not place:
            self._views[place.at] = known = place, view(self._tensor, place)
        return known[1]

    def sum(self) -> Sum:
        """Of what is in it; without the GIL, since the script goes on beside it."""
        digest = xxh3_64()
        digest.update(self.bytes)
        return Sum(self.size, digest.hexdigest())


class Files:
    """The files of all slots that a worker copies to.

    Args:
        folder: with the slots.

    Attributes:
        pins: whether GPUs copy to them.
        pinned: whether all could be pinned for that.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._mapped: dict[tuple[int, str], Mapped] = {}
        self.pins, self.pinned = False, True

    def file(self, slot: Slot, name: str, size: int, *, begun: bool = True) -> Mapped:
        """A file of a slot.

        Args:
            begun: the slot is given to the snapshot that is about to be copied.
        """
        key = (slot.number, name)
        known = self._mapped.get(key)
        if known is None or known.size != max(size, 1) or (begun and not known.trimmed()):
            self._mapped.pop(key, None)
            self._mapped[key] = known = Mapped(slot.path / name, size)
            if begun:
                known.trimmed()
            elif self.pins:
                self.pinned = known.pin() and self.pinned
        return known

    def make(self, sizes: Mapping[str, int], count: int) -> None:
        """Have the memory of so many slots, so that no snapshot has to wait for that.

        Args:
            sizes: of the files of a slot (bytes).
        """
        for number in range(count):
            for name, size in sizes.items():
                slot = Slot(self._folder.path / str(number), number, Stamp(0, 0))
                slot.path.mkdir(mode=0o700, exist_ok=True)
                self.file(slot, name, size, begun=False)

    def give_back(self, names: Iterable[str]) -> None:
        """Nothing is copied any more; others need the memory of slots that hold nothing."""
        kept = {slot.number for slot in self._folder.slots().values()}
        for number in set(range(SLOTS)) - kept:
            for name in names:
                (self._folder.path / str(number) / name).unlink(missing_ok=True)
        self._mapped.clear()


@dataclass(frozen=True, slots=True)
class Layout:
    """Where tensors go in a file, side by side.

    Attributes:
        size: of the file (bytes).
    """

    places: tuple[Place, ...]
    size: int


def laid_out(places: Sequence[Place], file: str) -> Layout:
    """Give tensors their places in a file, in their order."""
    at, found = 0, []
    for place in places:
        found.append(place._replace(file=file, at=at))
        at += -(-place.bytes // ALIGNED) * ALIGNED
    return Layout(tuple(found), at)


def place_of(
    name: str, tensor: Tensor, shape: Sequence[int] | None = None, offsets: Sequence[int] = ()
) -> Place:
    """What is known of a tensor before it has its place.

    Args:
        shape, offsets: of the whole, if this is a part.
    """
    lengths = tensor.shape
    return _place(name, tensor.dtype, tuple(shape or lengths), tuple(offsets), lengths, tensor.device.type)


@lru_cache(maxsize=MOST_PLACES)
def _place(
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    offsets: tuple[int, ...],
    lengths: tuple[int, ...],
    device: str,
) -> Place:
    """The same object for the same tensor, which is laid out again and again."""
    return Place(
        name=name,
        dtype=str(dtype).removeprefix("torch."),
        shape=shape,
        offsets=offsets or (0,) * len(lengths),
        lengths=tuple(lengths),
        bytes=math.prod(lengths) * dtype.itemsize,
        device=device,
    )


def dtype_of(place: Place) -> torch.dtype:
    """Its dtype.

    Raises:
        ValueError: this torch has no such dtype.
    """
    dtype = getattr(torch, place.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"'{place.name}' is of dtype {place.dtype}, which this torch does not have")
    return dtype


def view(memory: Tensor, place: Place) -> Tensor:
    """A tensor in memory of bytes."""
    if not place.bytes:
        return torch.empty(place.lengths, dtype=dtype_of(place), device="cpu")
    return memory[place.at : place.at + place.bytes].view(dtype_of(place)).view(place.lengths)


def as_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU; valid as long as the tensor is there."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def needed(sizes: Mapping[str, int], local_world_size: int, *, copies: bool) -> int:
    """How much memory a slot of a node takes (bytes), about.

    Args:
        sizes: of the files of a slot that one worker writes to (bytes).
        copies: whether they also have the shards of another node.
    """
    of_ranks = sum(size for name, size in sizes.items() if name != SHARED)
    return sizes.get(SHARED, 0) + of_ranks * local_world_size * (1 + copies)
