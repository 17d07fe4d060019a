"""What torch.distributed.checkpoint has under private names: what writes to a URL, and where a piece lies in a file."""

from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo

__all__ = ["FsspecWriter", "StorageInfo"]
