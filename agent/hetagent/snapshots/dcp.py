"""What `save` and `load` of torch.distributed.checkpoint (DCP) write snapshots with, and read them with."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from xxhash import xxh3_64

from hetagent.snapshots.copying import Who
from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import ALIGNED, INDEX, OWN, SLOTS, Folder, Index, Place, Slot, Stamp, put
from hetagent.snapshots.loading import Found, Loader, forget_newer, part_of
from hetagent.snapshots.memory import BLOCK, as_bytes, place_of


class Writer(StorageWriter):
    """Writes what DCP gives this rank as its part of a snapshot; made by `hetagent.snapshots.writer`.

    DCP has one rank write what all have alike, so each piece is in one part, and a snapshot needs all parts.
    """

    def __init__(self, folder: Folder, who: Who, step: int) -> None:
        self._folder = folder
        self._who = who
        self._step = step
        self._slot: Slot | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: the step names the checkpoint."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing: rank and world are those of the job."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Empty the slot: nobody writes before all ranks of the node have been here."""
        self._slot = self._folder.begin(Stamp(self._step, self._folder.control().round))
        self._slot.empty()
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Nothing to be planned.

        Raises:
            SnapshotError: some ranks take no part.
        """
        world_size = self._who.world_size
        if len(plans) != world_size:
            raise SnapshotError(
                f"{len(plans)} of {world_size} ranks save step {self._step} together: a snapshot needs all, so "
                "leave out process_group, no_dist and use_collectives"
            )
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part, and its index last.

        Raises:
            SnapshotError: there is no room, or the slot was given away meanwhile.
        """
        assert self._slot is not None
        self._check_room(plan.items)
        path = self._slot.path / OWN.format(self._who.rank)
        written: list[tuple[WriteItem, Place]] = []
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # its memory is used again
        try:
            at = 0
            for item in plan.items:
                place, content = _resolved(item, planner)
                digest = _write(fd, at, content)
                written.append((item, replace(place, file=path.name, at=at, digest=digest)))
                at += -(-place.bytes // ALIGNED) * ALIGNED
            os.ftruncate(fd, at)
        except OSError as error:
            raise SnapshotError(f"no room for step {self._step} in {path.parent}: {error.strerror}") from None
        finally:
            os.close(fd)
        index = Index(
            stamp=self._slot.stamp,
            rank=self._who.rank,
            world_size=self._who.world_size,
            sharded=True,
            tensors=tuple(place for item, place in written if item.tensor_data is not None),
            items=tuple(place for item, place in written if item.tensor_data is None),
        )
        if self._slot.stamp not in self._folder.slots():
            raise SnapshotError(
                f"its slot was needed before the snapshot of step {self._step} was complete: wait for each async_save"
            )
        put(self._slot.path / INDEX.format(self._who.rank), index.written())
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, place.bytes, None) for item, place in written])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing: the snapshot is complete once all ranks' indexes are there."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No checkpoint is chosen by its name."""
        return False

    def _check_room(self, items: Sequence[WriteItem]) -> None:
        needs = SLOTS * self._who.local_world_size * sum(map(_size, items))  # DCP gives all ranks as much
        allowed = self._folder.control().memory
        if allowed is not None and needs > allowed:
            raise SnapshotError(
                f"snapshots need {needs / 1e6:.3g} MB of memory on this node, {SLOTS} times its share of the state, "
                f"and may have {allowed / 1e6:.3g} MB: give hetagent a larger --snapshot-memory, or a larger tmpfs as "
                "--snapshot-dir"
            )


class Reader(StorageReader):
    """Reads the newest snapshot that is complete, whether DCP or `snaps.step()` has made it.

    Made by `hetagent.snapshots.reader`.

    Attributes:
        step: after which step it was taken; None: there is none, and `dcp.load` would fail.

    Raises:
        SnapshotError: it cannot be read; the agent then has another one taken.
    """

    def __init__(self, folder: Folder, who: Who) -> None:
        self._folder = folder
        self._loader = Loader(folder, who.rank)
        self._found = self._loader.find()
        self.step = self._found.stamp.step if self._found is not None else None
        self._values: dict[str, WriteItem] = {}
        self._planner = DefaultSavePlanner()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: it is the snapshot that was found."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:  # DCP would call it again if it saw `kwargs`
        """What there is.

        Raises:
            SnapshotError: nothing.
        """
        found = self._there
        forget_newer(self._folder, found.stamp)
        metadata = self._loader.metadata(found)
        told = metadata.state_dict_metadata
        told.update(dict.fromkeys(found.items, BytesStorageMetadata()))
        if not found.from_dcp:
            self._planner.set_up_planner(self._loader.values(found), is_coordinator=True)
            self._values = {item.index.fqn: item for item in self._planner.create_local_plan().items}
            told.update({name: _metadata(item) for name, item in self._values.items()})
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Nothing to be set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing to be planned."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to be planned."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this rank's share.

        Raises:
            SnapshotError: no copy of a part is good.
        """
        for item in self._loader.in_order(self._there, plan.items):
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._bytes(item))
            else:
                target = planner.resolve_tensor(item).detach()
                self._fill(item, target)
                planner.commit_tensor(item, target)
        self._there.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No checkpoint is chosen by its name."""
        return False

    @property
    def _there(self) -> Found:
        if self._found is None:
            raise SnapshotError(
                "there is no snapshot to load: call dcp.load only if reader().step is not None"
            )
        return self._found

    def _bytes(self, item: ReadItem) -> BytesIO:
        name = item.storage_index.fqn
        if name in self._values:
            data = self._planner.resolve_data(self._values[name])
            assert isinstance(data, BytesIO)
            data.seek(0)
            return data
        (size,) = self._there.items[name][0][1].shape
        memory = torch.empty(size, dtype=torch.uint8)
        whole = replace(item, storage_offsets=torch.Size([0]), lengths=torch.Size([size]))
        self._loader.read(self._there, whole, memory)
        return BytesIO(as_bytes(memory))

    def _fill(self, item: ReadItem, target: Tensor) -> None:
        name = item.storage_index.fqn
        if name in self._values:
            data = self._planner.resolve_data(self._values[name])
            assert isinstance(data, Tensor)
            target.copy_(part_of(data, item))
        else:
            self._loader.read(self._there, item, target)


def _resolved(item: WriteItem, planner: SavePlanner) -> tuple[Place, Tensor]:
    """What is known of an item before it has its place, and its content in memory."""
    data, told = planner.resolve_data(item), item.tensor_data
    if isinstance(data, Tensor):
        assert told is not None
        place = place_of(item.index.fqn, data, told.size, told.chunk.offsets)
        return place, data.detach().to("cpu").contiguous()
    content = torch.frombuffer(data.getbuffer(), dtype=torch.uint8)
    return place_of(item.index.fqn, content), content


def _size(item: WriteItem) -> int:
    """How large a tensor is (bytes); values are small."""
    told = item.tensor_data
    return math.prod(told.chunk.sizes) * told.properties.dtype.itemsize if told is not None else 0


def _metadata(item: WriteItem) -> BytesStorageMetadata | TensorStorageMetadata:
    told = item.tensor_data
    if told is None:
        return BytesStorageMetadata()
    return TensorStorageMetadata(properties=told.properties, size=told.size, chunks=[told.chunk])


def _write(fd: int, at: int, content: Tensor) -> str:
    """Write to a file; returns the digest."""
    digest, memory = xxh3_64(), as_bytes(content)
    for first in range(0, memory.nbytes, BLOCK):
        block = memory[first : first + BLOCK]
        digest.update(block)
        done = 0
        while done < block.nbytes:
            done += os.pwrite(fd, block[done:], at + first + done)
    return digest.hexdigest()
