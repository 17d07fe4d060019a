"""Copies a worker's state to memory that outlives it: what belongs to every step, and all of it for a snapshot."""

import contextlib
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.devices import ON_HOST, Devices
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
from hetagent.snapshots.memory import MappedFile, assign_offsets, locate_tensor, view_as_tensor
from hetagent.snapshots.state import State

MOST_PEERS = 15
"""For how many ranks one stands in at most: a node can tell its server of 2,048 parts."""


class WorkerRank(NamedTuple):
    """Which worker this is."""

    rank: int
    world_size: int
    local_world_size: int


@dataclass(frozen=True)
class Copy:
    """What is being copied for a snapshot."""

    index: Index  # of this worker's part, without its files
    copied: Mapping[str, MappedFile]  # these
    small: tuple[Mapping[str, Tensor], bytes]  # buffers and values, which go to `RANK.small`
    sources: object  # of the copies: they stay until then
    devices: Devices
    slot: Slot
    peers: Sequence[int]  # the ranks with the same shards (HSDP), for which this one stands in
    lock: IO[bytes] | None  # on what all ranks have alike, if this worker copies that

    def finish(self, is_good: Callable[[], bool]) -> bool:
        """Once it is copied, and if it is good, digest it, and write the index, with which this part is complete.

        Others may copy what all ranks have alike from then on, unless this worker has. FileNotFoundError: the slot was
        given away meanwhile.
        """
        self.devices.wait_for_copies()
        if found := is_good():
            self._write()
        if self.lock is not None:
            self.lock.close()
        return found

    def _write(self) -> None:
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

    def __init__(self, folder: SnapshotFiles, state: State, who: WorkerRank) -> None:
        self._folder = folder
        self._state = state
        self._who = who
        self.devices = Devices(())  # what has the state; known once it is prepared
        self.sharded = False  # whether this rank has parts of tensors; likewise
        self._shared = False  # there is something that all ranks have alike
        self._peers: Sequence[int] = ()  # the ranks that have the same shards
        # Buffers and values of the last step; on a device what is there, since a copy to the host would wait for it.
        self._small: tuple[Mapping[str, Tensor], bytes] | None = None
        self._mapped: dict[tuple[Path, str], MappedFile] = {}  # files of slots

    # -- made beforehand -----------------------------------------------------------------------------------------

    def prepare(self) -> Mapping[str, int]:
        """Look at the state, once optimizers have theirs; the sizes of this worker's files of a slot (bytes)."""
        self.devices = self._state.devices()
        parts = self._parts().items()
        return {name: assign_offsets((place for place, _ in part), name)[1] for name, part in parts}

    def make_slots(self, sizes: Mapping[str, int]) -> None:
        """Have the memory of all slots, so that no snapshot has to wait for that.

        SnapshotError, OSError: there is no room for it.
        """
        here = self._who.local_world_size
        held = here if self._who.world_size == here else 2 * here  # those of another node, too
        count = SLOTS if self.sharded else REPLICATED_SLOTS
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
            used = {slot.directory for slot in self._folder.slots().values()}
            for path in set(self._folder.directories) - used:
                for name in sizes:
                    (path / name).unlink(missing_ok=True)
            self._mapped.clear()
            raise

    # -- at every step -------------------------------------------------------------------------------------------

    def values(self) -> bytes:
        """The script's values; SnapshotError: one cannot be pickled."""
        values = self._state.replicated(), self._state.per_rank()
        try:
            return pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise SnapshotError(f"a value of the state cannot be saved: {error}") from None

    def keep_small_state(self, values: bytes) -> None:
        """Keep what belongs to every step."""
        small = self._state.other_tensors().items()
        self._small = {name: tensor.detach().clone() for name, tensor in small}, values

    # -- for a snapshot ------------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, list[tuple[TensorLocation, Tensor]]]:
        """The tensors of each file, in the order of their names: what all ranks have alike, this rank's parts."""
        replicated, own, peers = [], [], []
        for name, tensor in self._state.optimized_tensors().items():
            if not isinstance(tensor, DTensor):
                replicated.append((locate_tensor(name, tensor), tensor))
                continue
            [chunk], local = tensor.__create_chunk_list__(), tensor.to_local()
            part = locate_tensor(name, local, tensor.shape, chunk.offsets), local
            if holders := _holders(tensor):
                peers.append(holders)
                own.append(part)
            else:
                replicated.append(part)
        files = {SHARED: replicated, OWN.format(self._who.rank): own}
        rank, world_size = self._who.rank, self._who.world_size
        self._shared, self.sharded = bool(replicated), bool(own)
        same = set.intersection(*peers) - {rank} if peers else set()
        self._peers = sorted(same, key=lambda peer: (peer - rank) % world_size)[:MOST_PEERS]
        return {name: parts for name, parts in files.items() if parts}

    def has_replicated(self, stamp: SnapshotId) -> bool:
        """Whether the workers of this node have written that they have all that ranks have alike."""
        slot = self._folder.slots().get(stamp)
        return slot is not None and any(index.has_replicated for index in slot.read_indexes().values())

    def begin_copy(self, stamp: SnapshotId, *, now: bool, to_disk: bool = False) -> Copy:
        """Copy the state after the last step, as far as it is this worker's, or have devices begin to.

        `now`: the round ends. So wait until another worker of this node has copied what all have alike; if it dies,
        that is this worker's. SnapshotSuperseded, FileNotFoundError: it has no slot.
        """
        parts = self._parts()
        slot = self._folder.claim_slot(stamp, sharded=self.sharded, to_disk=to_disk, due=not now)
        lock = self._shared_lock(slot, wait=now)
        if lock is None:
            parts.pop(SHARED, None)
        self._retract(slot)
        copied, tensors = {}, []
        with self.devices.copying():
            small = self._copy_small_state()
            for name, part in parts.items():
                laid, size = assign_offsets((place for place, _ in part), name)
                copied[name] = mapped = self._file(slot, name, size)
                mapped.write_headers(laid)
                for place, (_, tensor) in zip(laid, part, strict=True):
                    self.devices.copy(tensor, view_as_tensor(mapped.memory, place))
                    aliases = self._state.aliases.get(place.name, ())
                    tensors += [place, *(place._replace(name=alias) for alias in aliases)]
        index = Index(
            stamp=stamp,
            rank=self._who.rank,
            writer=self._who.rank,
            world_size=self._who.world_size,
            sharded=self.sharded,
            shared=self._shared,
            tensors=tuple(tensors),
        )
        return Copy(index, copied, small, (parts, self._small), self.devices, slot, self._peers, lock)

    def _retract(self, slot: Slot) -> None:
        """It is copied again: files that are about to be overwritten are no part of it."""
        if (slot.path / INDEX.format(self._who.rank)).exists():
            for rank, index in slot.read_indexes().items():
                if index.writer == self._who.rank:
                    (slot.path / INDEX.format(rank)).unlink(missing_ok=True)

    def _shared_lock(self, slot: Slot, *, wait: bool) -> IO[bytes] | None:
        """The right to copy what all ranks have alike, unless another worker of this node has done that."""
        if not self._shared or self.has_replicated(slot.stamp):
            return None
        lock = write_lock(slot.path / LOCK, wait=wait)
        if lock is not None and self.has_replicated(slot.stamp):
            lock.close()
            return None
        return lock

    def _copy_small_state(self) -> tuple[Mapping[str, Tensor], bytes]:
        assert self._small is not None
        tensors, values = self._small
        buffers = {}
        for name, tensor in tensors.items():
            pins = tensor.device.type not in ON_HOST
            buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pins)
            self.devices.copy(tensor, buffers[name])
        return buffers, values

    def _file(self, slot: Slot, name: str, size: int) -> MappedFile:
        """A file of a slot that is given to the snapshot that is about to be copied."""
        key = slot.directory, name
        known = self._mapped.get(key)
        if known is None or known.size != size or not known.is_intact():
            self._mapped[key] = known = MappedFile(slot.directory / name, size)
            known.is_intact()
        return known


def _holders(tensor: DTensor) -> set[int]:
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
