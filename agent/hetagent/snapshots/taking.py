"""Takes snapshots: when one is due, when the round ends, and what belongs to every step."""

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median, median_low

from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.tensor import DTensor, Replicate

from hetagent.snapshots import asked
from hetagent.snapshots.banked import NOW
from hetagent.snapshots.copied import Copy
from hetagent.snapshots.errors import Overtaken, SnapshotError
from hetagent.snapshots.folder import (
    CLAIMS,
    INDEX,
    OWN,
    SHARED,
    SLOTS,
    SMALL,
    Claims,
    Folder,
    Index,
    Place,
    Slot,
    Stamp,
    put,
)
from hetagent.snapshots.memory import Mapped, laid_out, needed, place_of
from hetagent.snapshots.small import Bank, pack
from hetagent.snapshots.state import State

WORTH = 0.01
"""Which part of the time snapshots may take."""

STEPS_MEASURED = 16
"""Of how many of the last steps the usual length is known."""

COSTS_MEASURED = 3
"""Of so many of the last snapshots the median of their costs counts: one may have had to wait for something else."""

PATIENT = 2
"""So many snapshots in a row that are due give way to one that is not safe yet; then it has to make room."""

LONGEST_S = 120.0
"""A pause that is as long grows no more for want of room: perhaps a server was away (seconds)."""

GROWS = 4
"""By how much the pause between snapshots grows at most from one to the next."""

HALF_STEP_S = 5.0
"""How long a worker that is asked in the middle of an optimizer's step waits for the end of that step (seconds)."""

ONE_MORE_S, HOLD_S = 0.25, 1.0
"""How long it waits for the step in flight, which others may end and which is then taken, and for how long it trains no
further after its answer (seconds): its agent is about to stop it."""

SILENT_STEPS = 3
"""After so many steps in a row that no optimizer has told of, a person is told what that means."""


@dataclass(frozen=True, slots=True)
class Who:
    """Which worker this is."""

    rank: int
    world_size: int
    local_world_size: int


class Taker:
    """Takes the snapshots of one worker.

    Args:
        folder: where they go.
        state: of the script.
    """

    def __init__(self, folder: Folder, state: State, who: Who) -> None:
        self._folder = folder
        self._state = state
        self._who = who
        self._pid = os.getpid()
        self._lock = threading.RLock()  # held while anything is copied, and around changes of what is copied
        self._whole = threading.Condition(self._lock)  # a step has ended
        self._clean: int | None = None  # the step after which parameters have not changed
        self._changed = False  # since the last step
        self._silent = 0  # how many steps in a row have changed nothing
        self._reached = 0
        self._more: int | None = None  # how many steps training may still end; None: any number
        self._free_at = 0.0  # until when it stands still once that is none (monotonic seconds)
        self._saved: Stamp | None = None
        self._why = ""  # why nothing can be saved
        self._bank: Bank | None = None
        self._alike: Mapping[str, int] = {}  # the tensors that all ranks have alike, with their sizes (bytes)
        self._sharded = False  # whether this rank has parts of others
        self._files: dict[tuple[int, str], Mapped] = {}
        self._ahead: threading.Thread | None = None  # makes the slots
        self._closing: threading.Thread | None = None  # digests what was copied, and writes the index
        self._every = self._least = 1  # by what they cost, and by how fast they become safe
        self._overtaken = 0  # how many snapshots in a row found no slot
        self._costs_s: deque[float] = deque(maxlen=COSTS_MEASURED)
        self._copy_s = 0.0
        self._steps_s: deque[float] = deque(maxlen=STEPS_MEASURED)
        self._ended_at = 0.0  # the last step (monotonic seconds)
        self._state.before_changes(self._changes)

    # -- the script's side -----------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        """The state is whole after a step; takes a snapshot if one is due."""
        if os.getpid() != self._pid:
            return
        began = time.perf_counter()
        if self._ended_at:
            self._steps_s.append(began - self._ended_at)
        with self._lock:
            self._state.learn()
            self._reached = step
            sizes = self._sizes() if self._ahead is None else {}
            self._clean = step if self._is_told(step) and self._keep_small(step) else None
            self._changed = False
            if self._ahead is None:
                self._ahead = threading.Thread(
                    target=self._make_slots, args=(sizes,), name="hetagent-slots", daemon=True
                )
                self._ahead.start()
            elif step % self._period() == 0 and not self._ahead.is_alive() and not self._why:
                self._take_due(step)
            if self._more:
                self._more -= 1
            self._whole.notify_all()
            self._stand_still()
        self._ended_at = time.perf_counter()

    def begins_at(self, step: int) -> None:
        """The state of a step was loaded."""
        self._reached = step

    def _changes(self) -> None:
        """An optimizer is about to change parameters: not while they are copied."""
        if not self._changed:
            with self._lock:
                self._stand_still()
                self._changed, self._clean = True, None

    def _stand_still(self) -> None:
        if os.getpid() != self._pid:
            return
        while self._more == 0:
            left_s = self._free_at - time.monotonic()
            if left_s <= 0:
                self._more = None
            else:
                self._whole.wait(left_s)

    def _is_told(self, step: int) -> bool:
        """Whether optimizers tell when they change parameters."""
        self._silent = 0 if self._changed else self._silent + 1
        if self._silent == SILENT_STEPS:
            _say(
                f"rank {self._who.rank} has called snaps.step({step}), but no optimizer of its state has made a step "
                "since the call before: if something else changes parameters, steps since the last snapshot may be lost"
            )
        return self._changed

    def _keep_small(self, step: int) -> bool:
        """Keep what belongs to every step; False: there is no room for that."""
        if self._why:
            return False
        tensors = self._state.small()
        values = pack(self._state.alike(), self._state.own())
        if self._bank is not None and self._bank.keep(step, tensors, values):
            return True
        try:
            path = self._folder.path / NOW
            path.mkdir(mode=0o700, exist_ok=True)
            (path / SMALL.format(self._who.rank)).unlink(missing_ok=True)
            self._bank = Bank(path / SMALL.format(self._who.rank), tensors, len(values))
            self._bank.keep(step, tensors, values)
            index = self._index(Stamp(0, self._folder.control().round))
            put(path / INDEX.format(self._who.rank), index.written())
        except (SnapshotError, OSError) as error:
            self._give_up(error)
            return False
        return True

    def _period(self) -> int:
        """How often to take a snapshot (steps)."""
        control = self._folder.control()
        fixed = control.fixed and control.every > 0
        return max(self._least, control.every) if fixed else max(self._every, self._least, control.every)

    def _take_due(self, step: int) -> None:
        if self._closing is not None and self._closing.is_alive():
            return  # the last one has not been closed, so snapshots are far too frequent
        began = time.perf_counter()
        try:
            close = self._copied(Stamp(step, self._folder.control().round), wait=False)
        except Overtaken:
            self._overtaken += 1
            pause_s = self._period() * median(self._steps_s or [0.0])
            if self._overtaken % PATIENT == 0 and pause_s < LONGEST_S:
                # Nodes that leave out different ones would have none in common; all take the largest pause.
                self._least = 2 * self._period()
            return
        except (SnapshotError, OSError) as error:
            self._give_up(error)
            return
        self._overtaken = 0
        self._copy_s = time.perf_counter() - began
        self._closing = threading.Thread(target=self._close_due, args=(close,), daemon=True)
        self._closing.start()

    def _close_due(self, close: Copy) -> None:
        began = time.perf_counter()
        try:
            close.finish()
        except Overtaken:
            return
        except (SnapshotError, OSError, ValueError) as error:
            self._give_up(error)
            return
        self._saved = close.index.stamp
        self._costs_s.append(self._copy_s + time.perf_counter() - began)
        if len(self._steps_s) > 1:
            worth = median_low(self._costs_s) / (WORTH * max(median(list(self._steps_s)), 1e-6))
            wanted = 1 << math.ceil(math.log2(max(worth, 1.0)))
            self._every = min(wanted, self._every * GROWS)  # the first ones take longer

    def _give_up(self, error: Exception) -> None:
        if not self._why:
            self._why = str(error)
            _say(f"rank {self._who.rank} takes no more snapshots: {error}")

    # -- when the round ends ---------------------------------------------------------------------------------

    def save_now(self, *, patience_s: float = 0.0) -> None:
        """Save the last step that is whole, unless that was done.

        Args:
            patience_s: how long to wait for the end of a step that is under way (seconds).
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._ahead is not None:
                self._ahead.join()
            if self._clean is None and self._changed and patience_s:
                self._whole.wait(patience_s)
            if self._clean is None or self._why or (self._saved and self._saved.step == self._clean):
                return
            closing = self._closing
            if closing is not None and closing.is_alive():
                closing.join()
            if self._saved is not None and self._saved.step == self._clean:
                return
            stamp = Stamp(self._clean, self._folder.control().round)
            try:
                self._copied(stamp, wait=True).finish()
                self._saved = stamp
            except Overtaken:
                pass
            except (SnapshotError, OSError, ValueError) as error:
                self._give_up(error)

    def answer(self) -> None:
        """Save, and tell the agent what came of that."""
        self.save_now()
        self._tell()

    def listen(self) -> None:
        """Answer the agent, for as long as this process lives."""
        asked.listen(self._folder.path, self._who.rank, self._stop)

    def _stop(self) -> None:
        """The agent is about to stop this worker: save, and train no further than other ranks may have come."""
        with self._lock:
            self.save_now(patience_s=HALF_STEP_S)
            if self._clean is not None and not self._why and self._more != 0:
                self._more, self._free_at = 1, time.monotonic() + ONE_MORE_S + HOLD_S
                self._whole.wait_for(lambda: not self._more, ONE_MORE_S)
                self.save_now()
            self._tell()
            self._free_at = time.monotonic() + HOLD_S

    def _tell(self) -> None:
        why = self._why or ("" if self._clean is not None or self._saved else "no step has ended yet")
        step = self._saved.step if self._saved else None
        asked.tell(self._folder.path, self._who.rank, step=step, reached=self._reached, why=why)

    # -- copying ---------------------------------------------------------------------------------------------

    def _parts(self) -> tuple[list[tuple[Place, Tensor]], list[tuple[Place, Tensor]]]:
        """What all ranks have alike, and this rank's parts of the rest; in the order of their names."""
        large = dict(sorted(self._state.large().items()))
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(large, is_coordinator=False)
        alike: list[tuple[Place, Tensor]] = []
        own: list[tuple[Place, Tensor]] = []
        for item in planner.create_local_plan().items:
            name, told = item.index.fqn, item.tensor_data
            tensor = planner.resolve_data(item)
            assert told is not None
            assert isinstance(tensor, Tensor)
            place = place_of(name, tensor, told.size, told.chunk.offsets)
            (own if _is_sharded(large[name]) else alike).append((place, tensor))
        return alike, own

    def _copied(self, stamp: Stamp, *, wait: bool) -> Copy:
        """Copy all that is to be copied by this worker.

        Args:
            wait: until the others of this node have copied theirs; what they leave is this worker's. Nor does it spare
                the snapshot that is being written to disk.

        Raises:
            Overtaken: there is no slot for it.
        """
        self._state.await_devices()
        bank = self._bank
        small = bank.kept(stamp.step) if bank is not None else None
        if bank is None or small is None:
            raise SnapshotError(f"nothing was kept of step {stamp.step}")
        alike, own = self._parts()
        self._alike = {place.name: place.bytes for place, _ in alike}
        slot = self._folder.begin(stamp, spares=not wait, insists=self._overtaken >= PATIENT)
        shared, mine = (
            laid_out([place for place, _ in parts], name)
            for parts, name in ((alike, SHARED), (own, OWN.format(self._who.rank)))
        )
        copied: list[Place] = []
        tensors = {place.name: tensor for place, tensor in alike}
        if shared.blocks:
            memory = self._file(slot, SHARED, shared.size)
            claims = Claims(slot.path / CLAIMS, len(shared.blocks))
            try:
                for block in claims.mine(wait=wait):
                    for place in shared.blocks[block]:
                        memory.tensor(place).copy_(tensors[place.name])
                        copied.append(place)
            finally:
                claims.close()
        if mine.places:
            memory = self._file(slot, OWN.format(self._who.rank), mine.size)
            for place, (_, tensor) in zip(mine.places, own, strict=True):
                memory.tensor(place).copy_(tensor)
        index = replace(self._index(stamp), small_bytes=len(small))
        return Copy(self._folder, slot, index, [*copied, *mine.places], bytes(small), self._files)

    def _index(self, stamp: Stamp) -> Index:
        """This worker's part of a snapshot, as far as it is the same in all."""
        assert self._bank is not None
        return Index(
            stamp=stamp,
            rank=self._who.rank,
            world_size=self._who.world_size,
            sharded=self._sharded,
            every=self._least if self._folder.control().fixed else max(self._every, self._least),
            alike=self._alike,
            small=tuple(
                replace(place, file=SMALL.format(self._who.rank)) for place in self._bank.layout.places
            ),
            values=self._bank.layout.size,
        )

    def _file(self, slot: Slot, name: str, size: int, *, begun: bool = True) -> Mapped:
        """A file of a slot; `begun`: it is given to the snapshot that is about to be copied."""
        key = (slot.number, name)
        known = self._files.get(key)
        if known is None or known.size != max(size, 1) or (begun and not known.trimmed()):
            self._files[key] = known = Mapped(slot.path / name, size)
            if begun:
                known.trimmed()
        return known

    def _sizes(self) -> dict[str, int]:
        """The files of each slot that this worker writes to, and how large they are (bytes)."""
        alike, own = self._parts()
        self._alike, self._sharded = {place.name: place.bytes for place, _ in alike}, bool(own)
        return {
            name: laid_out([place for place, _ in parts], name).size
            for parts, name in ((alike, SHARED), (own, OWN.format(self._who.rank)))
            if parts
        }

    def _make_slots(self, sizes: Mapping[str, int]) -> None:
        """Have the memory of all slots, so that no snapshot has to wait for that."""
        try:
            here = self._who.local_world_size
            needs = needed(sizes, here, copies=self._who.world_size > here)
            allowed = self._folder.control().memory
            if allowed is not None and needs > allowed:
                raise SnapshotError(
                    f"they need {needs / 1e6:.0f} MB of memory on this node, {SLOTS} times the state, and may have "
                    f"{allowed / 1e6:.0f} MB: give hetagent a larger --snapshot-memory, or a larger tmpfs as "
                    "--snapshot-dir"
                )
            for number in range(SLOTS):
                for name, size in sizes.items():
                    slot = Slot(self._folder.path / str(number), number, Stamp(0, 0))
                    slot.path.mkdir(mode=0o700, exist_ok=True)
                    self._file(slot, name, size, begun=False)
        except (SnapshotError, OSError) as error:
            self._give_up(error)
            kept = {slot.number for slot in self._folder.slots().values()}
            for number in set(range(SLOTS)) - kept:  # others need the memory
                for name in sizes:
                    (self._folder.path / str(number) / name).unlink(missing_ok=True)
            self._files.clear()


def _is_sharded(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor) and not all(isinstance(each, Replicate) for each in tensor.placements)


def _say(text: str) -> None:
    print(f"hetagent.snapshots: {text}", file=sys.stderr, flush=True)
