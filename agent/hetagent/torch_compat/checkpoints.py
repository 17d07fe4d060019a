"""What torch.distributed has under private names: what writes checkpoints to a URL, where a piece lies, its store."""

from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo
from torch.distributed.distributed_c10d import _get_default_store as default_store

__all__ = ["FsspecWriter", "StorageInfo", "default_store"]
