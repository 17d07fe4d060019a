"""Files in memory that a worker copies tensors into: mapped once, and touched before they are needed."""

import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import ALIGNED, SLOTS, Folder, Place, Slot, Stamp, Sum

PORTABLE = 1
"""`cudaHostRegister`: pinned for all devices of the process."""

_POPULATE_WRITE = 23
"""`madvise`, since Linux 5.14: have all pages, as if each had been written to."""


class Mapped:
    """A file, mapped. What is not there yet takes a while: 10 times as long as a copy.

    One that is larger stays so until its slot is given to another snapshot: somebody may need what is in it.

    Raises:
        SnapshotError: there is no room for it.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._path = path
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            self._inode = os.fstat(fd).st_ino
            self.memory = torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)
        except OSError as error:
            raise SnapshotError(
                f"no room for {size / 1e6:.0f} MB in {path.parent}: {error.strerror}"
            ) from None
        finally:
            os.close(fd)
        madvise = ctypes.CDLL(
            None
        ).madvise  # without the GIL; older kernels refuse, and the first copy takes longer
        madvise(ctypes.c_void_p(self.memory.data_ptr()), ctypes.c_size_t(size), ctypes.c_int(_POPULATE_WRITE))

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
        cudart, address = torch.cuda.cudart(), self.memory.data_ptr()
        if int(cudart.cudaHostRegister(address, self.size, PORTABLE)):
            return False
        weakref.finalize(self, cudart.cudaHostUnregister, address).atexit = False
        return True

    def sum(self) -> Sum:
        """Of what is in it; without the GIL, since the script goes on beside it."""
        return Sum(self.size, xxh3_64_hexdigest(as_bytes(self.memory)))


class Files:
    """The files of all slots that a worker copies to.

    Attributes:
        pins: whether GPUs copy to them.
        pinned: whether all could be pinned for that.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._mapped: dict[tuple[int, str], Mapped] = {}
        self.pins, self.pinned = False, True

    def file(self, slot: Slot, name: str, size: int) -> Mapped:
        """A file of a slot that is given to the snapshot that is about to be copied."""
        known = self._mapped.get((slot.number, name))
        if known is None or known.size != size or not known.trimmed():
            self._mapped[slot.number, name] = known = Mapped(slot.path / name, size)
            known.trimmed()
        return known

    def make(self, sizes: Mapping[str, int], count: int) -> None:
        """Have the memory of so many slots, so that no snapshot has to wait for that.

        Args:
            sizes: of the files of a slot (bytes).
        """
        for number in range(count):
            path = Slot(self._folder.path / str(number), number, Stamp(0, 0)).path
            path.mkdir(mode=0o700, exist_ok=True)
            for name, size in sizes.items():
                self._mapped[number, name] = made = Mapped(path / name, size)
                self.pinned = not self.pins or (made.pin() and self.pinned)

    def give_back(self, names: Iterable[str]) -> None:
        """Nothing is copied any more; others need the memory of slots that hold nothing."""
        held = {slot.number for slot in self._folder.slots().values()}
        for number in set(range(SLOTS)) - held:
            for name in names:
                (self._folder.path / str(number) / name).unlink(missing_ok=True)
        self._mapped.clear()


def laid_out(places: Iterable[Place], file: str) -> tuple[list[Place], int]:
    """Give tensors their places in a file, side by side in their order; returns its size, too (bytes)."""
    at, found = 0, []
    for place in places:
        found.append(place._replace(file=file, at=at))
        at += -(-place.bytes // ALIGNED) * ALIGNED
    return found, max(at, 1)


def place_of(
    name: str, tensor: Tensor, shape: Sequence[int] | None = None, offsets: Sequence[int] | None = None
) -> Place:
    """What is known of a tensor before it has its place.

    Args:
        shape, offsets: of the whole, if this is a part.
    """
    lengths = tuple(tensor.shape)
    return Place(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=lengths if shape is None else tuple(shape),
        offsets=(0,) * len(lengths) if offsets is None else tuple(offsets),
        lengths=lengths,
        device=tensor.device.type,
        bytes=math.prod(lengths) * tensor.dtype.itemsize,
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
