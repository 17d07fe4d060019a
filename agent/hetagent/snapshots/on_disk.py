"""Snapshots on disk, or at a URL: a directory each, an ordinary checkpoint of DCP with our own files beside it.

Beside DCP's files lie `RANK.json`, which says where in them a rank's tensors are and what their digests are;
`RANK.small`; and `snapshot.json`, which is written last. See `folder.py` for the first two.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hetagent.snapshots.folder import VERSION, Stamp

MARK = "snapshot.json"
PART = "{}.part"
"""What one node has written, by its first rank, until the checkpoint is complete."""

OVERTAKEN = 3
"""Exit status of what writes one if its memory is that of a newer one by now."""

CHUNK = 64 << 20
"""How much is asked of a URL at a time (bytes)."""

_NAME = re.compile(r"step-(\d{1,15})-round-(\d{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What `snapshot.json` says.

    Attributes:
        size: of all files (bytes).
        ranks: the digests of the indexes, by rank.
    """

    stamp: Stamp
    world_size: int
    sharded: bool
    size: int
    ranks: Mapping[int, str] = field(default_factory=dict)

    def written(self) -> bytes:
        """As it is in its file."""
        told = {name: getattr(self, name) for name in ("world_size", "sharded", "size", "ranks")}
        return json.dumps({"v": VERSION, "round": self.stamp.round, "step": self.stamp.step, **told}).encode()

    @classmethod
    def read(cls, path: Path) -> "Mark | None":
        """That of a directory; None: what is in it is not complete, or nothing that this version knows."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            told: dict[str, Any] = json.loads((path / MARK).read_bytes())
            if told["v"] == VERSION:
                return cls(
                    stamp=Stamp(step=int(told["step"]), round=int(told["round"])),
                    world_size=int(told["world_size"]),
                    sharded=bool(told["sharded"]),
                    size=int(told["size"]),
                    ranks={int(rank): str(digest) for rank, digest in told["ranks"].items()},
                )
        return None


def path_of(text: str) -> Path:
    """A directory, or what a URL such as `s3://bucket/checkpoints` names: a `UPath`, which has the methods of a path.

    Raises:
        ModuleNotFoundError, ImportError: what reads such URLs is not installed.
        ValueError: there are no such URLs.
    """
    if not is_url(text):
        return Path(text)
    from upath import UPath

    found = UPath(text, use_listings_cache=False)  # others write there, too
    assert found.fs is not None
    return cast("Path", found)


def is_url(path: Path | str) -> bool:
    """Whether that is no directory of this machine."""
    return "://" in str(path)


def read_part(path: Path, at: int, into: memoryview) -> int:
    """Fill memory with a part of a file; returns how much there was (bytes).

    Raises:
        OSError: it cannot be read.
    """
    got = 0
    if is_url(path):
        files = cast("Any", path).fs
        while got < into.nbytes:
            end = min(into.nbytes, got + CHUNK)
            content = files.cat_file(cast("Any", path).path, start=at + got, end=at + end)
            if not content:
                return got
            into[got : got + len(content)] = content
            got += len(content)
        return got
    with path.open("rb", buffering=0) as file:
        while got < into.nbytes and (count := os.preadv(file.fileno(), [into[got:]], at + got)):
            got += count
    return got


def remove(path: Path) -> None:
    """Remove a directory with all that is in it; what cannot be removed stays."""
    if is_url(path):
        with contextlib.suppress(Exception):  # the errors of fsspec's file systems have no base of their own
            cast("Any", path).fs.rm(cast("Any", path).path, recursive=True)
        return
    shutil.rmtree(path, ignore_errors=True)


def name_of(stamp: Stamp) -> str:
    """The name of a snapshot's directory: `step-1200-round-3`."""
    return f"step-{stamp.step}-round-{stamp.round}"


def directories(path: Path) -> dict[Stamp, Path]:
    """The directories of snapshots below another one, complete or not.

    Raises:
        OSError: nobody can tell. Of a URL whatever its file system raises.
    """
    found = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for each in path.iterdir():
            if (match := _NAME.fullmatch(each.name)) is not None:
                found[Stamp(step=int(match[1]), round=int(match[2]))] = path / each.name
    return found
