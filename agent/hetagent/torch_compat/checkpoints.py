"""What torch.distributed has under private names: what writes checkpoints at a URL, names, its store."""

from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo
from torch.distributed.checkpoint.state_dict import _get_fqns as get_fqns
from torch.distributed.distributed_c10d import _get_default_store as default_store

__all__ = ["FsspecWriter", "StorageInfo", "default_store", "get_fqns"]
