"""Loads a snapshot into a script's state, whatever world it was taken in."""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import SMALL, Folder, Index, Place, Slot, Stamp, put
from hetagent.snapshots.memory import as_bytes, dtype_of, view
from hetagent.snapshots.small import unpack
from hetagent.snapshots.sources import Source, SourceError, read_index
from hetagent.snapshots.state import State

GIVEN_UP_S = 2.0
"""How long a worker that cannot load waits for its agent to end the round: its own end would be a failure (seconds)."""


@dataclass(slots=True)
class Found:
    """A snapshot that may be loaded.

    Attributes:
        sources: who has parts of it, this node first.
        alike: of the tensors that ranks have alike, by name: where each lies.
        parts: of the tensors of which ranks have parts, by name and offsets.
        indexes: of the ranks' own parts, with who has them.
    """

    stamp: Stamp
    world_size: int
    sources: Sequence[Source]
    alike: dict[str, list[tuple[Source, Place]]] = field(default_factory=dict)
    parts: dict[tuple[str, tuple[int, ...]], list[tuple[Source, Place]]] = field(default_factory=dict)
    indexes: dict[int, tuple[Source, Index]] = field(default_factory=dict)

    def close(self) -> None:
        """Nothing more is to be read."""
        for source in self.sources:
            source.close()


class Loader:
    """Loads what the agent has found, or without one what is on this node.

    Args:
        folder: this node's.
        rank: of this worker.
    """

    def __init__(self, folder: Folder, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._buffer = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._smalls: dict[int, bytearray] = {}  # by rank

    def find(self) -> Found | None:
        """The snapshot to load; None: there is none.

        Raises:
            SnapshotError: it cannot be read.
        """
        start = self._folder.start()
        if start is None:
            start = _newest(self._folder)
        if not start:
            return None
        stamp = Stamp(step=start["step"], round=start["round"])
        sources = [Source(told, stamp) for told in start["sources"]]
        found = Found(stamp, start["world_size"], sources)
        trouble = []
        for source in sources:
            for rank in source.ranks:
                if rank in found.indexes and not source.whole:
                    continue
                try:
                    index = read_index(source, rank, xxh3_64_hexdigest)
                except SourceError as error:
                    trouble.append((source, str(error)))
                    continue
                if index.stamp != stamp or index.world_size != found.world_size:
                    trouble.append((source, f"another snapshot is in its place {source.where}"))
                    continue
                _add(found, source, index)
        missing = {name for _, index in found.indexes.values() for name in index.alike} - found.alike.keys()
        if missing or not found.indexes:
            what = f"nobody has '{min(missing)}'" if missing else "nobody has any part of it"
            self._is_bad(found, trouble or [(None, what)])
        absent = set(range(found.world_size)) - set(found.indexes)
        if absent and any(index.sharded for _, index in found.indexes.values()):
            self._is_bad(found, trouble or [(None, f"nobody has the part of rank {min(absent)}")])
        return found

    def load(self, found: Found, state: State) -> None:
        """Load it.

        Raises:
            SnapshotError: it is of another model, or no copy of a part is good.
        """
        shapes = {
            name: (place.shape, dtype_of(place), place.device)
            for name, place in _places(found, self._rank).items()
        }
        targets = state.targets(shapes)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(targets, _metadata(found, self._rank), is_coordinator=False)
        with torch.no_grad():
            for item in planner.create_local_plan().items:
                self._read(found, item, planner.resolve_tensor(item).detach())
        alike, own = self._values(found)
        state.restore(targets, alike, own if found.indexes.get(self._rank) else {})
        found.close()

    def _read(self, found: Found, item: ReadItem, target: Tensor) -> None:
        """Fill a tensor, or a part of it, from the first copy that is good.

        Raises:
            SnapshotError: none is.
        """
        trouble: list[tuple[Source | None, str]] = []
        for source, place in self._copies(found, item):
            try:
                self._read_from(found, source, place, item, target)
            except SourceError as error:
                trouble.append((source, str(error)))
            else:
                return
        self._is_bad(found, trouble)

    def _copies(self, found: Found, item: ReadItem) -> Sequence[tuple[Source, Place]]:
        name, offset = item.storage_index.fqn, tuple(item.storage_index.offset or ())
        copies = found.alike.get(name) or found.parts.get((name, offset))
        return copies or self._small(found, name)

    def _read_from(self, found: Found, source: Source, place: Place, item: ReadItem, target: Tensor) -> None:
        rank = place.file.partition(".")[0]
        if place.file == SMALL.format(rank):  # its digest is that of all of it
            content = self._small_file(found, int(rank))
            target.copy_(_part_of(view(torch.frombuffer(content, dtype=torch.uint8), place), item))
            return
        is_whole = tuple(item.lengths) == place.lengths and target.dtype == dtype_of(place)
        direct = is_whole and target.is_contiguous() and target.device.type == "cpu"
        into = target if direct else self._passing_through(place)
        memory = as_bytes(into)
        source.read_into(place.file, place.at, memory)
        if place.digest and xxh3_64_hexdigest(memory) != place.digest:
            raise SourceError(f"'{place.name}' {source.where} is corrupt: its digest is wrong")
        if not direct:
            target.copy_(_part_of(into, item))

    def _passing_through(self, place: Place) -> Tensor:
        """Memory for a piece, the same for all: what is touched for the first time takes several times as long."""
        if self._buffer.numel() < place.bytes:
            self._buffer = torch.empty(place.bytes, dtype=torch.uint8, device="cpu")
        return view(self._buffer, replace(place, at=0))

    def _small(self, found: Found, name: str) -> list[tuple[Source, Place]]:
        """Where a small tensor lies: this rank's own if there is one, else that of the lowest rank that has it."""
        source, index = _own(found, self._rank)
        return [(source, place) for place in index.small if place.name == name]

    def _values(self, found: Found) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        source, index = _own(found, self._rank)
        try:
            content = self._small_file(found, index.rank)
        except SourceError as error:
            self._is_bad(found, [(source, str(error))])
        return unpack(memoryview(content)[index.values :])

    def _small_file(self, found: Found, rank: int) -> bytearray:
        """`RANK.small`, once it is known to be what was written.

        Raises:
            SourceError: no copy is, or can be had.
        """
        if rank not in self._smalls:
            first, index = found.indexes[rank]
            others = (each for each in found.sources if each is not first and rank in each.ranks)
            same = [first, *(each for each in others if each.ranks[rank] == first.ranks[rank])]
            trouble: SourceError | None = None
            for source in same:
                try:
                    self._smalls[rank] = _small_of(source, index)
                    break
                except SourceError as error:
                    trouble = trouble or error
            else:
                assert trouble is not None
                raise trouble
        return self._smalls[rank]

    def _is_bad(self, found: Found, trouble: Sequence[tuple[Source | None, str]]) -> None:
        """No copy is good: tell the agent, which has another one taken.

        Raises:
            SnapshotError: always.
        """
        stamp = found.stamp
        source, why = trouble[0] if trouble else (None, "no node has it")
        told = {"node": source.node if source is not None else "", "why": why}
        with contextlib.suppress(OSError):
            self._folder.bad(stamp).parent.mkdir(mode=0o700, exist_ok=True)
            put(self._folder.bad(stamp), json.dumps(told).encode())
            if self._folder.start() is not None:
                time.sleep(GIVEN_UP_S)
        raise SnapshotError(
            f"the snapshot of step {stamp.step} (round {stamp.round}) cannot be loaded: {why}"
        )


def _part_of(tensor: Tensor, item: ReadItem) -> Tensor:
    """What is to be read of a piece."""
    ranges = zip(item.storage_offsets, item.lengths, strict=True)
    return tensor[tuple(slice(at, at + length) for at, length in ranges)]


def _small_of(source: Source, index: Index) -> bytearray:
    content = bytearray(index.small_bytes)
    source.read_into(SMALL.format(index.rank), 0, memoryview(content))
    if xxh3_64_hexdigest(content) != index.small_digest:
        raise SourceError(f"the values of rank {index.rank} {source.where} are corrupt")
    return content


def _add(found: Found, source: Source, index: Index) -> None:
    found.indexes.setdefault(index.rank, (source, index))
    for place in index.tensors:
        if place.name in index.alike:
            found.alike.setdefault(place.name, []).append((source, place))
        else:
            found.parts.setdefault((place.name, place.offsets), []).append((source, place))


def _own(found: Found, rank: int) -> tuple[Source, Index]:
    return found.indexes.get(rank) or found.indexes[min(found.indexes)]


def _places(found: Found, rank: int) -> dict[str, Place]:
    """One place of each tensor, by name."""
    places = {name: copies[0][1] for name, copies in found.alike.items()}
    places |= {name: copies[0][1] for (name, _), copies in found.parts.items()}
    return places | {place.name: place for place in _own(found, rank)[1].small}


def _metadata(found: Found, rank: int) -> Metadata:
    """What torch's planner needs to know."""
    chunks: dict[str, list[ChunkStorageMetadata]] = {}
    for (name, offsets), copies in found.parts.items():
        lengths = copies[0][1].lengths
        chunks.setdefault(name, []).append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(lengths)))
    told: dict[str, Any] = {}
    for name, place in _places(found, rank).items():
        whole = ChunkStorageMetadata(torch.Size(place.offsets), torch.Size(place.lengths))
        told[name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=dtype_of(place)),
            size=torch.Size(place.shape),
            chunks=chunks.get(name, [whole]),
        )
    return Metadata(state_dict_metadata=told)


def _newest(folder: Folder) -> Mapping[str, Any]:
    """As `start.json`, what is complete on this node alone."""
    for stamp, slot in sorted(folder.slots().items(), reverse=True):
        indexes = _indexes(slot)
        if _is_complete(indexes) and not folder.bad(stamp).exists():
            source = {"path": str(slot.path), "whole": True, "ranks": dict.fromkeys(indexes, "")}
            world_size = next(iter(indexes.values())).world_size
            return {"round": stamp.round, "step": stamp.step, "world_size": world_size, "sources": [source]}
    return {}


def _is_complete(indexes: Mapping[int, Index]) -> bool:
    """Whether they have all that ranks have alike, and the parts of all ranks if the state is sharded."""
    found = {place.name for index in indexes.values() for place in index.tensors}
    return bool(indexes) and all(
        (not index.sharded or set(indexes) == set(range(index.world_size))) and index.alike.keys() <= found
        for index in indexes.values()
    )


def _indexes(slot: Slot) -> dict[int, Index]:
    indexes = {}
    for rank, path in slot.indexes().items():
        with contextlib.suppress(OSError, ValueError):
            index = Index.read(path.read_bytes())
            if index.stamp == slot.stamp:
                indexes[rank] = index
    return indexes


def forget_newer(folder: Folder, chosen: Stamp | None) -> None:
    """Drop what former rounds have beyond the snapshot that all start from: they make those steps again."""
    current = folder.control().round
    newer = [
        stamp
        for stamp in folder.slots()
        if (stamp.round < current or not current) and stamp != chosen and (chosen is None or stamp > chosen)
    ]
    if newer:
        folder.forget(newer)
