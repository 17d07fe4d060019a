"""What torch has under private names: where a checkpoint's tensors are, names, its store, the format of a tensor."""

import io
import math
import pickle
import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch._utils import _rebuild_tensor_v3
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo
from torch.distributed.checkpoint.state_dict import _get_fqns as get_fqns
from torch.distributed.distributed_c10d import _get_default_store as default_store
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

__all__ = ["StorageInfo", "default_store", "get_fqns", "make_tensor_header"]


class _Tensor:
    """A tensor without its content, with bytes for its storage: not all dtypes have a storage of their own."""

    def __init__(self, dtype: torch.dtype, lengths: tuple[int, ...]) -> None:
        self.size = math.prod(lengths) * dtype.itemsize
        strides = torch.empty(lengths, device="meta").stride()
        storage = ("storage", torch.ByteStorage, "0", "cpu", self.size, None)
        hooks: OrderedDict[str, Any] = OrderedDict()
        self._args = storage, 0, lengths, strides, False, hooks, dtype

    def __reduce__(self) -> Any:
        return _rebuild_tensor_v3, self._args


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        return value if isinstance(value, tuple) and value[:1] == ("storage",) else None


def make_tensor_header(dtype: torch.dtype, lengths: tuple[int, ...]) -> bytes:
    """What `torch.save` writes before the content of a tensor, in its older format: nothing comes after that."""
    tensor, file = _Tensor(dtype, lengths), io.BytesIO()
    parts: Sequence[Any] = (MAGIC_NUMBER, PROTOCOL_VERSION, {}, tensor, ["0"])
    for part in parts:
        _Pickler(file, protocol=2).dump(part)
    return file.getvalue() + struct.pack("<q", tensor.size)
