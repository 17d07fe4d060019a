"""What is kept at every step, in memory that outlives the worker: buffers, and values that scripts have.

The last two steps are there, since living workers may be a step apart when a round ends.
"""

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from xxhash import xxh3_64

from hetagent.snapshots.banked import FIRST, HEADER
from hetagent.snapshots.devices import Copies
from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import ALIGNED
from hetagent.snapshots.memory import Mapped, as_bytes, laid_out, place_of, view

ROOM = 4096
"""How much longer than twice their first length values may become before another file is needed (bytes)."""


class Bank:
    """The small tensors and values of the last two steps.

    What is on a device is kept there first, since a copy to the host would wait for the device at every step.

    Args:
        path: the file.
        tensors: by name, always the same ones.
        values: how long the values are (bytes).
    """

    def __init__(self, path: Path, tensors: Sequence[tuple[str, Tensor]], values: int) -> None:
        self.layout = laid_out([place_of(name, tensor) for name, tensor in tensors], "")
        self._half = -(-(FIRST + self.layout.size + 2 * values + ROOM) // ALIGNED) * ALIGNED
        self._file = Mapped(path, 2 * self._half)
        self._views = [
            [self._file.tensor(replace(place, at=start + FIRST + place.at)) for place in self.layout.places]
            for start in (0, self._half)
        ]
        self._on_device: list[dict[int, Tensor]] = [{}, {}]  # by number of the tensor
        self._newest = 0  # half

    def keep(self, step: int, tensors: Sequence[tuple[str, Tensor]], values: bytes) -> bool:
        """Keep what belongs to a step; False: another bank is needed, since it does not fit."""
        half = 1 - self._newest
        start, at = half * self._half, FIRST + self.layout.size
        if at + len(values) > self._half or len(tensors) != len(self.layout.places):
            return False
        HEADER.pack_into(self._file.bytes, start, -1, 0, 0)
        for number, (_, tensor) in enumerate(tensors):
            kept = self._views[half][number]
            if tensor.shape != kept.shape:
                return False
            if tensor.device.type != "cpu":
                there = self._on_device[half]
                if number not in there:
                    there[number] = torch.empty_like(tensor)
                kept = there[number]
            kept.copy_(tensor)
        self._file.bytes[start + at : start + at + len(values)] = values
        HEADER.pack_into(self._file.bytes, start, step, self.layout.size, self.layout.size + len(values))
        self._newest = half
        return True

    def kept(self, step: int, copies: Copies) -> Tensor | None:
        """The bytes that were kept of a step, once the copies are made; None: there are none, or no longer."""
        for half, on_device in enumerate(self._on_device):
            start = half * self._half
            known, _, size = HEADER.unpack_from(self._file.bytes, start)
            if known != step:
                continue
            content = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=bool(on_device))
            as_bytes(content)[:] = self._file.bytes[start + FIRST : start + FIRST + size]
            for number, tensor in on_device.items():
                copies.copy(tensor, view(content, self.layout.places[number]))
            return content
        return None


def pack(alike: Mapping[str, Any], own: Mapping[str, Any]) -> bytes:
    """Values as bytes.

    Raises:
        SnapshotError: one cannot be pickled.
    """
    try:
        return pickle.dumps((alike, own), protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SnapshotError(f"a value of the state cannot be saved: {error}") from None


def unpack(
    values: bytes | memoryview, *, on_host: bool = False
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What `pack` was given.

    Args:
        on_host: tensors that were on devices are on the CPU.
    """
    alike, own = _OnHost(io.BytesIO(values)).load() if on_host else pickle.loads(values)
    return alike, own


def digests(values: bytes | memoryview) -> dict[str, str]:
    """Digests of what `pack` was given as alike, the same for equal values on all ranks."""
    alike, _ = unpack(values, on_host=True)  # a device may hang
    return {name: _digest(value) for name, value in alike.items()}


class _OnHost(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda content: torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
        return super().find_class(module, name)


def _digest(value: Any) -> str:
    digest = xxh3_64()

    def add(value: Any) -> None:
        digest.update(type(value).__name__.encode())
        if isinstance(value, Mapping):
            for key, each in value.items():
                add(key)
                add(each)
        elif isinstance(value, list | tuple):
            digest.update(str(len(value)).encode())
            for each in value:
                add(each)
        elif isinstance(value, Tensor):
            digest.update(as_bytes(value.detach().to("cpu").contiguous()))
        elif isinstance(value, int | float | complex | str | bytes | bool | type(None) | torch.dtype):
            digest.update(repr(value).encode())
        else:
            digest.update(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))

    add(value)
    return digest.hexdigest()
