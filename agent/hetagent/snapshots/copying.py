"""Copies a worker's state to memory that outlives it: what belongs to every step, and all of it for a snapshot."""

import contextlib
import os
import pickle
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.tensor import DTensor, Replicate
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.devices import ON_HOST, Copies, Devices
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
from hetagent.snapshots.memory import Mapped, as_bytes, laid_out, place_of, view
from hetagent.snapshots.state import State

MOST_PEERS = 15
"""For how many ranks one stands in at most: a node can tell its server of 2,048 parts."""


class Who(NamedTuple):
    """Which worker this is."""

    rank: int
    world_size: int
    local_world_size: int


@dataclass
class Half:
    """Buffers and values of one step; on a device what is there, since a copy to the host would wait for it."""

    kinds: Sequence[object] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    step: int | None = None
    values: bytes = b""


@dataclass(frozen=True)
class Copy:
    """What is being copied for a snapshot."""

    index: Index  # of this worker's part, without its files
    copied: Mapping[str, Mapped]  # these
    small: Tensor  # what goes to `RANK.small`
    copies: Copies
    folder: Folder
    slot: Slot
    peers: Sequence[int]  # the ranks with the same shards (HSDP), for which this one stands in
    lock: IO[bytes] | None  # on what all ranks have alike, if this worker copies that

    def close(self) -> None:
        """Others may copy what all ranks have alike, unless this worker has written that it has."""
        if self.lock is not None:
            self.lock.close()

    def finish(self) -> None:
        """Once it is copied, digest it, and write the index, with which this worker's part is complete.

        Overtaken: the slot was given away meanwhile.
        """
        self.copies.wait()
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
    """Copies the state of one worker."""

    def __init__(self, folder: Folder, state: State, who: Who) -> None:
        self._folder = folder
        self._state = state
        self._who = who
        self.devices = Devices(())  # what has the state; known once it is prepared
        self.sharded = False  # whether this rank has parts of tensors; likewise
        self._shared = False  # there is something that all ranks have alike
        self._peers: Sequence[int] = ()  # the ranks that have the same shards
        self._count = 0  # for how many parameters optimizers had something
        self._halves = deque([Half(), Half()])  # the last two steps: devices may be a step behind the script
        self._mapped: dict[tuple[int, str], Mapped] = {}  # files by slot

    # -- made beforehand -----------------------------------------------------------------------------------------

    def prepare(self) -> Mapping[str, int]:
        """Look at the state, once optimizers have theirs; the sizes of this worker's files of a slot (bytes)."""
        self.devices = self._state.devices()
        parts = self._parts().items()
        return {name: laid_out((place for place, _ in part), name)[1] for name, part in parts}

    def make_slots(self, sizes: Mapping[str, int]) -> None:
        """Have the memory of all slots, so that no snapshot has to wait for that.

        SnapshotError, OSError: there is no room for it.
        """
        here = self._who.local_world_size
        held = here if self._who.world_size == here else 2 * here  # those of another node, too
        count = SLOTS if self.sharded else REPLICATED_SLOTS
        needs = count * sum(size * (1 if name == SHARED else held) for name, size in sizes.items())
        allowed = self._folder.control().memory
        try:
            if allowed is not None and needs > allowed:
                raise SnapshotError(
                    f"they need {needs / 1e6:.3g} MB of memory on this node, {count} times the state, and may have "
                    f"{allowed / 1e6:.3g} MB: give hetagent a larger --snapshot-memory, or a larger tmpfs as "
                    "--snapshot-dir"
                )
            for number in range(count):
                path = self._folder.path / str(number)
                path.mkdir(mode=0o700, exist_ok=True)
                for name, size in sizes.items():
                    self._mapped[number, name] = made = Mapped(path / name, size)
                    if self.devices.pins:
                        made.pin()
        except (OSError, RuntimeError):
            self._give_back(sizes)
            raise

    def _give_back(self, names: Mapping[str, int]) -> None:
        """Nothing is copied any more; others need the memory of slots that hold nothing."""
        held = {slot.number for slot in self._folder.slots().values()}
        for number in set(range(SLOTS)) - held:
            for name in names:
                (self._folder.path / str(number) / name).unlink(missing_ok=True)
        self._mapped.clear()

    # -- at every step -------------------------------------------------------------------------------------------

    def values(self) -> bytes:
        """The script's values; SnapshotError: one cannot be pickled."""
        values = self._state.replicated(), self._state.per_rank()
        try:
            return pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise SnapshotError(f"a value of the state cannot be saved: {error}") from None

    def keep(self, step: int, values: bytes) -> None:
        """Keep what belongs to every step."""
        if self.devices and self._state.count() != self._count:
            self._watch(self._state.large())
        tensors = self._state.small()
        kinds = [(name, tensor.shape, tensor.dtype, tensor.device) for name, tensor in tensors.items()]
        half = self._halves.popleft()
        if half.kinds != kinds:
            made = {name: torch.empty_like(tensor.detach()) for name, tensor in tensors.items()}
            half = Half(kinds, made)
        half.step = None
        self._halves.append(half)
        for name, kept in half.tensors.items():
            kept.copy_(tensors[name].detach())
        half.step, half.values = step, values

    def _watch(self, large: Mapping[str, Tensor]) -> None:
        self._count = self._state.count()
        self.devices.watch(large)

    # -- for a snapshot ------------------------------------------------------------------------------------------

    def _parts(self, step: int | None = None) -> dict[str, list[tuple[Place, Tensor]]]:
        """The tensors of each file, in the order of their names: what all ranks have alike, this rank's parts.

        They are as devices have them after a `step`, or as the script has left them; see `Devices.then`.
        """
        large = self._state.large()
        if step is None:
            self._watch(large)
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
        rank, world_size = self._who.rank, self._who.world_size
        self._shared, self.sharded = bool(replicated), bool(own)
        same = set.intersection(*peers) - {rank} if peers else set()
        self._peers = sorted(same, key=lambda peer: (peer - rank) % world_size)[:MOST_PEERS]
        return {name: parts for name, parts in files.items() if parts}

    def has_replicated(self, stamp: Stamp) -> bool:
        """Whether the workers of this node have written that they have all that ranks have alike."""
        slot = self._folder.slots().get(stamp)
        return slot is not None and any(index.has_replicated for index in slot.read().values())

    def copied(self, stamp: Stamp, *, now: bool, to_disk: bool = False) -> Copy:
        """Copy all that is to be copied by this worker, or have devices begin to.

        `now`: the round ends, and devices have that state. So wait until another worker of this node has copied what
        all have alike; if it dies, that is this worker's. Overtaken: there is no slot, or not all of it is there.
        """
        parts = self._parts(stamp.step if now else None)
        slot = self._folder.begin(stamp, sharded=self.sharded, to_disk=to_disk, due=not now)
        lock = self._shared_lock(slot, wait=now)
        if lock is None:
            parts.pop(SHARED, None)
        copies = self.devices.copies(now=now)
        copied, tensors = {}, []
        with copies.begun():
            places, values, small = self._small(stamp.step, copies)
            for name, part in parts.items():
                laid, size = laid_out((place for place, _ in part), name)
                copied[name] = mapped = self._file(slot, name, size)
                for place, (_, tensor) in zip(laid, part, strict=True):
                    copies.copy(tensor, view(mapped.memory, place))
                tensors += laid
        index = Index(
            stamp=stamp,
            rank=self._who.rank,
            world_size=self._who.world_size,
            sharded=self.sharded,
            shared=self._shared,
            tensors=(*tensors, *places),
            values=values,
        )
        return Copy(index, copied, small, copies, self._folder, slot, self._peers, lock)

    def _shared_lock(self, slot: Slot, *, wait: bool) -> IO[bytes] | None:
        """The right to copy what all ranks have alike, unless another worker of this node has done that."""
        if not self._shared or self.has_replicated(slot.stamp):
            return None
        lock = write_lock(slot.path / LOCK, wait=wait)
        if lock is not None and self.has_replicated(slot.stamp):
            lock.close()
            return None
        return lock

    def _small(self, step: int, copies: Copies) -> tuple[Sequence[Place], int, Tensor]:
        """Buffers and values of a step, once the copies are made: places, where the values begin, and all bytes."""
        half = next((half for half in self._halves if half.step == step), None)
        if half is None:
            raise Overtaken(f"the values of step {step} are no longer there")
        named = SMALL.format(self._who.rank)
        places, size = laid_out((place_of(name, tensor) for name, tensor in half.tensors.items()), named)
        on_device = any(tensor.device.type not in ON_HOST for tensor in half.tensors.values())
        length = size + len(half.values)
        content = torch.empty(length, dtype=torch.uint8, device="cpu", pin_memory=on_device)
        for place in places:
            copies.copy(half.tensors[place.name], view(content, place))
        as_bytes(content)[size:] = half.values
        return places, size, content

    def _file(self, slot: Slot, name: str, size: int) -> Mapped:
        """A file of a slot that is given to the snapshot that is about to be copied."""
        known = self._mapped.get((slot.number, name))
        if known is None or known.size != size or not known.is_there():
            self._mapped[slot.number, name] = known = Mapped(slot.path / name, size)
            known.is_there()
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
