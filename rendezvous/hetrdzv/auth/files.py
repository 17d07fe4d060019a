"""Files that hold secrets: who can read them, and whether they have changed."""

import os
from pathlib import Path

from hetrdzv.protocol.errors import HetError


class AccessError(HetError, code="access"):
    """A token, or a file with tokens, that cannot be used."""


Stamp = tuple[int, ...]
"""Differs if a file was written or replaced."""


def is_private(path: Path) -> bool:
    """Whether nobody but the owner of a file (and root) can read or write it; a missing file is private."""
    try:
        return path.stat().st_mode & 0o077 == 0
    except FileNotFoundError:
        return True


def exposed(path: Path) -> str | None:
    """A warning about a token file that other users can read; None if they cannot."""
    if is_private(path):
        return None
    return f"token file {path} can be read by other users of this machine: chmod 600 {path}"


def stamp_of(stat: os.stat_result) -> Stamp:
    """The stamp of a file."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
