"""Tensors in files: mapped and touched before they are needed, so that a snapshot takes no longer than a copy."""

import contextlib
import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import ALIGNED, FileDigest, TensorLocation
from hetagent.torch_compat.checkpoints import make_tensor_header

PORTABLE = 1
"""`cudaHostRegister`: pinned for all devices of the process."""

_POPULATE_WRITE = 23
"""`madvise`, since Linux 5.14: have all pages, as if each had been written to."""


class MappedFile:
    """A file, mapped. A larger one stays so for now: somebody may need what is in it; see `truncate_to_map`."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._path = path
        try:
            with path.open("a+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)
                self._inode = os.fstat(file.fileno()).st_ino
                self._map = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise SnapshotError(
                f"no room for {size / 1e6:.0f} MB in {path.parent}: {error.strerror}"
            ) from None
        self._address = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        # Without the GIL. Older kernels refuse, and the first copy takes 10 times as long.
        madvise = ctypes.CDLL(None).madvise
        madvise(ctypes.c_void_p(self._address), ctypes.c_size_t(size), ctypes.c_int(_POPULATE_WRITE))

    def truncate_to_map(self) -> bool:
        """Have the file end where the map does, since its slot is about to be written; False: it is another file."""
        with contextlib.suppress(OSError):
            found = os.stat(self._path)
            if found.st_ino == self._inode and found.st_size >= self.size:
                os.truncate(self._path, self.size)
                return True
        return False

    def tensor_at(self, place: TensorLocation) -> Tensor:
        """Where a tensor goes; what `torch.load` expects before it is written."""
        self._map[place.at - place.head : place.at] = _head(get_dtype(place), place.lengths)
        return view_as_tensor(self._map, place)

    def pin(self) -> None:
        """Have GPUs copy to it by themselves, as torch pins shared memory; else copies take longer.

        Not for a script's thread, where an error would stay CUDA's last one.
        """
        cudart, address = torch.cuda.cudart(), self._address
        if not int(cudart.cudaHostRegister(address, self.size, PORTABLE)):
            weakref.finalize(self, cudart.cudaHostUnregister, address).atexit = False

    def digest(self) -> FileDigest:
        """Of what is in it; without the GIL, since the script goes on beside it."""
        return FileDigest(self.size, xxh3_64_hexdigest(self._map))


_head = lru_cache(maxsize=4096)(make_tensor_header)


def locate_tensor(
    name: str,
    tensor: Tensor,
    shape: Sequence[int] = (),
    offsets: Sequence[int] = (),
    *,
    file: str = "",
    after: int = 0,
) -> TensorLocation:
    """Where a tensor goes in a file, after so many bytes; of a part also the whole one's shape, and where it begins."""
    lengths = tuple(tensor.shape)
    head = len(_head(tensor.dtype, lengths))
    return TensorLocation(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(shape or lengths),
        offsets=tuple(offsets or [0] * len(lengths)),
        lengths=lengths,
        bytes=math.prod(lengths) * tensor.dtype.itemsize,
        head=head,
        file=file,
        at=-(-(after + head) // ALIGNED) * ALIGNED,
    )


def get_dtype(place: TensorLocation) -> torch.dtype:
    """Its dtype; ValueError: this torch has no such dtype."""
    dtype = getattr(torch, place.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"'{place.name}' is of dtype {place.dtype}, which this torch does not have")
    return dtype


def view_as_tensor(memory: mmap.mmap | memoryview, place: TensorLocation) -> Tensor:
    """A tensor in memory."""
    if not place.bytes:
        return torch.empty(place.lengths, dtype=get_dtype(place), device="cpu")
    count = math.prod(place.lengths)
    return torch.frombuffer(memory, dtype=get_dtype(place), count=count, offset=place.at).view(place.lengths)
