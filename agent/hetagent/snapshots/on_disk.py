"""Snapshots on disk: a directory each, which is an ordinary checkpoint of DCP, and has our own files beside it.

Beside DCP's files lie `RANK.json`, which says where in them a rank's tensors are and what their digests are;
`RANK.small`; and `snapshot.json`, which is written last. See `folder.py` for the first two.
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetagent.snapshots.folder import VERSION, Stamp

MARK = "snapshot.json"
PART = "{}.part"
"""What one node has written, by its first rank, until the checkpoint is complete."""

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


def name_of(stamp: Stamp) -> str:
    """The name of a snapshot's directory: `step-1200-round-3`."""
    return f"step-{stamp.step}-round-{stamp.round}"


def directories(path: Path) -> dict[Stamp, Path]:
    """The directories of snapshots below another one, complete or not."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            if (match := _NAME.fullmatch(name)) is not None:
                found[Stamp(step=int(match[1]), round=int(match[2]))] = path / name
    return found
