"""The snapshots of a worker: taken when one is due and when the round ends, and loaded when it begins."""

import math
import multiprocessing.util
import os
import sys
import threading
import time
from collections.abc import Callable

from hetagent import progress
from hetagent.snapshots import save_request
from hetagent.snapshots.changes import ParameterChanges
from hetagent.snapshots.copying import Copier, WorkerRank
from hetagent.snapshots.devices import is_capturing
from hetagent.snapshots.errors import SnapshotError, SnapshotSuperseded
from hetagent.snapshots.folder import SnapshotFiles, SnapshotId
from hetagent.snapshots.loading import SnapshotLoader, find_newest
from hetagent.snapshots.schedule import SnapshotSchedule
from hetagent.snapshots.state import State

MAX_STEP_WAIT_S = 5.0
"""How long at most a worker that is asked in the middle of an optimizer's step waits for the end of that step, which
devices have to come to as well (seconds)."""

STEPS, POLL_S = 2, 0.005
"""For how many steps' time it waits, between the bounds here; and how often it looks where devices are (seconds)."""

MIN_NEXT_STEP_WAIT_S, HOLD_S = 0.25, 1.0
"""How long at least, and at most, it waits for the step in flight, which others may end and which is then taken; for
the latter it trains no further after its answer (seconds): its agent is about to stop it."""

UNKNOWN_STEPS = 16
"""After so many steps in a row of which it is not known what has changed parameters, a person is told what that means.
Before its first step an optimizer may accumulate gradients."""

SUPERSEDED = SnapshotSuperseded, FileNotFoundError
"""A slot was given to a newer snapshot, or no other one can be had: nothing is wrong."""

DISABLING_ERRORS = (OSError, RuntimeError, ValueError)
"""What ends snapshots, but not training: no room, a device in error, files that make no sense."""


class Snapshots:
    """The snapshots of this worker; made by `hetagent.snapshots.open`. Without a folder there are none."""

    def __init__(
        self, folder: SnapshotFiles | None, state: State, worker: WorkerRank, *, has_agent: bool
    ) -> None:
        self._last_step: int | None = None
        self.is_replaced = False  # by another one of this process
        self._pid = os.getpid() if folder is not None else 0
        if folder is None:
            return
        self._folder = folder
        self._state = state
        self._rank = worker.rank
        self._has_agent = has_agent
        self._lock = threading.RLock()  # held while anything is copied, and around changes of what is copied
        self._step_ended = threading.Condition(self._lock)
        self._changes = ParameterChanges(state)
        self._whole_step: int | None = None  # of which the state is, until parameters change; None: not known
        self._saved: SnapshotId | None = None
        self._disabled_reason = ""  # why nothing can be saved
        self._held_until = 0.0  # training goes on at the end of a step only then (monotonic seconds)
        self._is_held = False
        self._copier = Copier(folder, state, worker)
        self._slots_thread: threading.Thread | None = None  # makes the slots
        self._index_thread: threading.Thread | None = None  # digests what was copied, and writes the index
        self._schedule = SnapshotSchedule(worker.rank, worker.world_size)
        for optimizer in state.optimizers.values():
            optimizer.register_step_pre_hook(lambda *_: self._before_optimizer_step())
        if has_agent:
            self._step_file = save_request.listen(folder.path, self._rank, self._save_and_hold)
        if not has_agent or multiprocessing.parent_process() is not None:  # nobody will ask, perhaps
            # Not atexit, which children of `mp.spawn` leave out.
            multiprocessing.util.Finalize(None, self.save_now, kwargs={"ends": True}, exitpriority=0)

    @property
    def _is_enabled(self) -> bool:
        """Not without a folder, once replaced, or in a child that was forked: the state is its parent's."""
        return self._pid == os.getpid() and not self.is_replaced

    # -- the script's side -----------------------------------------------------------------------------------

    def load(self) -> int | None:
        """Load the newest snapshot that is complete.

        Returns:
            after which step it was taken; None: there is none, and nothing was touched.

        Raises:
            SnapshotError: it is of another model, or cannot be read; the agent then has another one taken.
        """
        if not self._is_enabled:
            return None
        start = self._folder.read_start() if self._has_agent else find_newest(self._folder)
        # Not before: a round may be over before its workers load anything.
        self._folder.discard_newer(SnapshotId(start["round"], start["step"]) if start else None)
        if not start:
            return None
        if self._index_thread is not None:
            self._index_thread.join()
        with self._lock:
            self._whole_step = self._saved = None  # they are of what is loaded over now
        loader = SnapshotLoader(self._folder, self._rank, start, has_agent=self._has_agent)
        loader.load(self._state)
        self._changes.begin_from_snapshot()
        self._last_step = loader.stamp.step
        return self._last_step

    def step(self, step: int) -> None:
        """The state is whole: so many steps are done. Takes a snapshot if one is due, which takes about a copy.

        Args:
            step: counts up, the same on all ranks.

        Raises:
            ValueError: it does not count up.
            SnapshotError: snapshots were opened again since.
        """
        if self.is_replaced:  # they would overwrite each other's files
            raise SnapshotError("snapshots.open() was called again: give all state to one call")
        if type(step) is not int or step < 0 or (self._last_step is not None and step <= self._last_step):
            raise ValueError(
                f"snaps.step({step!r}) after step {self._last_step}: steps must be integers that increase"
            )
        is_first, self._last_step = self._last_step is None, step
        progress.follow(step)
        if not self._is_enabled:
            return
        held = self._folder.find_slots() if is_first and not self._has_agent and self._rank == 0 else ()
        if any(stamp.step > step for stamp in held):
            _print_line("newer steps are here: call load(), or what is saved before them is lost")
        if not self._changes.is_in_step:
            self._copier.devices.synchronize()
        began = time.perf_counter()
        # Not within the lock: they may wait for a device.
        values = self._copier.pickle_values() if not self._disabled_reason else b""
        with self._lock:
            self._whole_step = None  # an interrupt may come before the number is that of what is kept
            if self._has_agent:
                self._run_or_disable(lambda: os.pwrite(self._step_file, b"%d" % step, 0))  # steps count up
            is_known = self._changes.end_step()
            if self._changes.unknown_steps == UNKNOWN_STEPS:
                _print_line(
                    f"rank {self._rank} has called snaps.step({step}), but no optimizer of its state has reported a "
                    "step: if something else changes parameters, steps since the last snapshot may be lost"
                )
            has_slots = self._slots_thread is not None and not self._slots_thread.is_alive()
            self._run_or_disable(self._make_slots)
            is_kept = not self._disabled_reason and not self._run_or_disable(
                lambda: self._copier.copy_small_state(values)
            )
            self._copier.devices.record_step_end()
            self._whole_step = step if is_known and is_kept else None
            control = self._folder.read_control()
            self._step_ended.notify_all()
        # Nor this: the store may be silent, since the host of rank 0 is gone, while the last step is asked for.
        is_due = self._schedule.is_due(
            began,
            control.every_s,
            is_ready=is_kept and has_slots,
            must_wait=self._is_writing() or control.must_wait,
            to_disk=control.to_disk,
        )
        with self._lock:
            if is_due:
                waits = not is_known or self._changes.has_other_writers
                self._run_or_disable(
                    lambda: self._take_snapshot(SnapshotId(control.round, step), waits=waits)
                )
            self._hold_training()

    def _make_slots(self) -> None:
        """Have memory for snapshots made, unless optimizers do not have their tensors yet, as far as can be known."""
        may_be_known = self._changes.has_reports or self._changes.unknown_steps == UNKNOWN_STEPS
        if self._slots_thread is None and (may_be_known or not self._state.optimizers):
            sizes = self._copier.measure_files()
            self._slots_thread = self._start_thread("slots", lambda: self._copier.make_slots(sizes))

    def _before_optimizer_step(self) -> None:
        """An optimizer is about to change parameters: not while they are copied, or devices are behind."""
        if not self._is_enabled:
            return
        # Asked each time: a graph may be captured before the first step, or in one that was reported already.
        is_captured = is_capturing()
        if is_captured:
            self._changes.on_capture()
        if self._changes.is_in_step:
            return
        if not is_captured:
            self._copier.devices.synchronize()
        with self._lock:
            self._changes.before_optimizer_step()

    # -- beside the script -----------------------------------------------------------------------------------

    def _run_or_disable(self, action: Callable[[], object]) -> str:
        """Do something, whose trouble ends snapshots; returns why it was not done, or ''."""
        try:
            action()
        except SUPERSEDED as error:
            return str(error)
        except DISABLING_ERRORS as error:
            if not self._disabled_reason:
                self._disabled_reason = str(error).partition("\n")[0]
                save_request.write_answer(self._folder.path, self._rank, "off", why=self._disabled_reason)
                _print_line(f"rank {self._rank} takes no more snapshots: {self._disabled_reason}")
            return self._disabled_reason
        return ""

    def _start_thread(self, name: str, action: Callable[[], None]) -> threading.Thread:
        """Do something beside the script, which the interpreter's end waits for."""

        def run() -> None:
            self._copier.devices.set_current_device()
            action()

        thread = threading.Thread(target=self._run_or_disable, args=(run,), name=f"hetagent-snapshot-{name}")
        thread.start()
        return thread

    def _is_writing(self) -> bool:
        return self._index_thread is not None and self._index_thread.is_alive()

    def _take_snapshot(self, stamp: SnapshotId, *, waits: bool) -> None:
        """Take a snapshot; `waits`: until it is copied, since nobody knows what changes parameters next."""
        if self._is_writing() or self._saved == stamp:  # it was asked for meanwhile
            return
        copy = self._copier.begin_copy(stamp, now=False, to_disk=self._schedule.to_disk)
        if waits:
            copy.devices.wait_for_copies()

        def is_good() -> bool:  # else devices may have copied what was changed already
            return waits or not (self._changes.has_unreported_change() or self._changes.has_other_writers)

        def finish() -> None:
            if copy.finish(is_good):
                self._saved = stamp

        self._index_thread = self._start_thread("index", finish)

    # -- when the round ends ---------------------------------------------------------------------------------

    def save_now(self, *, ends: bool = False) -> None:
        """Save the last step that was whole.

        Args:
            ends: the worker trains no more, and answers no more either.
        """
        if not self._is_enabled:
            return
        error = self._save_last_step()
        if self._has_agent:
            if ends:
                (self._folder.path / save_request.ASK / str(self._rank)).unlink(missing_ok=True)
            self._write_answer(error)

    def _save_last_step(self, wait_s: float = 0.0) -> str:
        """The same, unless that was done; wait so long for the end of a step that is under way (seconds).

        Returns why it was not, or ''.
        """
        if not self._is_enabled:
            return ""
        with self._lock:
            if self._slots_thread is not None:
                self._slots_thread.join()
            self._step_ended.wait_for(lambda: not self._changes.is_in_step, wait_s)
            return self._run_or_disable(self._save_whole_step)

    def _is_whole(self) -> bool:
        """Whether the state is that after the last step, and devices have it."""
        return (
            self._whole_step is not None
            and not self._changes.is_in_step
            and not self._changes.has_unreported_change()
            and self._copier.devices.has_finished_step()
        )

    def _save_whole_step(self) -> None:
        until = time.monotonic() + MAX_STEP_WAIT_S
        while not self._copier.devices.has_finished_step() and time.monotonic() < until:
            time.sleep(POLL_S)
        if not self._is_whole() or self._whole_step is None:
            return
        if self._index_thread is not None:
            self._index_thread.join()
        saved = self._saved
        if saved is not None and saved.step == self._whole_step and self._copier.has_replicated(saved):
            return
        stamp = SnapshotId(self._folder.read_control().round, self._whole_step)
        if self._copier.begin_copy(stamp, now=True).finish(lambda: not self._changes.has_unreported_change()):
            self._saved = stamp

    def _save_and_hold(self) -> None:
        """The agent is about to stop this worker: save, and train no further than other ranks may have come."""
        self._run_or_disable(self._copier.devices.set_current_device)
        with self._lock:
            steps_s = STEPS * self._schedule.step_s()
            self._held_until = math.inf
            try:
                error = self._save_last_step(min(MAX_STEP_WAIT_S, max(HOLD_S, steps_s)))
                # Other ranks may have ended the step that is in flight here.
                more_s = min(HOLD_S, max(MIN_NEXT_STEP_WAIT_S, steps_s))
                is_good = not self._disabled_reason and self._is_whole()
                if is_good and self._step_ended.wait_for(lambda: self._is_held, more_s):
                    error = self._save_last_step()
                self._write_answer(error)
            finally:
                self._held_until = time.monotonic() + HOLD_S

    def _hold_training(self) -> None:
        """At the end of a step: stand still once this worker is about to be stopped."""
        while (left_s := self._held_until - time.monotonic()) > 0:
            self._is_held = True
            self._step_ended.notify_all()
            self._step_ended.wait(min(left_s, HOLD_S))
        self._is_held = False

    def _write_answer(self, error: str) -> None:
        step = self._saved.step if self._saved else None
        why = self._disabled_reason or error
        save_request.write_answer(self._folder.path, self._rank, "done", step=step, why=why)


def _print_line(text: str) -> None:
    print(f"hetagent.snapshots: {text}", file=sys.stderr, flush=True)
