"""Snapshots on disk: a directory each, an ordinary checkpoint of DCP, and `snapshot.json`, written last.

Its tensors are in the files that a slot has in memory (see `folder.py`).
"""

import contextlib
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import VERSION, SnapshotId

METADATA_FILE = "snapshot.json"

EXIT_SUPERSEDED = 3
"""Exit status of what writes one if its memory is that of a newer one by now."""

WRITABLE_BY_OTHERS = 0o022
"""Permissions of others than this user to write."""

MOST_JOBS = 16
"""Of how many jobs before its own a snapshot tells that it descends from them."""

_NAME = re.compile(r"step-(\d{1,15})-round-(\d{1,15})(?:-job-([0-9A-Za-z]{1,32}))?", re.ASCII)


def directory_name(stamp: SnapshotId) -> str:
    """The name of a snapshot's directory: `step-1200-round-3-job-0f3a5b7c9d1e2f30`."""
    return f"step-{stamp.step}-round-{stamp.round}" + (f"-job-{stamp.origin}" if stamp.origin else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMetadata:
    """What `snapshot.json` says."""

    world_size: int
    sharded: bool
    size: int  # of all files (bytes)
    ranks: Mapping[int, str] = field(default_factory=dict)  # the digests of their indexes
    after: Sequence[str] = ()  # the jobs that it went on with, the oldest first; only theirs are pruned
    written_at: int = 0  # when it was complete (seconds since the epoch)

    def to_json(self) -> bytes:
        """As it is in its file."""
        return json.dumps({"v": VERSION, **{name: getattr(self, name) for name in self.__slots__}}).encode()

    @classmethod
    def read_metadata(cls, path: Path) -> "SnapshotMetadata | None":
        """That of a directory; None: what is in it is not complete, or nothing that this version knows."""
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
        ):
            fields: dict[str, Any] = json.loads((path / METADATA_FILE).read_bytes())
            if fields.pop("v") == VERSION:
                fields |= {name: int(fields[name]) for name in ("world_size", "size", "written_at")}
                fields["ranks"] = {int(rank): str(digest) for rank, digest in fields["ranks"].items()}
                fields["after"] = tuple(map(str, fields["after"]))
                return cls(**fields)
        return None


def require_private(path: Path) -> None:
    """Check that nobody else can write to a directory or a file: who loads a snapshot runs the code that is in it.

    Nor may they put another one in its place, or in that of what a link leads to.

    SnapshotError: others can; OSError: nobody can tell.
    """
    with contextlib.suppress(FileNotFoundError):
        for each in dict.fromkeys((path.absolute(), path.resolve())):
            stats, above = each.lstat(), each.parent.stat()
            if stats.st_uid not in (os.geteuid(), 0):
                what = f"{each} belongs to user {stats.st_uid}, not to {os.geteuid()}, who runs this"
                mend = f"take another directory, or chown -R {os.geteuid()} {each}"
            elif stats.st_mode & WRITABLE_BY_OTHERS and not stat.S_ISLNK(stats.st_mode):
                what = f"others can write to {each} (mode {stats.st_mode & 0o7777:o})"
                mend = f"chmod -R go-w {each}"
            elif (
                above.st_mode & 0o002 and not above.st_mode & stat.S_ISVTX
            ):  # a group may share what is above
                what = f"others can write to {each.parent} (mode {above.st_mode & 0o7777:o})"
                mend = f"take a new directory below it, or chmod o-w {each.parent}"
            else:
                continue
            raise SnapshotError(f"{what}, and whoever can change a snapshot can run code in the job: {mend}")


def list_directories(path: Path) -> dict[SnapshotId, Path]:
    """The directories of snapshots below another one, complete or not."""
    found = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for each in path.iterdir():
            if match := _NAME.fullmatch(each.name):
                found[SnapshotId(int(match[2]), int(match[1]), match[3] or "")] = each
    return found


def sort_newest_first(marks: Mapping[SnapshotId, SnapshotMetadata], own: str) -> list[SnapshotId]:
    """Snapshots in the order in which a job would go on from them: its own, then those of whoever wrote last."""
    last: dict[str, int] = {}
    for which, mark in marks.items():
        last[which.origin] = max(mark.written_at, last.get(which.origin, 0))
    return sorted(marks, key=lambda which: (which.origin == own, last[which.origin], *which), reverse=True)
