"""Writes a node's parts of a snapshot to disk; the node that leads makes a checkpoint of all nodes' parts.

    python -m hetagent.snapshots.to_disk SLOT ROUND STEP DIRECTORY RANKS [--leads SECONDS --keep N] [--after JOB ...]
        [--beside-training]

A process of its own, started by the agent: training goes on meanwhile. What it writes is what DCP would.
"""

import argparse
import contextlib
import json
import mmap
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from hetagent.snapshots.folder import INDEX, SMALL, Index, Place, Stamp
from hetagent.snapshots.memory import dtype_of, view
from hetagent.snapshots.on_disk import (
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
)
from hetagent.snapshots.small import unpack

PAUSE_S = 0.2
"""How often the node that leads looks for the parts of others (seconds)."""

CHUNK = 8 << 20
"""How much is read at a time (bytes)."""

RECORD = b"archive/data/0"
"""The file with the bytes of a tensor in what `torch.save` makes of it: an archive that is not compressed."""

HEADER = 30
"""How long the header of a file in such an archive is, before its name (bytes)."""


@dataclass(frozen=True)
class Part:
    """What a node has written, for the node that leads.

    Attributes:
        ranks: whose parts these are, with the digests of their indexes.
        size: of all files (bytes).
        values: digests of what has to be the same on all ranks.
        pieces: parts of tensors.
    """

    ranks: Mapping[int, str]
    plan: SavePlan
    results: Sequence[WriteResult]
    size: int
    values: Mapping[str, str]
    pieces: Sequence[Place] = ()

    def written(self) -> bytes:
        """As it is in its file, but for what the node that leads writes alone."""
        stored = {result.index: result for result in self.results}
        pieces = [{**place.told(), "stored": _stored(stored[_index_of(place)])} for place in self.pieces]
        told = {"ranks": self.ranks, "size": self.size, "values": self.values, "pieces": pieces}
        return json.dumps(told).encode()

    @classmethod
    def read(cls, path: Path) -> "Part":
        """That of another node.

        Raises:
            SnapshotError: it makes no sense.
            OSError: it cannot be read.
        """
        from hetagent.torch_compat.checkpoints import StorageInfo

        try:
            told = json.loads(path.read_bytes())
            items, results = [], []
            for each in told["pieces"]:
                size, *where = each.pop("stored")
                place = Place.read(each)
                items.append(_piece(place))
                results.append(WriteResult(_index_of(place), size, StorageInfo(*where)))
            return cls(
                ranks={int(rank): str(digest) for rank, digest in told["ranks"].items()},
                plan=SavePlan(items, planner_data={}),
                results=results,
                size=int(told["size"]),
                values=told["values"],
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise SnapshotError(
                f"{path} makes no sense ({type(error).__name__}: {error}): install the same hetrdzv on all nodes"
            ) from None


class Planner(DefaultSavePlanner):
    """Plans what lies in a slot, as DCP plans a state.

    Args:
        slot: with the files.
        pieces: the parts of tensors.
    """

    def __init__(self, slot: Path, pieces: Iterable[Place]) -> None:
        super().__init__()
        self._files = _Files(slot)
        self._pieces = {_index_of(place): place for place in pieces}

    def create_local_plan(self) -> SavePlan:
        """What this node writes."""
        plan: SavePlan = super().create_local_plan()
        self.plan = replace(plan, items=[*plan.items, *map(_piece, self._pieces.values())])
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | BytesIO:
        """The content of an item."""
        if (place := self._pieces.get(write_item.index)) is not None:
            return self._files.tensor(place)
        content: Tensor | BytesIO = super().resolve_data(write_item)
        return content


class _Files:
    """The files of a slot, mapped."""

    def __init__(self, slot: Path) -> None:
        self._slot = slot
        self._mapped: dict[str, Tensor] = {}

    def tensor(self, place: Place) -> Tensor:
        name = place.file
        if name not in self._mapped:
            with (self._slot / name).open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._mapped[name] = torch.frombuffer(content, dtype=torch.uint8)
        return view(self._mapped[name], place)


def write(slot: Path, stamp: Stamp, into: Path, ranks: Sequence[int], *, leads: bool) -> Part:
    """Write the parts of some ranks, and of the node that leads all that the ranks have alike.

    Raises:
        SnapshotError: the slot holds another snapshot by now, or what it held is corrupt.
        OSError: it cannot be read, or not be written.
    """
    indexes = {rank: _index(slot, stamp, rank) for rank in ranks}
    known = [_index(slot, stamp, int(path.stem)) for path in slot.glob("*.json") if path.stem.isdecimal()]
    first = indexes[ranks[0]]
    alike = {place.name: place for index in known for place in index.tensors if place.name in index.alike}
    if leads and first.alike.keys() - alike.keys():
        raise SnapshotError(f"this node does not have all of step {stamp.step}")
    own = {
        rank: [place for place in index.tensors if place.name not in index.alike]
        for rank, index in indexes.items()
    }
    pieces = [place for places in own.values() for place in places]
    planner = Planner(slot, pieces)
    state = _state(slot, first, alike.values()) if leads else {}
    planner.set_up_planner(state, is_coordinator=leads)
    writer = _writer(into)
    writer.set_up_storage_writer(is_coordinator=leads)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plan = writer.prepare_global_plan([*[SavePlan([])] * ranks[0], plan])[-1]  # names its file by the rank
    results = writer.write_data(plan, planner).wait()
    stored = {result.index: result.storage_data for result in results}
    digests = {}
    for rank, index in indexes.items():
        mine = [*own[rank], *(alike.values() if leads and index is first else ())]
        moved = replace(
            index,
            tensors=tuple(_moved(into, place, stored[_index_of(place)]) for place in mine),
        )
        if index.small_bytes:
            put(into / SMALL.format(rank), _small(slot, index))
        put(into / INDEX.format(rank), moved.written())
        digests[rank] = xxh3_64_hexdigest(moved.written())
    size = sum(result.size_in_bytes for result in results) + sum(
        index.small_bytes for index in indexes.values()
    )
    values = _the_same(index.digests for index in indexes.values())
    return Part(digests, plan, results, size, values, pieces)


def _the_same(told: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The digests of what has to be the same on all ranks.

    Raises:
        SnapshotError: it is not.
    """
    known: dict[str, str] = {}
    for name, digest in (item for digests in told for item in digests.items()):
        if known.setdefault(name, digest) != digest:
            raise SnapshotError(f"'{name}' is not the same on all ranks: name it in per_rank")
    return known


def _writer(into: Path) -> FileSystemWriter:
    if not is_url(into):
        return FileSystemWriter(into)
    from hetagent.torch_compat.checkpoints import FsspecWriter

    return FsspecWriter(str(into))


def _index(slot: Path, stamp: Stamp, rank: int) -> Index:
    index = Index.read((slot / INDEX.format(rank)).read_bytes())
    if index.stamp != stamp:
        raise Overtaken(f"the memory of step {stamp.step} was needed for step {index.stamp.step} meanwhile")
    return index


def _small(slot: Path, index: Index) -> bytes:
    """What a rank has kept beside its tensors.

    Raises:
        SnapshotError: it is corrupt.
    """
    content = (slot / SMALL.format(index.rank)).read_bytes()[: index.small_bytes]
    if xxh3_64_hexdigest(content) != index.small_digest:
        raise SnapshotError(f"the values of rank {index.rank} are corrupt")
    return content


def _state(slot: Path, first: Index, alike: Iterable[Place]) -> dict[str, Any]:
    """What all ranks have alike, nested as `get_state_dict` has it; buffers and values are those of one rank."""
    files = _Files(slot)
    content = _small(slot, first) if first.small_bytes else b""
    tensors = {place.name: files.tensor(place) for place in (*alike, *first.small)}
    values = unpack(memoryview(content)[first.values :], on_host=True)[0] if content else {}
    optimizers = [name.removesuffix(".param_groups") for name in values if name.endswith(".param_groups")]
    state: dict[str, Any] = {}
    for name, value in (*tensors.items(), *values.items()):
        *above, last = _path(name, optimizers, is_tensor=isinstance(value, Tensor))
        inner = state
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = inner[last] | value if isinstance(inner.get(last), dict) else value
    return state


def _path(name: str, optimizers: Sequence[str], *, is_tensor: bool) -> Iterator[str]:
    """Where a name belongs: `optimizer.state.0.weight.exp_avg` below optimizer, state, and 0.weight."""
    for optimizer in optimizers:
        if name == f"{optimizer}.param_groups":
            return iter((optimizer, "param_groups"))
        if name.startswith(f"{optimizer}.state."):
            of = name.removeprefix(f"{optimizer}.state.")
            inside = of.rpartition(".")[::2] if is_tensor else (of,)
            return iter((optimizer, "state", *inside))
    head, _, rest = name.partition(".")
    return iter((head, rest) if rest else (head,))


def _index_of(place: Place) -> MetadataIndex:
    return MetadataIndex(place.name, place.offsets)


def _piece(place: Place) -> WriteItem:
    return WriteItem(
        index=_index_of(place),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(torch.Size(place.offsets), torch.Size(place.lengths)),
            properties=TensorProperties(dtype=dtype_of(place)),
            size=torch.Size(place.shape),
        ),
    )


def _stored(result: WriteResult) -> tuple[int, str, int, int]:
    """How large it was (bytes), and where it lies: in which file, from where on, and how many bytes."""
    where = result.storage_data
    return result.size_in_bytes, where.relative_path, where.offset, where.length


def _moved(into: Path, place: Place, stored: Any) -> Place:
    """Where the bytes of a place are now.

    Raises:
        SnapshotError: they are others.
    """
    with (into / stored.relative_path).open("rb") as file:
        at = stored.offset
        if place.digest and place.bytes:
            at += _raw_at(file, stored) if stored.length != place.bytes else 0
            digest = xxh3_64()
            file.seek(at)
            for begin in range(0, place.bytes, CHUNK):
                digest.update(file.read(min(CHUNK, place.bytes - begin)))
            if digest.hexdigest() != place.digest:
                raise SnapshotError(f"'{place.name}' has changed, or is corrupt")
    return replace(place, file=stored.relative_path, at=at)


def _raw_at(file: Any, stored: Any) -> int:
    """Where in a tensor's archive its bytes begin."""
    file.seek(stored.offset)
    head: bytes = file.read(min(stored.length, 1 << 16))
    name = head.find(RECORD)
    if name < HEADER:
        raise SnapshotError("this release of torch lays its files out in another way")
    header = head[name - HEADER : name]
    return name + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")


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
        SnapshotError: some are missing, or they do not fit together.
    """
    until = time.monotonic() + wait_s
    world_size = first.world_size
    parts = {into / PART.format(min(part.ranks)): part}
    while True:
        for path in into.glob(PART.format("*")):
            if path not in parts:
                parts[path] = Part.read(path)
        digests = {rank: digest for part in parts.values() for rank, digest in part.ranks.items()}
        missing = set(range(world_size)) - digests.keys()
        if not missing or time.monotonic() >= until:
            break
        time.sleep(PAUSE_S)
    if missing and first.sharded:
        raise SnapshotError(f"the part of rank {min(missing)} is not there after {wait_s:.0f} s")
    _the_same(part.values for part in parts.values())
    planner = DefaultSavePlanner()
    plans = [part.plan for part in parts.values()]
    _, metadata = planner.create_global_plan(plans)
    writer = _writer(into)
    writer.finish(metadata, [list(part.results) for part in parts.values()])
    mark = Mark(
        stamp=first.stamp,
        world_size=world_size,
        sharded=first.sharded,
        size=sum(part.size for part in parts.values()),
        ranks=digests,
        after=after,
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
        first = _index(slot, stamp, ranks[0])
        began_at = time.monotonic()
        part = write(slot, stamp, into, ranks, leads=wait_s is not None)
        if wait_s is not None:
            wait_s = max(wait_s, time.monotonic() - began_at)  # that of others may take as long
            finish(into, part, first, wait_s=wait_s, after=after)
        else:
            put(into / PART.format(ranks[0]), part.written())
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
