"""Loads a snapshot into a script's state, whatever world it was taken in."""

import contextlib
import json
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import torch
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
from hetagent.snapshots.folder import Index, SnapshotFiles, SnapshotId, TensorLocation, write_atomic
from hetagent.snapshots.memory import dtype_of, view_as_tensor
from hetagent.snapshots.sources import Source, SourceError
from hetagent.snapshots.state import State

Part = tuple[Source, Index]
"""A rank's part of a snapshot, and who has it."""

GIVEN_UP_S = 2.0
"""How long a worker that cannot load waits for its agent to end the round: its own end would be a failure (seconds)."""


class OnDevice(pickle.Unpickler):
    """Reads a worker's values; its tensors on devices, of which there may be fewer here, come to another one."""

    def __init__(self, values: bytes, device: torch.device) -> None:
        super().__init__(BytesIO(values))
        self._device = device

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return self._storage
        return super().find_class(module, name)

    def _storage(self, content: bytes) -> Any:
        def place(storage: Any, location: str) -> Any:
            return storage if location == "cpu" else storage.to(device=self._device)

        return torch.load(BytesIO(content), map_location=place, weights_only=False)


class Loader:
    """Loads the snapshot that the agent has found, or that `find_newest` has, as `start.json` names it."""

    def __init__(
        self, folder: SnapshotFiles, rank: int, start: Mapping[str, Any], *, has_agent: bool
    ) -> None:
        self.stamp = SnapshotId(start["round"], start["step"])
        self._folder = folder
        self._rank = rank
        self._has_agent = has_agent
        self._world_size = start["world_size"]
        sources = [Source(told, self.stamp) for told in start["sources"]]
        # Not all ask the same node first.
        self._sources = sorted(
            sources, key=lambda source: (source.path is None, xxh3_64_hexdigest(f"{rank} {source.node}"))
        )
        self._trouble: list[tuple[str, str]] = []  # what went wrong, and with the copy of which node
        # The same for all: memory that is touched for the first time takes several times as long.
        self._buffer = bytearray(1)

    def load(self, state: State) -> None:
        """Load it. SnapshotError: it is of another model, or no copy of a part is good."""
        parts = self._parts()
        index, content = self._small(parts)
        buffers, values = torch.load(BytesIO(content), map_location="cpu", weights_only=False)
        replicated, per_rank = OnDevice(values, state.device()).load()
        places = {(place.name, place.offsets): place for _, index in parts for place in index.tensors}
        shapes = {place.name: (torch.Size(place.shape), dtype_of(place)) for place in places.values()}
        targets = state.load_targets(shapes, buffers, replicated)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(targets, metadata_of(places.values()), is_coordinator=True)
        with torch.no_grad():
            self._read(parts, planner)
            is_own = self._rank == index.rank == index.writer
            state.restore(targets, buffers, replicated, per_rank if is_own else {})

    @contextlib.contextmanager
    def _tries(self, source: Source) -> Iterator[None]:
        """Another one may be good where this one is not."""
        try:
            yield
        except SourceError as error:
            self._trouble.append((source.node, str(error)))

    def _parts(self) -> list[Part]:
        """The parts of ranks, each with who has it; those on this node come first."""
        parts: list[Part] = []
        known: dict[tuple[int, str], Index] = {}
        for source in self._sources:
            for rank, digest in source.ranks.items():
                with self._tries(source):
                    index = known.get((rank, digest)) or source.index(rank)[1]
                    if (index.stamp, index.world_size) != (self.stamp, self._world_size):
                        raise SourceError(f"another snapshot is in its place {source.where}")
                    known[rank, index.digest] = index
                    parts.append((source, index))
        if lack := describe_missing([index for _, index in parts], self._world_size):
            raise self._bad(lack)
        return parts

    def _small(self, parts: Sequence[Part]) -> tuple[Index, bytes]:
        """Buffers and values, with their index: this rank's own if there are any, else those of the lowest rank."""
        ranks = {index.rank for _, index in parts}
        whose = self._rank if self._rank in ranks else min(ranks)
        for source, index in sorted(parts, key=lambda part: part[1].writer != whose):
            if index.rank == whose and (expected := index.files.get(index.small_file)) is not None:
                with self._tries(source):
                    return index, b"".join(map(bytes, source.chunks(index.small_file, expected)))
        raise self._bad(f"nobody has the values of rank {whose}")

    def _read(self, parts: Sequence[Part], planner: DefaultLoadPlanner) -> None:
        """Fill tensors, each from the first copy that is good. SnapshotError: of one there is none."""
        left: dict[tuple[str, tuple[int, ...]], list[ReadItem]] = defaultdict(list)
        for item in planner.create_local_plan().items:
            left[item.storage_index.fqn, tuple(item.storage_index.offset or ())].append(item)
        for source, index in parts:
            for name, expected in index.files.items():
                places = [place for place in index.tensors if place.file == name]
                wanted = [left.get((place.name, place.offsets), []) for place in places]
                if any(wanted):
                    with self._tries(source):
                        with source.open_checked(name, expected) as fill:
                            self._fill(fill, places, wanted, planner)
                        for place in places:
                            left.pop((place.name, place.offsets), None)
        if left:
            raise self._bad(f"nobody has '{min(left)[0]}'")

    def _fill(
        self,
        fill: Callable[[memoryview], None],
        places: Sequence[TensorLocation],
        wanted: Sequence[Sequence[ReadItem]],
        planner: DefaultLoadPlanner,
    ) -> None:
        """Read a file from its beginning to its end, and fill what is wanted of it."""
        end = 0
        for place, items in zip(places, wanted, strict=True):
            if len(self._buffer) < place.bytes:
                self._buffer = bytearray(place.bytes)
            if place.at >= end:  # else it is the last one, by another name
                fill(memoryview(bytearray(place.at - end)))
                fill(memoryview(self._buffer)[: place.bytes])
                end = place.at + place.bytes
            tensor = view_as_tensor(torch.frombuffer(self._buffer, dtype=torch.uint8), place._replace(at=0))
            for item in items:
                ranges = zip(item.storage_offsets, item.lengths, strict=True)
                part = tensor[tuple(slice(at, at + length) for at, length in ranges)]
                planner.resolve_tensor(item).detach().copy_(part)

    def _bad(self, lack: str) -> SnapshotError:
        """No copy is good: tell the agent, which has another one taken."""
        stamp = self.stamp
        node, why = self._trouble[-1] if self._trouble else ("", lack)
        with contextlib.suppress(OSError):
            self._folder.bad_snapshot_file(stamp).parent.mkdir(mode=0o700, exist_ok=True)
            told = json.dumps({"node": node, "why": why}).encode()
            write_atomic(self._folder.bad_snapshot_file(stamp), told)
            if self._has_agent:
                time.sleep(GIVEN_UP_S)
        return SnapshotError(
            f"the snapshot of step {stamp.step} (round {stamp.round}) cannot be loaded: {why}"
        )


def metadata_of(places: Iterable[TensorLocation]) -> Metadata:
    """What torch's planner needs to know."""
    told: dict[str, Any] = {}
    for place in places:
        chunk = ChunkStorageMetadata(torch.Size(place.offsets), torch.Size(place.lengths))
        properties = TensorProperties(dtype=dtype_of(place))
        empty = TensorStorageMetadata(properties, size=torch.Size(place.shape), chunks=[])
        told.setdefault(place.name, empty).chunks.append(chunk)
    return Metadata(state_dict_metadata=told)


def describe_missing(indexes: Sequence[Index], world_size: int) -> str:
    """What is missing of a snapshot; empty: nothing."""
    absent = set(range(world_size)) - {index.rank for index in indexes}
    if not any(index.has_replicated for index in indexes):
        return "nobody has what all ranks have alike"
    if absent and any(index.sharded for index in indexes):
        return f"nobody has the part of rank {min(absent)}"
    return ""


def find_newest(folder: SnapshotFiles) -> Mapping[str, Any]:
    """As `start.json`, what is complete on this node alone."""
    for stamp, slot in sorted(folder.slots().items(), reverse=True):
        indexes = slot.read_indexes()
        world_size = max((index.world_size for index in indexes.values()), default=1)
        if (
            not describe_missing([*indexes.values()], world_size)
            and not folder.bad_snapshot_file(stamp).exists()
        ):
            source = {"path": str(slot.path), "ranks": dict.fromkeys(indexes, "")}
            return {"round": stamp.round, "step": stamp.step, "world_size": world_size, "sources": [source]}
    return {}
