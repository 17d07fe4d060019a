"""Writes a node's parts of a snapshot to disk; the node that leads makes a checkpoint of all nodes' parts.

    python -m hetagent.snapshots.node.to_disk '{"slot": ..., "stamp": [ROUND, STEP], "into": ..., "ranks": [...], ...}'

A process of its own, started by the agent: training goes on meanwhile. What it writes is what DCP would.
"""

import contextlib
import json
import mmap
import os
import pickle
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots import folder
from hetagent.snapshots.errors import Overtaken, SnapshotError
from hetagent.snapshots.folder import INDEX, SHARED, Index, Slot, Stamp
from hetagent.snapshots.memory import as_bytes, dtype_of, view
from hetagent.snapshots.on_disk import (
    MARK,
    METADATA,
    OTHERS,
    OVERTAKEN,
    PART,
    Mark,
    directories,
    is_url,
    path_of,
    remove,
    require_own,
)
from hetagent.snapshots.sources import digest_of
from hetagent.torch_compat.checkpoints import FsspecWriter

VALUES_S = 10.0
"""How long it waits for those of state that is not sharded, which are values of ranks alone (seconds)."""

PAUSE_S = 0.2
"""How often the node that leads looks for the parts of others (seconds)."""


class Part(NamedTuple):
    """What a node has written, for the node that leads; `files`: the digests of all, by name."""

    plan: SavePlan
    results: Sequence[WriteResult]
    files: Mapping[str, str]


class OnHost(pickle.Unpickler):
    """Reads a worker's values; tensors that were on devices are on the CPU."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda content: torch.load(BytesIO(content), map_location="cpu", weights_only=False)
        return super().find_class(module, name)


class Planner(DefaultSavePlanner):
    """Plans what lies in a slot, as DCP plans a state; `indexes`: whose parts of tensors these are."""

    def __init__(self, slot: Slot, indexes: Sequence[Index]) -> None:
        super().__init__()
        self._slot = slot
        self._mapped: dict[str, Tensor] = {}
        self._parts = {
            MetadataIndex(place.name, place.offsets): place
            for index in indexes
            for place in index.tensors
            if place.file not in (SHARED, index.small)
        }

    def memory(self, name: str) -> Tensor:
        """A file, mapped as it is needed."""
        if name not in self._mapped:
            with (self._slot.path / name).open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._mapped[name] = torch.frombuffer(content, dtype=torch.uint8)
        return self._mapped[name]

    def state(self, whole: Index, first: Index) -> dict[str, Any]:
        """What all ranks have alike, below the names that the script has given; buffers and values are of one rank."""
        places = [place for place in whole.tensors if place.file == SHARED]
        places += [place for place in first.tensors if place.file == first.small]
        content = as_bytes(self.memory(first.small))[first.values : first.files[first.small].bytes]
        values, _ = OnHost(BytesIO(content)).load()
        tensors = {place.name: view(self.memory(place.file), place) for place in places}
        state: dict[str, Any] = {}
        for name, value in (*tensors.items(), *values.items()):
            top, _, rest = name.partition(".")
            if rest:
                state.setdefault(top, {})[rest] = value
            else:
                state[top] = value
        return state

    def create_local_plan(self) -> SavePlan:
        plan: SavePlan = super().create_local_plan()
        for index, place in self._parts.items():
            chunk = ChunkStorageMetadata(torch.Size(place.offsets), torch.Size(place.lengths))
            data = TensorWriteData(chunk, TensorProperties(dtype=dtype_of(place)), torch.Size(place.shape))
            plan.items.append(WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data))
        return plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | BytesIO:
        if (place := self._parts.get(write_item.index)) is not None:
            return view(self.memory(place.file), place)
        content: Tensor | BytesIO = super().resolve_data(write_item)
        return content

    def check(self, index: Index) -> None:
        """Check that the files are those that were written: Overtaken or SnapshotError if not."""
        for name, expected in index.files.items():
            if xxh3_64_hexdigest(as_bytes(self.memory(name))[: expected.bytes]) != expected.digest:
                if index.rank not in self._slot.read():
                    raise _overtaken(index.stamp)
                raise SnapshotError(f"{name} is corrupt")


def _overtaken(stamp: Stamp) -> Overtaken:
    return Overtaken(f"the memory of step {stamp.step} was needed for another one meanwhile")


def write(slot: Slot, into: Path, ranks: Sequence[int], *, leads: bool) -> Part:
    """Write the parts of some ranks, and of the node that leads all that the ranks have alike."""
    indexes = slot.read()
    if not indexes.keys() >= {*ranks}:
        raise _overtaken(slot.stamp)
    mine = [indexes[rank] for rank in ranks]
    planner, state, used = Planner(slot, mine), {}, mine
    if leads:
        whole = next((index for index in indexes.values() if index.has_replicated), None)
        if whole is None:
            raise SnapshotError(f"this node does not have all of step {slot.stamp.step}")
        state, used = planner.state(whole, mine[0]), [*mine, whole]
    planner.set_up_planner(state, is_coordinator=leads)
    writer = _writer(into)
    writer.set_up_storage_writer(is_coordinator=leads)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plan = writer.prepare_global_plan([*[SavePlan([])] * ranks[0], plan])[-1]  # names its file by the rank
    results = writer.write_data(plan, planner).wait()
    own = {INDEX.format(index.rank): index.written() for index in mine}
    for index in mine:
        own[index.small] = bytes(as_bytes(planner.memory(index.small))[: index.files[index.small].bytes])
    for index in used:  # after all was read
        planner.check(index)
    for name, content in own.items():
        put(into / name, content)
    files = {}
    for name in sorted({*own, *(result.storage_data.relative_path for result in results)}):
        with (into / name).open("rb") as file:
            files[name] = digest_of(file)
    return Part(plan, results, files)


def _writer(into: Path) -> FileSystemWriter:
    return FsspecWriter(str(into)) if is_url(into) else FileSystemWriter(into)


def put(path: Path, content: bytes) -> None:
    """Write a file that others see only once it is complete; at a URL that is so anyway."""
    if is_url(path):
        path.write_bytes(content)
    else:
        folder.put(path, content)


def finish(into: Path, part: Part, first: Index, *, wait_s: float, after: Sequence[str] = ()) -> None:
    """Make a checkpoint of this node's part, of which `first` is an index, and those of all other nodes.

    What is not there after `wait_s` is left out; if the state is sharded, that is a SnapshotError.
    """
    until = time.monotonic() + wait_s
    others: dict[Path, Part] = {}
    while True:
        for path in into.glob(PART.format("*")):
            if path not in others:
                with path.open("rb") as file:
                    require_own(path, file)
                    others[path] = pickle.loads(file.read())
        parts = [part, *others.values()]
        files = {name: digest for each in parts for name, digest in each.files.items()}
        missing = [rank for rank in range(first.world_size) if INDEX.format(rank) not in files]
        if not missing or time.monotonic() >= until:
            break
        time.sleep(PAUSE_S)
    if missing and first.sharded:
        raise SnapshotError(f"the part of rank {missing[0]} is not there after {wait_s:.0f} s")
    _, metadata = DefaultSavePlanner().create_global_plan([each.plan for each in parts])
    _writer(into).finish(metadata, [list(each.results) for each in parts])
    with (into / METADATA).open("rb") as file:
        files[METADATA] = digest_of(file)
    mark = Mark(
        world_size=first.world_size,
        sharded=first.sharded,
        size=sum((into / name).stat().st_size for name in files),
        files=files,
        after=tuple(after),
        written_at=int(time.time()),
    )
    put(into / MARK, mark.written())
    for path in others:
        path.unlink(missing_ok=True)


def run(
    slot: Slot,
    into: Path,
    ranks: Sequence[int],
    leads_s: float | None,
    jobs: Sequence[str] = ("",),
    *,
    is_last: bool = False,
) -> None:
    """Write the parts of a node; the node that leads makes a checkpoint of all parts then, or leaves nothing.

    Args:
        leads_s: how long that waits for the parts of others; None: another node leads (seconds).
        jobs: that this one has gone on with, the oldest first, and this one.
    """
    into.mkdir(parents=True, exist_ok=True)
    for path in (into.parent, into):
        require_own(path)
    try:
        began_at = time.monotonic()
        part = write(slot, into, ranks, leads=leads_s is not None)
        if leads_s is None:
            put(into / PART.format(ranks[0]), pickle.dumps(part))
        else:
            first = Index.read((into / INDEX.format(ranks[0])).read_bytes())
            wait_s = min(leads_s, VALUES_S) if is_last and not first.sharded else leads_s
            wait_s = max(wait_s, time.monotonic() - began_at)  # that of others may take as long
            finish(into, part, first, wait_s=wait_s, after=jobs[:-1])
    except Exception:
        with contextlib.suppress(Exception):  # what went wrong first is what is said
            if leads_s is not None and not (into / MARK).exists():
                remove(into)
        raise


def prune(path: Path, keep: int, jobs: Sequence[str]) -> None:
    """Remove what is older than those that are kept, complete or not; `jobs` as in `run`."""
    there = {which: each for which, each in directories(path).items() if which.origin in jobs}
    kept = 0
    for which in sorted(there, key=lambda which: (jobs.index(which.origin), *which), reverse=True):
        is_complete = (there[which] / MARK).exists()
        if kept >= keep or (kept and not is_complete):
            (there[which] / MARK).unlink(missing_ok=True)
            remove(there[which])
        kept += is_complete


def main() -> None:
    """Write; what goes wrong is said in the last line."""
    told = json.loads(sys.argv[1])
    slot, into = Slot(Path(told["slot"]), 0, Stamp(*told["stamp"])), path_of(told["into"])
    with contextlib.suppress(OSError):
        os.nice(10)
    torch.set_num_threads(1)
    os.umask(os.umask(0) | OTHERS)
    try:
        run(slot, into, told["ranks"], told["leads_s"], told["jobs"], is_last=told["is_last"])
        if told["leads_s"] is not None:
            with contextlib.suppress(Exception):  # this one is written, whatever becomes of older ones
                prune(into.parent, told["keep"], told["jobs"])
    except (SnapshotError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, Overtaken):
            sys.exit(OVERTAKEN)
        print(_no_space(slot.path, into) or f"{error}", file=sys.stderr)
        sys.exit(1)


def _no_space(slot: Path, into: Path) -> str:
    """That it is too large for the disk, if it is: torch says something else then."""
    if is_url(into):
        return ""
    size = sum(path.stat().st_size for path in slot.iterdir())
    free = shutil.disk_usage(into.parent).free
    return f"it has {size:,} bytes, and {free:,} are free there" if size > free else ""


if __name__ == "__main__":
    main()
