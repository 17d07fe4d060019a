"""Tensors in files: mapped and touched before they are needed, so that a snapshot takes no longer than a copy."""

import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import ALIGNED, FileDigest, TensorLocation
from hetagent.torch_compat.checkpoints import head_of

PORTABLE = 1
"""`cudaHostRegister`: pinned for all devices of the process."""

_POPULATE_WRITE = 23
"""`madvise`, since Linux 5.14: have all pages, as if each had been written to."""


class MappedFile:
    """A file, mapped. A larger one stays so for now: somebody may need what is in it; see `is_intact`."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._path = path
        self._places: Sequence[TensorLocation] = ()  # which have their heads
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            self._inode = os.fstat(fd).st_ino
            self._map = mmap.mmap(fd, size)
            self.memory = torch.frombuffer(self._map, dtype=torch.uint8)
        except OSError as error:
            raise SnapshotError(
                f"no room for {size / 1e6:.0f} MB in {path.parent}: {error.strerror}"
            ) from None
        finally:
            os.close(fd)
        # Without the GIL. Older kernels refuse, and the first copy takes 10 times as long.
        madvise = ctypes.CDLL(None).madvise
        madvise(ctypes.c_void_p(self.memory.data_ptr()), ctypes.c_size_t(size), ctypes.c_int(_POPULATE_WRITE))

    def is_intact(self) -> bool:
        """Whether it still is the file that was mapped, which is cut to its size: its slot is about to be written."""
        try:
            found = os.stat(self._path)
            if found.st_ino == self._inode and found.st_size > self.size:
                os.truncate(self._path, self.size)
        except OSError:
            return False
        return found.st_ino == self._inode and found.st_size >= self.size

    def write_headers(self, places: Sequence[TensorLocation]) -> None:
        """Write what comes before tensors."""
        for place in places if places != self._places else ():
            head = torch.frombuffer(bytearray(_head(dtype_of(place), place.lengths)), dtype=torch.uint8)
            self.memory[place.at - place.head : place.at] = head
        self._places = places

    def pin(self) -> None:
        """Have GPUs copy to it by themselves, as torch pins shared memory; else copies take longer.

        Not for a script's thread, where an error would stay CUDA's last one.
        """
        cudart, address = torch.cuda.cudart(), self.memory.data_ptr()
        if not int(cudart.cudaHostRegister(address, self.size, PORTABLE)):
            weakref.finalize(self, cudart.cudaHostUnregister, address).atexit = False

    def digest(self) -> FileDigest:
        """Of what is in it; without the GIL, since the script goes on beside it."""
        return FileDigest(self.size, xxh3_64_hexdigest(self._map))


def assign_offsets(places: Iterable[TensorLocation], file: str) -> tuple[list[TensorLocation], int]:
    """Give tensors their places in a file, side by side in their order; returns its size, too (bytes)."""
    end, found = 0, []
    for place in places:
        at = -(-(end + place.head) // ALIGNED) * ALIGNED
        found.append(place._replace(file=file, at=at))
        end = at + place.bytes
    return found, max(end, 1)


_head = lru_cache(maxsize=4096)(head_of)


def locate_tensor(
    name: str, tensor: Tensor, shape: Sequence[int] | None = None, offsets: Sequence[int] | None = None
) -> TensorLocation:
    """What is known of a tensor before it has its place; of a part also the whole one's shape, and where it begins."""
    lengths = tuple(tensor.shape)
    return TensorLocation(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=lengths if shape is None else tuple(shape),
        offsets=(0,) * len(lengths) if offsets is None else tuple(offsets),
        lengths=lengths,
        bytes=math.prod(lengths) * tensor.dtype.itemsize,
        head=len(_head(tensor.dtype, lengths)),
    )


def dtype_of(place: TensorLocation) -> torch.dtype:
    """Its dtype; ValueError: this torch has no such dtype."""
    dtype = getattr(torch, place.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"'{place.name}' is of dtype {place.dtype}, which this torch does not have")
    return dtype


def view_as_tensor(memory: Tensor, place: TensorLocation) -> Tensor:
    """A tensor in memory of bytes."""
    if not place.bytes:
        return torch.empty(place.lengths, dtype=dtype_of(place), device="cpu")
    return memory[place.at : place.at + place.bytes].view(dtype_of(place)).view(place.lengths)
