"""Loads a snapshot into a script's state, whatever world it was taken in."""

import contextlib
import pickle
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import groupby
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots import save_request
from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import FileDigest, Index, SnapshotFiles, SnapshotId, TensorLocation
from hetagent.snapshots.memory import get_dtype, view_as_tensor
from hetagent.snapshots.sources import Source, SourceError
from hetagent.snapshots.state import State

Part = tuple[Source, Index]
"""A rank's part of a snapshot, and who has it."""

ROUND_END_WAIT_S = 2.0
"""How long a worker that cannot load waits for its agent to end the round: its own end would be a failure (seconds)."""


class _Unpickler(pickle.Unpickler):
    """Reads a worker's values; its tensors on devices, of which there may be fewer here, come to another one."""

    def __init__(self, values: bytes, device: torch.device) -> None:
        super().__init__(BytesIO(values))
        self._device = device

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return self._load_storage
        return super().find_class(module, name)

    def _load_storage(self, content: bytes) -> Any:
        def move(storage: Any, location: str) -> Any:
            return storage if location == "cpu" else storage.to(device=self._device)

        return torch.load(BytesIO(content), map_location=move, weights_only=False)


def read_small_state(
    content: bytes, device: torch.device
) -> tuple[Mapping[str, Tensor], dict[str, Any], dict[str, Any]]:
    """What is in a small file: buffers, values that ranks have alike, and those of the rank."""
    buffers, values, *more = torch.load(BytesIO(content), map_location="cpu", weights_only=False)
    replicated, per_rank = _Unpickler(values, device).load()
    for optimizer_values in more:
        replicated |= _Unpickler(optimizer_values, device).load()
    return buffers, replicated, per_rank


class SnapshotLoader:
    """Loads the snapshot that the agent has found, or that `find_newest` has, as `start.json` names it."""

    def __init__(
        self, folder: SnapshotFiles, rank: int, start: Mapping[str, Any], *, has_agent: bool
    ) -> None:
        self.stamp = SnapshotId(start["round"], start["step"])
        self._folder = folder
        self._rank = rank
        self._has_agent = has_agent
        self._world_size = start["world_size"]
        sources = [Source(entry, self.stamp) for entry in start["sources"]]
        # Not all ask the same node first.
        self._sources = sorted(
            sources, key=lambda source: (source.path is None, xxh3_64_hexdigest(f"{rank} {source.node}"))
        )
        self._errors: list[tuple[str, str]] = []  # what went wrong, and with the copy of which node

    def load(self, state: State) -> None:
        """Load it. SnapshotError: it is of another model, or no copy of a part is good."""
        parts = self._find_parts()
        index, content = self._read_small_file(parts)
        buffers, replicated, per_rank = read_small_state(content, state.device())
        places = {get_metadata_index(place): place for _, index in parts for place in index.tensors}
        shapes = {place.name: (torch.Size(place.shape), get_dtype(place)) for place in places.values()}
        targets = state.load_targets(shapes, buffers, replicated)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(targets, build_metadata(places.values()), is_coordinator=True)
        with torch.no_grad():
            self._fill_targets(parts, planner)
            is_own = self._rank == index.rank == index.writer
            state.restore(targets, buffers, replicated, per_rank if is_own else {})

    @contextlib.contextmanager
    def _collect_errors(self, source: Source) -> Iterator[None]:
        """Another source may be good where this one is not."""
        try:
            yield
        except SourceError as error:
            self._errors.append((source.node, str(error)))

    def _find_parts(self) -> list[Part]:
        """The parts of ranks, each with who has it; those on this node come first."""
        parts: list[Part] = []
        known: dict[tuple[int, str], Index] = {}
        for source in self._sources:
            for rank, digest in source.ranks.items():
                with self._collect_errors(source):
                    index = known.get((rank, digest)) or source.read_index(rank)[1]
                    if (index.stamp, index.world_size) != (self.stamp, self._world_size):
                        raise SourceError(f"another snapshot is in its place {source.where}")
                    known[rank, index.digest] = index
                    parts.append((source, index))
        if missing := describe_missing([index for _, index in parts], self._world_size):
            raise self._give_up(missing)
        return parts

    def _read_small_file(self, parts: Sequence[Part]) -> tuple[Index, bytes]:
        """Buffers and values, with their index: this rank's own if there are any, else those of the lowest rank."""
        ranks = {index.rank for _, index in parts}
        wanted_rank = self._rank if self._rank in ranks else min(ranks)
        for source, index in sorted(parts, key=lambda part: part[1].writer != wanted_rank):
            if index.rank == wanted_rank and (expected := index.files.get(index.small_file)) is not None:
                with self._collect_errors(source):
                    return index, b"".join(map(bytes, source.read(index.small_file, expected)))
        raise self._give_up(f"nobody has the values of rank {wanted_rank}")

    def _fill_targets(self, parts: Sequence[Part], planner: DefaultLoadPlanner) -> None:
        """Fill tensors, each from the first copy that is good. SnapshotError: of one there is none."""
        wanted: dict[MetadataIndex, list[ReadItem]] = defaultdict(list)
        for item in planner.create_local_plan().items:
            wanted[item.storage_index].append(item)
        for source, index in parts:
            for name, expected in index.files.items():
                places = [place for place in index.tensors if place.file == name]
                if wanted.keys() & set(map(get_metadata_index, places)):
                    with self._collect_errors(source):
                        for place, saved in read_tensors(source, expected, places):
                            for item in wanted.get(get_metadata_index(place), ()):
                                box = zip(item.storage_offsets, item.lengths, strict=True)
                                part = saved[tuple(slice(at, at + length) for at, length in box)]
                                planner.resolve_tensor(item).detach().copy_(part)
                        for place in places:
                            wanted.pop(get_metadata_index(place), None)
        if wanted:
            raise self._give_up(f"nobody has '{min(index.fqn for index in wanted)}'")

    def _give_up(self, missing: str) -> SnapshotError:
        """No copy is good: have the agent, or the next run, take another snapshot."""
        stamp = self.stamp
        node, why = self._errors[-1] if self._errors else ("", missing)
        if self._has_agent:
            save_request.write_answer(
                self._folder.path, self._rank, "bad", stamp=stamp.name, node=node, why=why
            )
            time.sleep(ROUND_END_WAIT_S)
        else:
            self._folder.release_slot(stamp)
        return SnapshotError(
            f"the snapshot of step {stamp.step} (round {stamp.round}) cannot be loaded: {why}"
        )


def read_tensors(
    source: Source, expected: FileDigest, places: Sequence[TensorLocation]
) -> Iterator[tuple[TensorLocation, Tensor]]:
    """Read a file to its end; yields the tensors in it, each in memory that the next one takes.

    `places` are in their order in the file; those of a tensor with several names are the same.
    """
    names = [list(same) for _, same in groupby(places, attrgetter("at"))]
    ranges = [(first.at, first.bytes) for first, *_ in names]
    for same, content in zip(names, source.read(places[0].file, expected, ranges), strict=True):
        for place in same:
            yield place, view_as_tensor(content, place._replace(at=0))


def get_metadata_index(place: TensorLocation) -> MetadataIndex:
    """By what torch knows a tensor, or a part of one."""
    return MetadataIndex(place.name, place.offsets)


def build_metadata(places: Iterable[TensorLocation]) -> Metadata:
    """What torch's planner needs to know."""
    tensors: dict[str, Any] = {}
    for place in places:
        chunk = ChunkStorageMetadata(torch.Size(place.offsets), torch.Size(place.lengths))
        properties = TensorProperties(dtype=get_dtype(place))
        empty = TensorStorageMetadata(properties, size=torch.Size(place.shape), chunks=[])
        tensors.setdefault(place.name, empty).chunks.append(chunk)
    return Metadata(state_dict_metadata=tensors)


def describe_missing(indexes: Sequence[Index], world_size: int) -> str:
    """What is missing of a snapshot; empty: nothing."""
    absent = set(range(world_size)) - {index.rank for index in indexes}
    if not any(index.has_replicated for index in indexes):
        return "the replicated state is missing"
    if absent and any(index.sharded for index in indexes):
        return f"shard missing of rank {min(absent)}"
    return ""


def find_newest(folder: SnapshotFiles) -> Mapping[str, Any]:
    """As `start.json`, what is complete on this node alone."""
    for stamp, slot in sorted(folder.find_slots().items(), reverse=True):
        indexes = slot.read_indexes()
        world_size = max((index.world_size for index in indexes.values()), default=1)
        if not describe_missing([*indexes.values()], world_size):
            source = {"path": str(slot.path), "ranks": dict.fromkeys(indexes, "")}
            return {"round": stamp.round, "step": stamp.step, "world_size": world_size, "sources": [source]}
    return {}
