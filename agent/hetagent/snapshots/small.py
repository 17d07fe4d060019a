"""What is kept at every step: buffers, and values that scripts have."""

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hetagent.snapshots.devices import ON_HOST, Copies
from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.memory import as_bytes, laid_out, place_of, view


@dataclass
class Half:
    """What was kept of one step."""

    tensors: Sequence[Tensor]
    step: int | None = None
    values: bytes = b""


class Bank:
    """The small tensors and values of the last two steps: devices may be a step behind the script.

    What is on a device is kept there, since a copy to the host would wait for the device at every step.

    Args:
        tensors: by name, always the same ones.
        file: where they go.

    Attributes:
        places: where each lies there.
        size: of them; values follow (bytes).
    """

    def __init__(self, tensors: Sequence[tuple[str, Tensor]], file: str) -> None:
        self.places, self.size = laid_out((place_of(name, tensor) for name, tensor in tensors), file)
        self._halves = [Half([torch.empty_like(tensor.detach()) for _, tensor in tensors]) for _ in range(2)]

    def keep(self, step: int, tensors: Sequence[tuple[str, Tensor]], values: bytes) -> bool:
        """Keep what belongs to a step; False: another bank is needed, since these are others."""
        self._halves.reverse()
        half = self._halves[0]
        half.step = None
        if [tensor.shape for _, tensor in tensors] != [kept.shape for kept in half.tensors]:
            return False
        for (_, tensor), kept in zip(tensors, half.tensors, strict=True):
            kept.copy_(tensor.detach())
        half.step, half.values = step, values
        return True

    def kept(self, step: int, copies: Copies) -> Tensor | None:
        """The bytes that were kept of a step, once the copies are made; None: there are none, or no longer."""
        half = next((half for half in self._halves if half.step == step), None)
        if half is None:
            return None
        on_device = any(tensor.device.type not in ON_HOST for tensor in half.tensors)
        size = self.size + len(half.values)
        content = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=on_device)
        for place, tensor in zip(self.places, half.tensors, strict=True):
            copies.copy(tensor, view(content, place))
        as_bytes(content)[self.size :] = half.values
        return content


def pack(replicated: Mapping[str, Any], per_rank: Mapping[str, Any]) -> bytes:
    """Values as bytes.

    Raises:
        SnapshotError: one cannot be pickled.
    """
    try:
        return pickle.dumps((replicated, per_rank), protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SnapshotError(f"a value of the state cannot be saved: {error}") from None


class OnHost(pickle.Unpickler):
    """Reads what `pack` has made; tensors that were on devices are on the CPU."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda content: torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
        return super().find_class(module, name)
