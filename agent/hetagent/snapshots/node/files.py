"""The files by which the agent and its workers talk, and what this node holds by the indexes that workers have written.

Workers read `start.json` (from where to begin) and `control.json` (what to do while the round runs). They answer in
`ask/`: a pipe each, by which they are asked to save, `RANK.step`, `RANK.done`, `RANK.off` and `RANK.bad`.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hetagent.node.network import format_host_port
from hetagent.snapshots.folder import Index, Slot, SnapshotFiles, SnapshotId, write_atomic
from hetagent.snapshots.save_request import ASK
from hetrdzv.protocol.snapshots import HeldSnapshot, RankPart, SnapshotSource, StartSnapshot

MOST_WHY = 256
"""Length of a reason that the server takes (characters)."""


class BadCopy(NamedTuple):
    """Workers could not load a copy of a snapshot, which was on `node_id`."""

    stamp: SnapshotId
    node_id: str
    why: str


class SnapshotDir(SnapshotFiles):
    """The files of a node, for its agent."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        (path / ASK).mkdir(mode=0o700, exist_ok=True)
        self.watched = [*self.directories, path / ASK]

    # -- to the workers ----------------------------------------------------------------------------------------

    def begin_round(self, origin: str) -> None:
        """Forget what the workers of the last round have written, and snapshots of another job."""
        (self.path / "start.json").unlink(missing_ok=True)
        is_new = bool(origin) and origin != self.origin
        for slot in self.find_slots().values() if is_new else ():
            slot.path.unlink(missing_ok=True)
        for folder in self.watched if is_new else [self.path / ASK]:  # the folders stay
            for path in folder.iterdir():
                path.unlink(missing_ok=True)
        if is_new:
            write_atomic(self.path / "origin", origin.encode())

    @property
    def origin(self) -> str:
        """The job of these snapshots; empty: none yet."""
        with contextlib.suppress(OSError):
            return (self.path / "origin").read_text()
        return ""

    def write_start(
        self, chosen: StartSnapshot | None, own: str, on_disk: Mapping[str, Any] | None = None
    ) -> None:
        """Write from which snapshot to begin, and where it is: on disk, on this node, or on others."""
        start: dict[str, Any] = {}
        if chosen is not None:
            start = {name: getattr(chosen, name) for name in ("round", "step", "world_size")}
            start["sources"] = [on_disk] if on_disk is not None else []
            slot = self.find_slots().get(SnapshotId(chosen.round, chosen.step))
            for source in chosen.sources:
                path = slot.path if slot is not None and source.node_id == own else None
                if path is not None or source.port:
                    start["sources"].append(make_source_entry(source, path))
        write_atomic(self.path / "start.json", json.dumps(start).encode())

    # -- from the workers --------------------------------------------------------------------------------------

    def list_held_snapshots(self) -> tuple[HeldSnapshot, ...]:
        """What this node holds, the newest first."""
        slots = sorted(self.find_slots().items(), reverse=True)
        return tuple(
            _describe_held(slot, held) for _, slot in slots if (held := slot.read_indexes(_read_index))
        )

    def read_last_step(self) -> int:
        """The newest step that a worker of this node has ended."""
        found = [0]
        for path in (self.path / ASK).glob("*.step"):
            with contextlib.suppress(OSError, ValueError):
                found.append(int(path.read_bytes()))
        return max(found)

    def read_disabled_reason(self) -> str:
        """Why a worker takes no more snapshots; empty: all do."""
        whys = (str(_read_answer(path).get("why") or "") for path in sorted((self.path / ASK).glob("*.off")))
        return next(filter(None, whys), "")[:MOST_WHY]

    def find_bad_copy(self) -> BadCopy | None:
        """The copy that workers could not load; None: there is none."""
        for path in (self.path / ASK).glob("*.bad"):
            answer = _read_answer(path)
            if stamp := SnapshotId.parse(str(answer.get("stamp"))):
                return BadCopy(stamp, str(answer.get("node", ""))[:128], str(answer.get("why", ""))[:500])
        return None

    # -- before the end ----------------------------------------------------------------------------------------

    def list_worker_pipes(self) -> dict[int, Path]:
        """The pipes of the workers that have opened snapshots, by rank."""
        found = {int(path.name): path for path in (self.path / ASK).iterdir() if path.name.isdecimal()}
        return {rank: path for rank, path in found.items() if path.is_fifo()}

    def read_save_error(self, rank: int) -> str | None:
        """Why a worker has not saved; empty: it has; None: it has not answered yet."""
        answer = _read_answer(self.path / ASK / f"{rank}.done")
        if answer.get("step") is None and not answer.get("why"):
            return "it has no snapshot" if answer else None
        return str(answer.get("why") or "")[:500]


def request_save(pipe: Path) -> bool:
    """Ask a worker to save, since its round ends; returns whether it listens. Its earlier answer is removed."""
    with contextlib.suppress(OSError):
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            pipe.with_suffix(".done").unlink(missing_ok=True)
            return os.write(fd, b"!") == 1
        finally:
            os.close(fd)
    return False


def make_source_entry(source: SnapshotSource, path: Path | None = None) -> dict[str, Any]:
    """As workers read it (`hetagent.snapshots.sources`)."""
    url = f"http://{format_host_port(source.address, source.port)}/" if source.port else ""
    return {
        "node": source.node_id,
        "url": url,
        "key": source.key,
        "path": str(path) if path is not None else None,
        "ranks": {str(part.rank): part.digest for part in source.ranks},
    }


def measure_slots(path: Path) -> int:
    """What the slots of a node take (bytes)."""
    used = 0
    for file in path.glob("[0-9]/*"):
        with contextlib.suppress(OSError):  # a worker of the last agent may still be at it
            used += file.lstat().st_blocks * 512
    return used


def _read_answer(path: Path) -> Mapping[str, Any]:
    """The content of a file; empty if it is not there, or makes no sense."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        answer = json.loads(path.read_bytes())
        if isinstance(answer, dict):
            return answer
    return {}


def _read_index(path: Path) -> Index:
    """A part, without its tensors; read again once its file is replaced."""
    stats = path.stat()
    return _load_cached_index(path, stats.st_ino, stats.st_mtime_ns, stats.st_size)


@lru_cache(maxsize=256)
def _load_cached_index(path: Path, *version: int) -> Index:
    return replace(Index.from_json(path.read_bytes()), tensors=())


def _describe_held(slot: Slot, indexes: Mapping[int, Index]) -> HeldSnapshot:
    sizes = {name: content.bytes for index in indexes.values() for name, content in index.files.items()}
    return HeldSnapshot(
        round=slot.stamp.round,
        step=slot.stamp.step,
        world_size=next(iter(indexes.values())).world_size,
        whole=any(index.has_replicated for index in indexes.values()),
        sharded=any(index.sharded for index in indexes.values()),
        size=sum(sizes.values()),
        ranks=tuple(RankPart(rank=rank, digest=index.digest) for rank, index in indexes.items()),
    )
