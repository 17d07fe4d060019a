"""Takes snapshots: when one is due, when the round ends, and what belongs to every step."""

import atexit
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from statistics import median, median_low

from hetagent.snapshots import asked
from hetagent.snapshots.copying import Copier, Copy, Who
from hetagent.snapshots.errors import Overtaken
from hetagent.snapshots.folder import Folder, Stamp
from hetagent.snapshots.state import State

WORTH = 0.005
"""Which part of the time snapshots may take, with what belongs to every step; of the latter at most half of it is
counted, or too few would be taken."""

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

STEPS_BEHIND, LOOKS_S = 2, 0.005
"""How many steps' time devices are given to come to what they were told, before they are taken to hang; and how often
to look whether they have (seconds)."""

ONE_MORE_S, HOLD_S = 0.25, 1.0
"""How long it waits for the step in flight, which others may end and which is then taken, and for how long it trains no
further after its answer (seconds): its agent is about to stop it."""

LAST_S = 10.0
"""For how long the interpreter's end waits for threads that digest a snapshot, or make slots (seconds)."""

SILENT_STEPS = 3
"""After so many steps in a row that no optimizer has told of, a person is told what that means."""


TROUBLE = (OSError, RuntimeError, ValueError)
"""What ends snapshots, but not training: no room, a device in error, files that make no sense."""


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
        self._late = ""  # why nothing could be saved the last time
        self._more: int | None = None  # how many steps training may still end; None: any number
        self._free_at = 0.0  # until when it stands still once that is none (monotonic seconds)
        self._saved: Stamp | None = None
        self._why = ""  # why nothing can be saved
        self._copier = Copier(folder, state, who)
        self._ahead: threading.Thread | None = None  # makes the slots
        self._closing: threading.Thread | None = None  # digests what was copied, and writes the index
        self._due = 0  # the step that it closes
        self._every = self._least = 1  # by what they cost, and by how fast they become safe
        self._overtaken = 0  # how many snapshots in a row found no slot
        self._costs_s: deque[float] = deque(maxlen=COSTS_MEASURED)
        self._copy_s = 0.0
        self._steps_s: deque[float] = deque(maxlen=STEPS_MEASURED)
        self._own_s: deque[float] = deque(maxlen=STEPS_MEASURED)  # what steps without a snapshot took here
        self._ended_at = 0.0  # the last step (monotonic seconds)
        self._state.before_changes(self._changes)
        atexit.register(self._let_threads_end)

    # -- the script's side -----------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        """The state is whole after a step; takes a snapshot if one is due."""
        if os.getpid() != self._pid:
            return
        self._copier.devices.keep_up()
        began = time.perf_counter()
        if self._ended_at:
            self._steps_s.append(began - self._ended_at)
        self._state.learn()
        # Not within the lock: they may wait for a device.
        values = self._copier.values() if not self._why else b""
        is_due = False
        with self._lock:
            self._reached = step
            sizes: Mapping[str, int] = {}
            if self._ahead is None:
                sizes = self._copier.prepare()
            self._clean = step if self._is_told(step) and self._is_kept(step, values) else None
            self._changed = False
            if self._clean is not None:
                self._copier.devices.ended(step)
            else:
                self._copier.devices.forget()
            if self._ahead is None:
                self._ahead = threading.Thread(
                    target=self._make_slots, args=(sizes,), name="hetagent-slots", daemon=True
                )
                self._ahead.start()
            elif self._clean is not None and step % self._period() == 0 and not self._ahead.is_alive():
                is_due = True
                self._take_due(step)
            if self._more:
                self._more -= 1
            self._whole.notify_all()
            self._stand_still()
        self._ended_at = time.perf_counter()
        if not is_due:
            self._own_s.append(self._ended_at - began)

    def begins_at(self, step: int) -> None:
        """The state of a step was loaded."""
        self._reached = step

    def _changes(self) -> None:
        """An optimizer is about to change parameters: not while they are copied."""
        if not self._changed:
            with self._lock:
                self._stand_still()
                self._copier.devices.changing()
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

    def _is_kept(self, step: int, values: bytes) -> bool:
        """Keep what belongs to every step; False: there is no room for that."""
        if self._why:
            return False
        try:
            self._copier.keep(step, values)
        except TROUBLE as error:
            self._give_up(error)
            return False
        return True

    def _make_slots(self, sizes: Mapping[str, int]) -> None:
        try:
            self._copier.devices.enter()
            if not self._copier.make_slots(sizes):
                _say(
                    f"rank {self._who.rank}: CUDA does not pin the memory of snapshots, so copying to it takes longer"
                )
        except TROUBLE as error:
            self._give_up(error)

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
            close = self._copied(step, now=False)
        except Overtaken:
            self._overtaken += 1
            pause_s = self._period() * median(self._steps_s or [0.0])
            if self._overtaken % PATIENT == 0 and pause_s < LONGEST_S:
                # Nodes that leave out different ones would have none in common; all take the largest pause.
                self._least = 2 * self._period()
            return
        except TROUBLE as error:
            self._give_up(error)
            return
        self._overtaken = 0
        self._copy_s, self._due = time.perf_counter() - began, step
        self._closing = threading.Thread(target=self._close_due, args=(close,), daemon=True)
        self._closing.start()

    def _close_due(self, close: Copy) -> None:
        try:
            self._copier.devices.enter()
            close.await_turn()
            began = time.perf_counter()
            close.finish()
        except Overtaken:
            return
        except TROUBLE as error:
            self._give_up(error)
            return
        self._saved = close.index.stamp
        self._costs_s.append(self._copy_s + time.perf_counter() - began)
        if len(self._steps_s) > 1:
            own_s = median(list(self._own_s) or [0.0])
            wanted = steps_apart(median_low(self._costs_s), median(list(self._steps_s)), own_s)
            self._every = min(wanted, self._every * GROWS)  # the first ones take longer

    def _copied(self, step: int, *, now: bool, again: bool = False) -> Copy:
        control = self._folder.control()
        every = self._least if control.fixed else max(self._every, self._least)
        insists = self._overtaken >= PATIENT
        stamp = Stamp(step, control.round)
        return self._copier.copied(stamp, every=every, now=now, insists=insists, again=again)

    def _give_up(self, error: Exception) -> None:
        if not self._why:
            self._why = str(error).partition("\n")[0]
            asked.give_up(self._folder.path, self._who.rank, self._why)
            _say(f"rank {self._who.rank} takes no more snapshots: {self._why}")

    def _let_threads_end(self) -> None:
        """The interpreter ends: what is under way would be lost, and a thread within torch take the process down."""
        if os.getpid() == self._pid:
            for thread in filter(None, (self._ahead, self._closing)):
                thread.join(LAST_S)

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
            self._late = ""
            try:
                while not self._is_saved(self._whole_step(patience_s)):
                    pass
            except Overtaken as error:
                self._late = str(error)
            except TROUBLE as error:
                self._give_up(error)

    def _whole_step(self, patience_s: float) -> int | None:
        """The last step that is whole here.

        Args:
            patience_s: how long to wait for the end of one that is under way (seconds).
        """
        if not self._copier.devices:
            if self._clean is None and self._changed and patience_s:
                self._whole.wait(patience_s)
            return self._clean
        behind_s = min(HALF_STEP_S, max(ONE_MORE_S, STEPS_BEHIND * median(self._steps_s or [HALF_STEP_S])))
        began = time.monotonic()
        if self._changed and patience_s:
            self._whole.wait_for(lambda: not self._changed, behind_s)
        while (has := self._copier.devices.has()) != self._copier.devices.newest:
            if time.monotonic() > began + (behind_s if has is not None else HALF_STEP_S):
                break  # they hang, and still have the step before, or nothing that is whole
            time.sleep(LOOKS_S)
        return has

    def _is_saved(self, step: int | None) -> bool:
        """Save a step; False: devices have gone on meanwhile."""
        saved = self._saved
        if step is None or self._why or (saved is not None and saved.step > step):
            return True
        again = saved is not None and saved.step == step
        if saved is not None and again and self._copier.is_whole(saved):
            return True
        if self._closing is not None and self._closing.is_alive() and self._due <= step:
            self._closing.join()
            return False
        copy = self._copied(step, now=True, again=again)
        copy.wait()
        if self._copier.devices and not self._copier.devices.still(step):
            return False
        copy.finish()
        self._saved = copy.index.stamp
        return True

    def answer(self, *, ends: bool = False) -> None:
        """Save, and tell the agent what came of that; `ends`: for the last time."""
        self.save_now()
        if ends:
            asked.hang_up(self._folder.path, self._who.rank)
        self._tell()

    def listen(self) -> None:
        """Answer the agent, for as long as this process lives."""
        asked.listen(self._folder.path, self._who.rank, self._stop)

    def _stop(self) -> None:
        """The agent is about to stop this worker: save, and train no further than other ranks may have come."""
        devices = self._copier.devices
        devices.enter()
        with self._lock:
            self.save_now(patience_s=HALF_STEP_S)
            goes_on = self._clean is not None and not self._why and self._more != 0
            if goes_on and devices.has() == devices.newest:
                self._more, self._free_at = 1, time.monotonic() + ONE_MORE_S + HOLD_S
                self._whole.wait_for(lambda: not self._more, ONE_MORE_S)
                self.save_now()
            self._tell()
            self._free_at = time.monotonic() + HOLD_S

    def _tell(self) -> None:
        why = self._why or self._late
        if not why and self._clean is None and self._saved is None:
            why = "no step has ended yet"
        step = self._saved.step if self._saved else None
        asked.tell(self._folder.path, self._who.rank, step=step, reached=self._reached, why=why)


def steps_apart(cost_s: float, step_s: float, own_s: float) -> int:
    """How many steps apart snapshots are to be, so that they take `WORTH` of the time: a power of two. Pure.

    Args:
        cost_s: what one costs (seconds).
        step_s: how long a step is (seconds).
        own_s: what a step without a snapshot costs (seconds).
    """
    worth_s = WORTH * max(step_s, 1e-6)
    apart = cost_s / (worth_s - min(own_s, worth_s / 2))
    return 1 << math.ceil(math.log2(max(apart, 1.0)))


def _say(text: str) -> None:
    print(f"hetagent.snapshots: {text}", file=sys.stderr, flush=True)
