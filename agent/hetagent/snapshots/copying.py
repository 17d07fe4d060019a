"""Copies a worker's state to memory that outlives it: what belongs to every step, and all of it for a snapshot."""

import contextlib
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.devices import ON_HOST, StateDevices
from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import (
    INDEX,
    LOCK,
    OWN,
    REPLICATED_SLOTS,
    SHARED,
    SLOTS,
    FileDigest,
    Index,
    Slot,
    SnapshotFiles,
    SnapshotId,
    TensorLocation,
    write_atomic,
    write_lock,
)
from hetagent.snapshots.memory import MappedFile, locate_tensor
from hetagent.snapshots.state import State

MOST_PEERS = 15
"""For how many ranks one stands in at most: a node can tell its server of 2,048 parts."""

SmallState = tuple[Mapping[str, Tensor], bytes, bytes]
"""Buffers; values, pickled; and those that optimizers have for parameters."""


class WorkerRank(NamedTuple):
    """Which worker this is."""

    rank: int
    world_size: int
    local_world_size: int


@dataclass(frozen=True)
class SnapshotCopy:
    """What is being copied for a snapshot."""

    index: Index  # of this worker's part, without its files
    copied: Mapping[str, MappedFile]  # these
    small: SmallState  # goes to `RANK.small`
    sources: object  # of the copies: they stay until then
    devices: StateDevices
    slot: Slot
    peers: Sequence[int]  # the ranks with the same shards (HSDP), for which this one stands in
    lock: IO[bytes] | None  # on what all ranks have alike, if this worker copies that

    def finish(self, is_good: Callable[[], bool]) -> bool:
        """Once it is copied, and if it is good, digest it, and write the index, with which this part is complete.

        Others may copy what all ranks have alike from then on, unless this worker has. FileNotFoundError: the slot was
        given away meanwhile.
        """
        try:
            self.devices.wait_for_copies()
            if found := is_good():
                self._write_index()
            return found
        finally:
            if self.lock is not None:
                self.lock.close()

    def _write_index(self) -> None:
        file = BytesIO()
        torch.save(self.small, file)
        small, slot = file.getbuffer(), self.slot.path
        files = {name: memory.digest() for name, memory in self.copied.items()}
        files[self.index.small_file] = FileDigest(small.nbytes, xxh3_64_hexdigest(small))
        index = replace(self.index, files=files)
        (slot / index.small_file).write_bytes(small)
        write_atomic(slot / INDEX.format(index.rank), index.to_json())
        for peer in self.peers:
            beside = slot / f"{peer}.json.{index.rank}"
            beside.write_bytes(replace(index, rank=peer).to_json())
            with contextlib.suppress(FileExistsError):
                os.link(beside, slot / INDEX.format(peer))
            beside.unlink()


class Copier:
    """Copies the state of one worker."""

    def __init__(self, folder: SnapshotFiles, state: State, worker: WorkerRank) -> None:
        self._folder = folder
        self._state = state
        self._worker = worker
        self.devices = StateDevices(())  # what has the state; known once it is prepared
        # Buffers and values of the last step; on a device what is there, since a copy to the host would wait for it.
        self._buffers: Mapping[str, Tensor] = {}
        self._values = b""
        self._mapped: dict[tuple[Path, str], MappedFile] = {}  # files of slots

    # -- made beforehand -----------------------------------------------------------------------------------------

    def measure_files(self) -> Mapping[str, int]:
        """Look at the state, once optimizers have theirs; the sizes of this worker's files of a slot (bytes)."""
        self.devices = self._state.devices()
        return {name: part[-1][0].end for name, part in self._locate_tensors()[0].items()}

    def make_slots(self, sizes: Mapping[str, int]) -> None:
        """Have the memory of all slots, so that no snapshot has to wait for that.

        SnapshotError, OSError: there is no room for it.
        """
        here = self._worker.local_world_size
        held = here if self._worker.world_size == here else 2 * here  # those of another node, too
        count = REPLICATED_SLOTS if sizes.keys() <= {SHARED} else SLOTS
        needs = count * sum(size * (1 if name == SHARED else held) for name, size in sizes.items())
        allowed = self._folder.read_control().memory
        try:
            if allowed is not None and needs > allowed:
                raise SnapshotError(
                    f"they need {needs / 1e6:.3g} MB of memory on this node, {count} times the state, and may have "
                    f"{allowed / 1e6:.3g} MB: give hetagent a larger --snapshot-memory, or a larger tmpfs as "
                    "--snapshot-dir"
                )
            for path in self._folder.directories[:count]:
                for name, size in sizes.items():
                    self._mapped[path, name] = made = MappedFile(path / name, size)
                    if self.devices.needs_pinned_memory:
                        made.pin()
        except (OSError, RuntimeError):  # others need the memory of slots that hold nothing
            used = {slot.directory for slot in self._folder.find_slots().values()}
            for path in set(self._folder.directories) - used:
                for name in sizes:
                    (path / name).unlink(missing_ok=True)
            self._mapped.clear()
            raise

    # -- at every step -------------------------------------------------------------------------------------------

    def pickle_values(self) -> bytes:
        """The script's values; SnapshotError: one cannot be pickled."""
        return _pickle((self._state.replicated_values(), self._state.per_rank_values()))

    def copy_small_state(self, values: bytes) -> None:
        """Keep what belongs to every step."""
        buffers = self._state.other_tensors().items()
        self._buffers, self._values = {name: tensor.detach().clone() for name, tensor in buffers}, values

    # -- for a snapshot ------------------------------------------------------------------------------------------

    def _locate_tensors(self) -> tuple[dict[str, list[tuple[TensorLocation, Tensor]]], Sequence[int]]:
        """The tensors of each file: what all ranks have alike, this rank's parts; and the ranks with the same parts."""
        files, holders = defaultdict[str, list[tuple[TensorLocation, Tensor]]](list), []
        for name, tensor in self._state.optimized_tensors().items():
            file, local, offsets = SHARED, tensor, ()
            if isinstance(tensor, DTensor):
                [chunk], local = tensor.__create_chunk_list__(), tensor.to_local()
                offsets = tuple(chunk.offsets)
                if ranks := _ranks_with_part(tensor):
                    file = OWN.format(self._worker.rank)
                    holders.append(ranks)
            after = files[file][-1][0].end if files[file] else 0
            place = locate_tensor(name, local, tensor.shape, offsets, file=file, after=after)
            files[file].append((place, local))
        rank, world_size = self._worker.rank, self._worker.world_size
        peers = set.intersection(*holders) - {rank} if holders else set()
        return dict(files), sorted(peers, key=lambda peer: (peer - rank) % world_size)[:MOST_PEERS]

    def has_replicated(self, stamp: SnapshotId) -> bool:
        """Whether the workers of this node have written that they have all that ranks have alike."""
        slot = self._folder.find_slots().get(stamp)
        return slot is not None and any(index.has_replicated for index in slot.read_indexes().values())

    def begin_copy(self, stamp: SnapshotId, *, now: bool, to_disk: bool = False) -> SnapshotCopy:
        """Copy the state after the last step, as far as it is this worker's, or have devices begin to.

        `now`: the round ends. So wait until another worker of this node has copied what all have alike; if it dies,
        that is this worker's. SnapshotSuperseded, FileNotFoundError: it has no slot.
        """
        files, peers = self._locate_tensors()
        is_sharded, has_shared = bool(files.keys() - {SHARED}), SHARED in files
        slot = self._folder.claim_slot(stamp, sharded=is_sharded, to_disk=to_disk, due=not now)
        lock = self._lock_replicated(slot, wait=now) if has_shared else None
        if lock is None:
            files.pop(SHARED, None)
        self._remove_indexes(slot)
        copied, tensors = {}, []
        with self.devices.use_copy_streams():
            small = self._copy_small_state()
            for name, part in files.items():
                copied[name] = mapped = self._map_file(slot, name, part[-1][0].end)
                for place, tensor in part:
                    self.devices.copy_tensor(tensor, mapped.tensor_at(place))
                    aliases = self._state.aliases.get(place.name, ())
                    tensors += [place, *(place._replace(name=alias) for alias in aliases)]
        index = Index(
            stamp=stamp,
            rank=self._worker.rank,
            writer=self._worker.rank,
            world_size=self._worker.world_size,
            sharded=is_sharded,
            shared=has_shared,
            tensors=tuple(tensors),
        )
        return SnapshotCopy(index, copied, small, (files, self._buffers), self.devices, slot, peers, lock)

    def _remove_indexes(self, slot: Slot) -> None:
        """It is copied again: files that are about to be overwritten are no part of it."""
        if (slot.path / INDEX.format(self._worker.rank)).exists():
            for rank, index in slot.read_indexes().items():
                if index.writer == self._worker.rank:
                    (slot.path / INDEX.format(rank)).unlink(missing_ok=True)

    def _lock_replicated(self, slot: Slot, *, wait: bool) -> IO[bytes] | None:
        """The right to copy what all ranks have alike, unless another worker of this node has done that."""
        lock = write_lock(slot.path / LOCK, wait=wait)
        if lock is not None and self.has_replicated(slot.stamp):
            lock.close()
            return None
        return lock

    def _copy_small_state(self) -> SmallState:
        buffers = {}
        for name, tensor in self._buffers.items():
            pins = tensor.device.type not in ON_HOST
            buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pins)
            self.devices.copy_tensor(tensor, buffers[name])
        return buffers, self._values, _pickle(self._state.optimizer_values())

    def _map_file(self, slot: Slot, name: str, size: int) -> MappedFile:
        """A file of a slot that is given to the snapshot that is about to be copied."""
        key = slot.directory, name
        known = self._mapped.get(key)
        if known is None or known.size != size or not known.truncate_to_map():
            self._mapped[key] = known = MappedFile(slot.directory / name, size)
            known.truncate_to_map()
        return known


def _pickle(values: object) -> bytes:
    try:
        return pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SnapshotError(f"a value of the state cannot be saved: {error}") from None


def _ranks_with_part(tensor: DTensor) -> set[int]:
    """The ranks that have the same part of a tensor as this one; none: all ranks have all of it."""
    if all(isinstance(each, Replicate) for each in tensor.placements):
        return set()
    at, mesh = tensor.device_mesh.get_coordinate(), tensor.device_mesh.mesh
    assert at is not None
    where = tuple(
        slice(None) if isinstance(each, Replicate) else here
        for each, here in zip(tensor.placements, at, strict=True)
    )
    return set(mesh[where].flatten().tolist())
