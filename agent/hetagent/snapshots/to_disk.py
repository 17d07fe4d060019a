"""Writes a node's parts of a snapshot to disk; the node that leads makes a checkpoint of all nodes' parts.

    python -m hetagent.snapshots.to_disk SLOT ROUND STEP DIRECTORY RANKS [--leads SECONDS --keep N] [--after JOB ...]
        [--beside-training]

A process of its own, started by the agent: training goes on meanwhile. What it writes is what DCP would.
"""

import argparse
import contextlib
import mmap
import os
import pickle
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from xxhash import xxh3_64, xxh3_64_hexdigest

from hetagent.snapshots.errors import Overtaken, SnapshotError
from hetagent.snapshots.folder import INDEX, SHARED, SMALL, Index, Place, Slot, Stamp
from hetagent.snapshots.memory import as_bytes, dtype_of, view
from hetagent.snapshots.on_disk import (
    CHUNK,
    MARK,
    OTHERS,
    OVERTAKEN,
    PART,
    Mark,
    SnapshotId,
    directories,
    is_url,
    path_of,
    remove,
    require_own,
)
from hetagent.snapshots.small import OnHost

PAUSE_S = 0.2
"""How often the node that leads looks for the parts of others (seconds)."""


@dataclass(frozen=True)
class Part:
    """What a node has written, for the node that leads.

    Attributes:
        ranks: whose parts these are.
        files: the digests of all files, by name.
        size: of them (bytes).
    """

    ranks: Sequence[int]
    plan: SavePlan
    results: Sequence[WriteResult]
    files: dict[str, str]
    size: int


class Planner(DefaultSavePlanner):
    """Plans what lies in a slot, as DCP plans a state.

    Args:
        files: the slot's.
        pieces: the parts of tensors.
    """

    def __init__(self, files: "_Files", pieces: Iterable[Place]) -> None:
        super().__init__()
        self._files = files
        self._pieces = {MetadataIndex(place.name, place.offsets): place for place in pieces}

    def create_local_plan(self) -> SavePlan:
        """What this node writes."""
        plan: SavePlan = super().create_local_plan()
        plan.items.extend(_shard(index, place) for index, place in self._pieces.items())
        return plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | BytesIO:
        """The content of an item."""
        if (place := self._pieces.get(write_item.index)) is not None:
            return self._files.tensor(place)
        content: Tensor | BytesIO = super().resolve_data(write_item)
        return content


def _shard(index: MetadataIndex, place: Place) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(place.offsets), torch.Size(place.lengths))
    data = TensorWriteData(chunk, TensorProperties(dtype=dtype_of(place)), torch.Size(place.shape))
    return WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data)


class _Files:
    """The files of a slot, mapped."""

    def __init__(self, slot: Path) -> None:
        self._slot = slot
        self._mapped: dict[str, Tensor] = {}

    def memory(self, name: str) -> Tensor:
        if name not in self._mapped:
            with (self._slot / name).open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._mapped[name] = torch.frombuffer(content, dtype=torch.uint8)
        return self._mapped[name]

    def tensor(self, place: Place) -> Tensor:
        return view(self.memory(place.file), place)


def write(slot: Path, stamp: Stamp, into: Path, ranks: Sequence[int], *, leads: bool) -> Part:
    """Write the parts of some ranks, and of the node that leads all that the ranks have alike.

    Raises:
        SnapshotError: the slot holds another snapshot by now, or what it held is corrupt.
        OSError: it cannot be read, or not be written.
    """
    indexes = Slot(slot, 0, stamp).read()
    if not indexes.keys() >= {*ranks}:
        raise Overtaken(f"the memory of step {stamp.step} was needed for another one meanwhile")
    mine = {rank: indexes[rank] for rank in ranks}
    whole = next((index for index in indexes.values() if index.has_alike), None)
    if leads and whole is None:
        raise SnapshotError(f"this node does not have all of step {stamp.step}")
    files = _Files(slot)
    pieces = [
        place
        for index in mine.values()
        for place in index.tensors
        if place.file not in (SHARED, SMALL.format(index.rank))
    ]
    planner = Planner(files, pieces)
    state = _state(files, whole, mine[ranks[0]]) if leads and whole is not None else {}
    planner.set_up_planner(state, is_coordinator=leads)
    writer = _writer(into)
    writer.set_up_storage_writer(is_coordinator=leads)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plan = writer.prepare_global_plan([*[SavePlan([])] * ranks[0], plan])[-1]  # names its file by the rank
    results = writer.write_data(plan, planner).wait()
    for index in (*mine.values(), *([whole] if leads and whole is not None else ())):
        for name, expected in index.files.items():
            if xxh3_64_hexdigest(as_bytes(files.memory(name))[: expected.bytes]) != expected.digest:
                raise SnapshotError(f"{name} has changed meanwhile, or is corrupt")
    names = {result.storage_data.relative_path for result in results}
    for rank in ranks:
        for name in (SMALL.format(rank), INDEX.format(rank)):
            put(into / name, (slot / name).read_bytes())
            names.add(name)
    sums = {name: _digest(into / name) for name in sorted(names)}
    size = sum(result.size_in_bytes for result in results)
    return Part(
        ranks, plan, results, sums, size + sum(mine[rank].files[SMALL.format(rank)].bytes for rank in ranks)
    )


def _writer(into: Path) -> FileSystemWriter:
    if not is_url(into):
        return FileSystemWriter(into)
    from hetagent.torch_compat.checkpoints import FsspecWriter

    return FsspecWriter(str(into))


def _digest(path: Path) -> str:
    digest = xxh3_64()
    with path.open("rb") as file:
        while content := file.read(CHUNK):
            digest.update(content)
    return digest.hexdigest()


def _state(files: _Files, whole: Index, first: Index) -> dict[str, Any]:
    """What all ranks have alike, below the names that the script has given it; buffers and values are of one rank."""
    name = SMALL.format(first.rank)
    places = [place for place in whole.tensors if place.file == SHARED]
    places += [place for place in first.tensors if place.file == name]
    content = as_bytes(files.memory(name))[first.values : first.files[name].bytes]
    values, _ = OnHost(BytesIO(content)).load()
    state: dict[str, Any] = {}
    for name, value in (*((place.name, files.tensor(place)) for place in places), *values.items()):
        top, _, rest = name.partition(".")
        if rest:
            state.setdefault(top, {})[rest] = value
        else:
            state[top] = value
    return state


def put(path: Path, content: bytes) -> None:
    """Write a file that others see only once it is on the disk. At a URL they see all of it, or nothing, anyway."""
    if is_url(path):
        path.write_bytes(content)
        return
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def finish(into: Path, part: Part, first: Index, *, wait_s: float, after: Sequence[str] = ()) -> None:
    """Make a checkpoint of all nodes' parts, once they are there.

    Args:
        part: of this node, which leads.
        first: one of its indexes.
        after: the jobs that this one has gone on with.
        wait_s: how long to wait for them; what is not there then is left out unless the state is sharded (seconds).

    Raises:
        SnapshotError: some are missing.
    """
    until = time.monotonic() + wait_s
    parts = {into / PART.format(part.ranks[0]): part}
    while True:
        for path in into.glob(PART.format("*")):
            if path not in parts:
                require_own(path)  # it is unpickled, as all that DCP reads
                parts[path] = pickle.loads(path.read_bytes())
        missing = set(range(first.world_size)).difference(*(part.ranks for part in parts.values()))
        if not missing or time.monotonic() >= until:
            break
        time.sleep(PAUSE_S)
    if missing and first.sharded:
        raise SnapshotError(f"the part of rank {min(missing)} is not there after {wait_s:.0f} s")
    _, metadata = DefaultSavePlanner().create_global_plan([part.plan for part in parts.values()])
    _writer(into).finish(metadata, [list(part.results) for part in parts.values()])
    mark = Mark(
        stamp=first.stamp,
        world_size=first.world_size,
        sharded=first.sharded,
        size=sum(part.size for part in parts.values()),
        files={name: digest for part in parts.values() for name, digest in part.files.items()},
        after=tuple(after),
        written_at=int(time.time()),
    )
    put(into / MARK, mark.written())
    for path in into.glob(PART.format("*")):
        path.unlink(missing_ok=True)


def run(
    slot: Path,
    stamp: Stamp,
    into: Path,
    ranks: Sequence[int],
    wait_s: float | None,
    after: Sequence[str] = (),
) -> None:
    """Write the parts of a node; the node that leads makes a checkpoint of all parts then.

    Args:
        wait_s: how long that waits for the parts of others; None: another node leads (seconds).
        after: see `finish`.

    Raises:
        SnapshotError, OSError, RuntimeError, ValueError: that cannot be. The node that leads leaves nothing of it.
    """
    into.mkdir(parents=True, exist_ok=True)
    try:
        began_at = time.monotonic()
        part = write(slot, stamp, into, ranks, leads=wait_s is not None)
        if wait_s is None:
            put(into / PART.format(ranks[0]), pickle.dumps(part))
        else:
            wait_s = max(wait_s, time.monotonic() - began_at)  # that of others may take as long
            first = Index.read((into / INDEX.format(ranks[0])).read_bytes())
            finish(into, part, first, wait_s=wait_s, after=after)
    except Exception:
        with contextlib.suppress(Exception):  # what went wrong first is what is said
            if wait_s is not None and not (into / MARK).exists():
                remove(into)
        raise


def prune(path: Path, keep: int, jobs: Sequence[str]) -> None:
    """Remove what is older than those that are kept, complete or not.

    Args:
        jobs: whose these are: this one, and before it those that it has gone on with, the oldest first.
    """
    places = {origin: place for place, origin in enumerate(jobs)}
    there = {which: each for which, each in directories(path).items() if which.origin in places}
    ordered = sorted(there, key=lambda which: (places[which.origin], *which), reverse=True)
    complete = [which for which in ordered if (there[which] / MARK).exists()]
    for which in ordered[ordered.index(complete[0]) :] if complete else ():
        if which not in complete[:keep]:
            (there[which] / MARK).unlink(missing_ok=True)
            remove(there[which])


def main() -> None:
    """Write; what goes wrong is said in the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slot", type=Path)
    parser.add_argument("round", type=int)
    parser.add_argument("step", type=int)
    parser.add_argument("directory", type=path_of)
    parser.add_argument("ranks", type=lambda text: [int(rank) for rank in text.split(",")])
    parser.add_argument("--leads", type=float, metavar="SECONDS")
    parser.add_argument("--keep", type=int, metavar="N")
    parser.add_argument("--after", nargs="+", default=[], metavar="JOB")
    parser.add_argument("--beside-training", action="store_true")
    args = parser.parse_args()
    if args.beside_training:
        with contextlib.suppress(OSError):
            os.nice(10)
    torch.set_num_threads(1)
    os.umask(os.umask(0) | OTHERS)
    stamp = Stamp(step=args.step, round=args.round)
    try:
        run(args.slot, stamp, args.directory, args.ranks, args.leads, args.after)
        with contextlib.suppress(Exception):  # this one is written, whatever becomes of older ones
            if args.keep is not None:
                own = SnapshotId.of(args.directory.name)
                prune(args.directory.parent, args.keep, [*args.after, own.origin if own else ""])
    except (SnapshotError, OSError, RuntimeError, ValueError) as error:
        print(_no_space(args.slot, args.directory) or f"{error}", file=sys.stderr)
        sys.exit(OVERTAKEN if isinstance(error, Overtaken) else 1)


def _no_space(slot: Path, into: Path) -> str:
    """That it is too large for the disk, if it is: torch says something else then."""
    if is_url(into):
        return ""
    size = sum(path.stat().st_size for path in slot.iterdir())
    free = shutil.disk_usage(into.parent).free
    return f"it has {size:,} bytes, and {free:,} are free there" if size > free else ""


if __name__ == "__main__":
    main()
