"""Copies a worker's state to memory that outlives it: what belongs to every step, and all of it for a snapshot."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    WriteLock,
    put,
)
from hetagent.snapshots.memory import Files, Layout, Mapped, as_bytes, laid_out, needed, place_of
from hetagent.snapshots.small import Bank, pack
from hetagent.snapshots.state import State


@dataclass(frozen=True, slots=True)
class Who:
    """Which worker this is."""

    rank: int
    world_size: int
    local_world_size: int


class Copy:
    """What was copied for a snapshot, without its digests.

    Attributes:
        index: of this worker's part.
    """

    def __init__(
        self,
        folder: Folder,
        slot: Slot,
        index: Index,
        copied: Mapping[str, Mapped],
        small: Tensor,
        copies: Copies,
        lock: WriteLock | None,
    ) -> None:
        self.index = index
        self._folder = folder
        self._slot = slot
        self._copied = copied
        self._small = small
        self._copies = copies
        self._lock = lock

    def close(self) -> None:
        """Others may copy what all ranks have alike, unless this worker has written that it has."""
        if self._lock is not None:
            self._lock.close()

    def wait(self) -> None:
        """Wait until it is there."""
        self._copies.wait()

    def finish(self) -> None:
        """Once it is there, digest it, and write the index, with which this worker's part is complete.

        Raises:
            Overtaken: the slot was given away meanwhile.
        """
        rank = self.index.rank
        self.wait()
        small = as_bytes(self._small)
        (self._slot.path / SMALL.format(rank)).write_bytes(small)
        files = {name: memory.sum() for name, memory in self._copied.items()}
        files[SMALL.format(rank)] = Sum(small.nbytes, xxh3_64_hexdigest(small))
        index = replace(self.index, files=files)
        if self._slot.stamp not in self._folder.slots():
            raise Overtaken(f"the snapshot of step {index.stamp.step} was overtaken")
        put(self._slot.path / INDEX.format(rank), index.written())
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
        self._alike = False  # whether there are tensors that all ranks have alike
        self.sharded = False
        self._count = 0  # for how many parameters optimizers had something
        self._files = Files(folder)
        self._layouts: dict[str, tuple[Sequence[Place], Layout]] = {}  # of what, by file

    # -- made beforehand -----------------------------------------------------------------------------------------

    def prepare(self) -> Mapping[str, int]:
        """Look at the state, once optimizers have theirs.

        Returns:
            the files of each slot that this worker writes to, and how large they are (bytes).
        """
        self.devices = self._state.devices()
        self._files.pins = self.devices.pins
        alike, own = self._parts()
        self._alike, self.sharded = bool(alike), bool(own)
        return {
            name: self._laid_out(parts, name).size
            for parts, name in ((alike, SHARED), (own, OWN.format(self._who.rank)))
            if parts
        }

    def make_slots(self, sizes: Mapping[str, int]) -> bool:
        """Have the memory of all slots, so that no snapshot has to wait for that.

        Returns:
            whether GPUs copy to it as fast as they can.

        Raises:
            SnapshotError, OSError: there is no room for it.
            RuntimeError: a device has trouble.
        """
        try:
            here = self._who.local_world_size
            count = SLOTS if self.sharded else REPLICATED_SLOTS
            needs = count * needed(sizes, here, copies=self._who.world_size > here)
            allowed = self._folder.control().memory
            if allowed is not None and needs > allowed:
                raise SnapshotError(
                    f"they need {needs / 1e6:.3g} MB of memory on this node, {count} times the state, and may have "
                    f"{allowed / 1e6:.3g} MB: give hetagent a larger --snapshot-memory, or a larger tmpfs as "
                    "--snapshot-dir"
                )
            self._files.make(sizes, count)
            return self._files.pinned
        except (OSError, RuntimeError):
            self._files.give_back(sizes)
            raise

    # -- at every step -------------------------------------------------------------------------------------------

    def values(self) -> bytes:
        """The script's values.

        Raises:
            SnapshotError: one cannot be pickled.
        """
        return pack(self._state.alike(), self._state.own())

    def keep(self, step: int, values: bytes) -> None:
        """Keep what belongs to every step."""
        if self.devices and self._state.count() != self._count:
            self._parts()
        tensors = self._state.small()
        if self._bank is None or not self._bank.keep(step, tensors, values):
            self._bank = Bank(tensors)
            self._bank.keep(step, tensors, values)

    # -- for a snapshot ------------------------------------------------------------------------------------------

    def _parts(
        self, step: int | None = None
    ) -> tuple[list[tuple[Place, Tensor]], list[tuple[Place, Tensor]]]:
        """What all ranks have alike, and this rank's parts of the rest; in the order of their names.

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
        distributed = {name: tensor for name, tensor in large.items() if isinstance(tensor, DTensor)}
        alike = [(place_of(name, large[name]), large[name]) for name in large.keys() - distributed.keys()]
        own: list[tuple[Place, Tensor]] = []
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(distributed, is_coordinator=False)
        for item in planner.create_local_plan().items:
            name, told = item.index.fqn, item.tensor_data
            tensor = planner.resolve_data(item)
            assert told is not None
            assert isinstance(tensor, Tensor)
            place = place_of(name, tensor, told.size, told.chunk.offsets)
            (own if _is_sharded(distributed[name]) else alike).append((place, tensor))
        return sorted(alike, key=lambda part: part[0].name), own

    def is_whole(self, stamp: Stamp) -> bool:
        """Whether the workers of this node have written that they have all that ranks have alike."""
        slot = self._folder.slots().get(stamp)
        return slot is not None and self._has_alike(slot)

    def _has_alike(self, slot: Slot) -> bool:
        """Whether some worker has written that it has copied what all ranks have alike."""
        return any(index.has_alike for index in slot.read().values())

    def copied(self, stamp: Stamp, *, now: bool, to_disk: bool = False) -> Copy:
        """Copy all that is to be copied by this worker, or have devices begin to.

        Args:
            now: the round ends, and devices have that state. So wait until another worker of this node has copied what
                all have alike; if it dies, that is this worker's.
            to_disk: it is to be written to disk as well.

        Raises:
            Overtaken: there is no slot for it, or not all of it is there any more.
        """
        alike, own = self._parts(stamp.step if now else None)
        self._alike = bool(alike)
        slot = self._folder.begin(stamp, sharded=bool(own), to_disk=to_disk, due=not now)
        copies = self.devices.copies(now=now)
        with copies.begun():
            small = self._bank.kept(stamp.step, copies) if self._bank is not None else None
            if small is None:
                raise Overtaken(f"the values of step {stamp.step} are no longer there")
            places, copied, lock = self._copy(slot, alike, own, copies, now=now)
        return Copy(self._folder, slot, self._index(stamp, places), copied, small, copies, lock)

    def _copy(
        self,
        slot: Slot,
        alike: Sequence[tuple[Place, Tensor]],
        own: Sequence[tuple[Place, Tensor]],
        copies: Copies,
        *,
        now: bool,
    ) -> tuple[list[Place], dict[str, Mapped], WriteLock | None]:
        """Copy tensors into a slot; returns where, in which files, and a lock if what all have alike is among them."""
        wanted = {OWN.format(self._who.rank): own}
        lock = None
        if alike and not self._has_alike(slot):
            lock = WriteLock(slot.path / LOCK)
            if lock.take(wait=now) and not self._has_alike(slot):
                wanted[SHARED] = alike
            else:
                lock.close()
                lock = None
        places: list[Place] = []
        copied: dict[str, Mapped] = {}
        for name, parts in wanted.items():
            if not parts:
                continue
            layout = self._laid_out(parts, name)
            copied[name] = memory = self._files.file(slot, name, layout.size)
            for place, (_, tensor) in zip(layout.places, parts, strict=True):
                copies.copy(tensor, memory.tensor(place))
            places += layout.places
        return places, copied, lock

    def _laid_out(self, parts: Iterable[tuple[Place, Tensor]], file: str) -> Layout:
        """Where they go in a file; as the last time, as long as they are the same."""
        places = [place for place, _ in parts]
        known = self._layouts.get(file)
        if known is None or known[0] != places:
            self._layouts[file] = known = places, laid_out(places, file)
        return known[1]

    def _index(self, stamp: Stamp, places: Sequence[Place]) -> Index:
        """This worker's part of a snapshot."""
        assert self._bank is not None
        name = SMALL.format(self._who.rank)
        return Index(
            stamp=stamp,
            rank=self._who.rank,
            world_size=self._who.world_size,
            sharded=self.sharded,
            shared=self._alike,
            tensors=(*places, *(place._replace(file=name) for place in self._bank.layout.places)),
            values=self._bank.layout.size,
        )


def _is_sharded(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor) and not all(isinstance(each, Replicate) for each in tensor.placements)
