"""What writes a checkpoint of `torch.distributed.checkpoint` to a URL; torch has it, but under a private name."""

from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

__all__ = ["FsspecWriter"]
