"""Copies a worker's state to memory that outlives it: what belongs to every step, and all of it for a snapshot."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import IO, NamedTuple

from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.tensor import DTensor, Replicate
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.devices import Copies, Devices
from hetagent.snapshots.errors import Overtaken, SnapshotError
from hetagent.snapshots.folder import (
    INDEX,
    LOCK,
    OWN,
    REPLICATED_SLOTS,
    SHARED,
    SLOTS,
    SMALL,
    Folder,
    Index,
    Place,
    Slot,
    Stamp,
    Sum,
    put,
    write_lock,
)
from hetagent.snapshots.memory import Files, Mapped, as_bytes, laid_out, place_of, view
from hetagent.snapshots.small import Bank, pack
from hetagent.snapshots.state import State

MOST_PEERS = 15
"""For how many ranks one stands in at most: a node can tell its server of 2,048 parts."""


class Who(NamedTuple):
    """Which worker this is."""

    rank: int
    world_size: int
    local_world_size: int


@dataclass(frozen=True)
class Copy:
    """What is being copied for a snapshot.

    Attributes:
        index: of this worker's part, without its files.
        copied: the files.
        small: what goes to `RANK.small`.
        peers: the ranks with the same shards (HSDP), for which this one stands in.
        lock: on what all ranks have alike, if this worker copies that.
    """

    index: Index
    copied: Mapping[str, Mapped]
    small: Tensor
    copies: Copies
    folder: Folder
    slot: Slot
    peers: Iterable[int]
    lock: IO[bytes] | None

    def wait(self) -> None:
        """Wait until it is there."""
        self.copies.wait()

    def close(self) -> None:
        """Others may copy what all ranks have alike, unless this worker has written that it has."""
        if self.lock is not None:
            self.lock.close()

    def finish(self) -> None:
        """Once it is there, digest it, and write the index, with which this worker's part is complete.

        Raises:
            Overtaken: the slot was given away meanwhile.
        """
        self.wait()
        small, name = as_bytes(self.small), SMALL.format(self.index.rank)
        (self.slot.path / name).write_bytes(small)
        files = {file: memory.sum() for file, memory in self.copied.items()}
        index = replace(self.index, files={**files, name: Sum(small.nbytes, xxh3_64_hexdigest(small))})
        if self.slot.stamp not in self.folder.slots():
            raise Overtaken(f"the snapshot of step {index.stamp.step} was overtaken")
        put(self.slot.path / INDEX.format(index.rank), index.written())
        for peer in self.peers:
            beside = self.slot.path / f"{peer}.json.{index.rank}"
            beside.write_bytes(replace(index, rank=peer).written())
            with contextlib.suppress(FileExistsError):
                os.link(beside, self.slot.path / INDEX.format(peer))
            beside.unlink()
        self.close()


class Copier:
    """Copies the state of one worker.

    Args:
        folder: where it goes.
        state: of the script.

    Attributes:
        devices: what has the state; known once it is `prepared`.
        sharded: whether this rank has parts of others; likewise.
    """

    def __init__(self, folder: Folder, state: State, who: Who) -> None:
        self._folder = folder
        self._state = state
        self._who = who
        self._bank: Bank | None = None
        self.devices = Devices(())
        self.sharded = False
        self._peers: set[int] = set()  # the ranks that have the same shards
        self._shared = False  # there is something that all ranks have alike
        self._count = 0  # for how many parameters optimizers had something
        self._files = Files(folder)
        self._sizes: Mapping[str, int] = {}  # of the files of each slot that this worker writes to (bytes)

    # -- made beforehand -----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Look at the state, once optimizers have theirs."""
        self.devices = self._state.devices()
        self._files.pins = self.devices.pins
        parts = self._parts().items()
        self._sizes = {name: laid_out((place for place, _ in part), name)[1] for name, part in parts}

    def make_slots(self) -> bool:
        """Have the memory of all slots, so that no snapshot has to wait for that.

        Returns:
            whether GPUs copy to it as fast as they can.

        Raises:
            SnapshotError, OSError: there is no room for it.
            RuntimeError: a device has trouble.
        """
        sizes = self._sizes
        here, copies = (
            self._who.local_world_size,
            2 if self._who.world_size > self._who.local_world_size else 1,
        )
        count = SLOTS if self.sharded else REPLICATED_SLOTS
        needs = count * sum(size * (1 if name == SHARED else here * copies) for name, size in sizes.items())
        allowed = self._folder.control().memory
        try:
            if allowed is not None and needs > allowed:
                raise SnapshotError(
                    f"they need {needs / 1e6:.3g} MB of memory on this node, {count} times the state, and may have "
                    f"{allowed / 1e6:.3g} MB: give hetagent a larger --snapshot-memory, or a larger tmpfs as "
                    "--snapshot-dir"
                )
            self._files.make(sizes, count)
        except (OSError, RuntimeError):
            self._files.give_back(sizes)
            raise
        return self._files.pinned

    # -- at every step -------------------------------------------------------------------------------------------

    def values(self) -> bytes:
        """The script's values.

        Raises:
            SnapshotError: one cannot be pickled.
        """
        return pack(self._state.replicated(), self._state.per_rank())

    def keep(self, step: int, values: bytes) -> None:
        """Keep what belongs to every step."""
        if self.devices and self._state.count() != self._count:
            self._parts()
        tensors = self._state.small()
        if self._bank is None or not self._bank.keep(step, tensors, values):
            self._bank = Bank(tensors, SMALL.format(self._who.rank))
            self._bank.keep(step, tensors, values)

    # -- for a snapshot ------------------------------------------------------------------------------------------

    def _parts(self, step: int | None = None) -> dict[str, list[tuple[Place, Tensor]]]:
        """The tensors of each file, in the order of their names: what all ranks have alike, this rank's parts.

        Args:
            step: as devices have it, if the script is ahead of them; None: as the script has left it.

        Raises:
            Overtaken: what is on the CPU is further, and was not kept.
        """
        parameters, others = self._state.parameters(), self._state.of_optimizers()
        large = dict(sorted({**parameters, **others}.items()))
        if step is None:
            self._count = self._state.count()
            self.devices.watch(parameters, others)
        else:
            large = self.devices.then(step, large)
        shards = {name: tensor for name, tensor in large.items() if isinstance(tensor, DTensor)}
        replicated = [
            (place_of(name, tensor), tensor) for name, tensor in large.items() if name not in shards
        ]
        own, peers = [], []
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(shards, is_coordinator=False)
        for item in planner.create_local_plan().items:
            name, tensor, whole = item.index.fqn, planner.resolve_data(item), item.tensor_data
            assert whole is not None
            assert isinstance(tensor, Tensor)
            part = place_of(name, tensor, whole.size, whole.chunk.offsets), tensor
            if holders := _holders(shards[name]):
                peers.append(holders)
                own.append(part)
            else:
                replicated.append(part)
        files = {SHARED: sorted(replicated, key=lambda part: part[0].name), OWN.format(self._who.rank): own}
        self._shared, self.sharded = bool(replicated), bool(own)
        self._peers = set.intersection(*peers) - {self._who.rank} if peers else set()
        return {name: parts for name, parts in files.items() if parts}

    def has_replicated(self, stamp: Stamp) -> bool:
        """Whether the workers of this node have written that they have all that ranks have alike."""
        slot = self._folder.slots().get(stamp)
        return slot is not None and any(index.has_replicated for index in slot.read().values())

    def copied(self, stamp: Stamp, *, now: bool, to_disk: bool = False) -> Copy:
        """Copy all that is to be copied by this worker, or have devices begin to.

        Args:
            now: the round ends, and devices have that state. So wait until another worker of this node has copied what
                all have alike; if it dies, that is this worker's.
            to_disk: it is to be written to disk as well.

        Raises:
            Overtaken: there is no slot for it, or not all of it is there any more.
        """
        parts = self._parts(stamp.step if now else None)
        slot = self._folder.begin(stamp, sharded=self.sharded, to_disk=to_disk, due=not now)
        lock = None
        if self._shared and not self.has_replicated(stamp):
            lock = write_lock(slot.path / LOCK, wait=now)
            if lock is not None and self.has_replicated(stamp):
                lock.close()
                lock = None
        if lock is None:
            parts.pop(SHARED, None)
        copies = self.devices.copies(now=now)
        copied, tensors = {}, []
        with copies.begun():
            small = self._bank.kept(stamp.step, copies) if self._bank is not None else None
            if small is None or self._bank is None:
                raise Overtaken(f"the values of step {stamp.step} are no longer there")
            for name, part in parts.items():
                places, size = laid_out((place for place, _ in part), name)
                copied[name] = memory = self._files.file(slot, name, size)
                for place, (_, tensor) in zip(places, part, strict=True):
                    copies.copy(tensor, view(memory.memory, place))
                tensors += places
        index = Index(
            stamp=stamp,
            rank=self._who.rank,
            world_size=self._who.world_size,
            sharded=self.sharded,
            shared=self._shared,
            tensors=(*tensors, *self._bank.places),
            values=self._bank.size,
        )
        peers = sorted(self._peers, key=lambda peer: (peer - self._who.rank) % self._who.world_size)
        return Copy(index, copied, small, copies, self._folder, slot, peers[:MOST_PEERS], lock)


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
