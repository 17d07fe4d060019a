"""What torch.distributed has under private names: what reads and writes checkpoints at a URL, its store."""

from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.distributed_c10d import _get_default_store as default_store

__all__ = ["FsspecReader", "FsspecWriter", "default_store"]
