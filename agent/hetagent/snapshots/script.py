"""The snapshots of a worker: taken when one is due and when the round ends, and loaded when it begins."""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable

from hetagent import progress
from hetagent.snapshots import save_request
from hetagent.snapshots.copying import Copier, WorkerRank
from hetagent.snapshots.devices import is_capturing
from hetagent.snapshots.errors import SnapshotSuperseded
from hetagent.snapshots.folder import SnapshotFiles, SnapshotId
from hetagent.snapshots.loading import Loader, find_newest
from hetagent.snapshots.schedule import Schedule
from hetagent.snapshots.state import State

HALF_STEP_S = 5.0
"""How long at most a worker that is asked in the middle of an optimizer's step waits for the end of that step, which
devices have to come to as well (seconds)."""

STEPS, LOOK_S = 2, 0.005
"""For how many steps' time it waits, between the bounds here; and how often it looks where devices are (seconds)."""

ONE_MORE_S, HOLD_S = 0.25, 1.0
"""How long at least, and at most, it waits for the step in flight, which others may end and which is then taken; for
the latter it trains no further after its answer (seconds): its agent is about to stop it."""

LAST_S = 10.0
"""For how long the interpreter's end waits for threads that digest a snapshot, or make slots (seconds)."""

SILENT_STEPS = 16
"""After so many steps in a row of which it is not known what has changed parameters, a person is told what that means.
Before its first step an optimizer may accumulate gradients."""

OVERTAKEN = SnapshotSuperseded, FileNotFoundError
"""A slot was given to a newer snapshot, or no other one can be had: nothing is wrong."""

TROUBLE = (OSError, RuntimeError, ValueError)
"""What ends snapshots, but not training: no room, a device in error, files that make no sense."""


class Snapshots:
    """The snapshots of this worker; made by `hetagent.snapshots.open`. Without a folder there are none."""

    def __init__(
        self, folder: SnapshotFiles | None, state: State, who: WorkerRank, *, has_agent: bool
    ) -> None:
        self._last: int | None = None  # step
        self._whole: int | None = None  # after which step the state is, unless `_changed`; None: not known
        self._keeps = folder is not None
        if folder is None:
            return
        self._folder = folder
        self._state = state
        self._rank = who.rank
        self._has_agent = has_agent
        self._lock = threading.RLock()  # held while anything is copied, and around changes of what is copied
        self._ended = threading.Condition(self._lock)  # a step
        self._changed = False  # an optimizer has told of a step since the last one
        self._told = False  # or ever
        self._versions = 0  # of parameters, after the last step
        self._hidden = False  # something else than an optimizer was found to have changed them
        self._captured = False  # an optimizer's step, by a CUDA graph: from then on it tells nobody
        self._silent = 0  # of how many steps in a row it is not known what has changed parameters
        self._more: int | None = None  # how many steps training may still end; None: any number
        self._free_at = 0.0  # until when it stands still once that is none (monotonic seconds)
        self._saved: SnapshotId | None = None
        self._why = ""  # why nothing can be saved
        self._copier = Copier(folder, state, who)
        self._ahead: threading.Thread | None = None  # makes the slots
        self._closing: threading.Thread | None = None  # digests what was copied, and writes the index
        self._due: SnapshotId | None = None  # the snapshot that was due last, which it closes
        self._schedule = Schedule(who.rank, who.world_size)
        state.on_optimizer_step(self._changes)
        os.register_at_fork(after_in_child=self._keep_nothing)
        atexit.register(self._let_threads_end)
        if has_agent:
            self._reached = save_request.listen(folder.path, self._rank, self._stop)
        else:
            atexit.register(self._save)  # nobody will ask

    # -- the script's side -----------------------------------------------------------------------------------

    def load(self) -> int | None:
        """Load the newest snapshot that is complete.

        Returns:
            after which step it was taken; None: there is none, and nothing was touched.

        Raises:
            SnapshotError: it is of another model, or cannot be read; the agent then has another one taken.
        """
        if not self._keeps:
            return None
        start = self._folder.read_start() if self._has_agent else find_newest(self._folder)
        # Not before: a round may be over before its workers load anything.
        self._folder.forget_newer(SnapshotId(start["round"], start["step"]) if start else None)
        if not start:
            return None
        loader = Loader(self._folder, self._rank, start, has_agent=self._has_agent)
        loader.load(self._state)
        # An optimizer has made it; if nodes keep it in memory, it is copied before others.
        self._due = loader.stamp if loader.stamp in self._folder.read_control().retained else None
        self._told, self._versions = bool(self._state.optimizers), self._state.version_sum()
        self._last = loader.stamp.step
        return self._last

    def step(self, step: int) -> None:
        """The state is whole: so many steps are done. Takes a snapshot if one is due, which takes about a copy.

        Args:
            step: counts up, the same on all ranks.

        Raises:
            ValueError: it does not count up.
        """
        if type(step) is not int or step < 0 or (self._last is not None and step <= self._last):
            raise ValueError(
                f"snaps.step({step!r}) after step {self._last}: steps are whole numbers that count up"
            )
        self._last = step
        progress.follow(step)
        if not self._keeps:
            return
        if self._told and not self._changed:
            self._copier.devices.wait()
        began = time.perf_counter()
        # Not within the lock: they may wait for a device.
        values = self._copier.values() if not self._why else b""
        with self._lock:
            self._whole = None  # an interrupt may come before the number is that of what is kept
            if self._has_agent:
                self._tries(lambda: os.pwrite(self._reached, b"%d" % step, 0))  # steps count up
            is_known = self._knows_changes(step)
            has_slots = self._ahead is not None and not self._ahead.is_alive()
            if self._ahead is None and (
                self._told or self._silent == SILENT_STEPS or not self._state.optimizers
            ):
                self._tries(self._make_slots)
            is_kept = not self._why and not self._tries(lambda: self._copier.keep_small_state(values))
            self._changed = False
            self._copier.devices.end_step()
            self._whole = step if is_known and is_kept else None
            control = self._folder.read_control()
            if self._more:
                self._more -= 1
            self._ended.notify_all()
        # Nor this: the store may be silent, since the host of rank 0 is gone, while the last step is asked for.
        is_due = self._schedule.is_due(
            began,
            control.every_s,
            is_ready=is_kept and has_slots,
            waits=lambda: self._is_closing() or self._is_unsafe(control.safe),
            to_disk=control.to_disk,
        )
        with self._lock:
            if is_due:
                self._tries(
                    lambda: self._take_due(
                        SnapshotId(control.round, step), waits=not is_known or self._hidden
                    )
                )
            self._stand_still()

    def _make_slots(self) -> None:
        sizes = self._copier.prepare()
        self._ahead = self._run("slots", lambda: self._copier.make_slots(sizes))

    def _changes(self) -> None:
        """An optimizer is about to change parameters: not while they are copied, or devices are behind."""
        if not self._keeps:
            return
        # Asked each time: a graph may be captured before the first step, or in one that was told already.
        captures = is_capturing()
        self._captured |= captures
        if self._changed:
            return
        if not captures:
            self._copier.devices.wait()
        with self._lock:
            self._stand_still()
            self._hidden |= self._is_touched()
            self._changed = True

    def _stand_still(self) -> None:
        while self._more == 0:
            left_s = self._free_at - time.monotonic()
            if left_s <= 0:
                self._more = None
            else:
                self._ended.wait(left_s)

    def _knows_changes(self, step: int) -> bool:
        """Whether all that changes parameters tells: optimizers do, unless they are in a CUDA graph.

        Steps may do without them: gradients are accumulated, or a GradScaler leaves a step out.
        """
        before, self._versions = self._versions, self._state.version_sum()
        self._told = self._told or self._changed
        is_same = self._changed or self._versions == before
        self._hidden |= bool(before) and not is_same
        is_known = is_same and self._told and not self._captured
        self._silent = 0 if is_known else self._silent + 1
        if self._silent == SILENT_STEPS:
            _say(
                f"rank {self._rank} has called snaps.step({step}), but no optimizer of its state has told of a "
                "step: if something else changes parameters, steps since the last snapshot may be lost"
            )
        return is_known

    def _is_touched(self) -> bool:
        """Whether something has changed parameters since the last step, and no optimizer has told."""
        # In this order, since an optimizer may tell meanwhile.
        return self._state.version_sum() != self._versions and not self._changed

    # -- beside the script -----------------------------------------------------------------------------------

    def _tries(self, what: Callable[[], object]) -> str:
        """Do something, whose trouble ends snapshots; returns why it was not done, or ''."""
        try:
            what()
        except OVERTAKEN as error:
            return str(error)
        except TROUBLE as error:
            if not self._why:
                self._why = str(error).partition("\n")[0]
                save_request.write_answer(self._folder.path, self._rank, "off", why=self._why)
                _say(f"rank {self._rank} takes no more snapshots: {self._why}")
            return self._why
        return ""

    def _run(self, name: str, what: Callable[[], None]) -> threading.Thread:
        """Do something beside the script."""

        def run() -> None:
            self._copier.devices.set_current_device()
            what()

        thread = threading.Thread(
            target=self._tries, args=(run,), name=f"hetagent-snapshot-{name}", daemon=True
        )
        thread.start()
        return thread

    def _is_closing(self) -> bool:
        return self._closing is not None and self._closing.is_alive()

    def _is_unsafe(self, safe: SnapshotId | None) -> bool:
        """Whether others have no copies yet of the last snapshot that was due, or of the one that was loaded."""
        if self._due is None or not self._has_agent or not self._copier.sharded:
            return False
        return safe is None or safe < self._due

    def _take_due(self, stamp: SnapshotId, *, waits: bool) -> None:
        """Take a snapshot; `waits`: until it is copied, since nobody knows what changes parameters next."""
        if self._is_closing() or self._saved == stamp:  # it was asked for meanwhile
            return
        copy = self._copier.begin_copy(stamp, now=False, to_disk=self._schedule.to_disk)
        if waits:
            copy.devices.wait_for_copies()
        self._due = stamp

        def finish() -> None:
            # Else devices may have copied what was changed already.
            if copy.finish(lambda: waits or not (self._is_touched() or self._hidden or self._captured)):
                self._saved = stamp

        self._closing = self._run("digest", finish)

    def _let_threads_end(self) -> None:
        """The interpreter ends: what is under way would be lost, and a thread within torch take the process down."""
        for thread in filter(None, (self._ahead, self._closing)):
            thread.join(LAST_S)

    def _keep_nothing(self) -> None:
        """This is a child that was forked, to load data perhaps: the state is its parent's."""
        self._keeps = False

    # -- when the round ends ---------------------------------------------------------------------------------

    def save_now(self, *, ends: bool = False) -> None:
        """Save the last step that was whole.

        Args:
            ends: the worker trains no more, and answers no more either.
        """
        if not self._keeps:
            return
        missed = self._save()
        if self._has_agent:
            if ends:
                save_request.stop_listening(self._folder.path, self._rank)
            self._answer(missed)

    def _save(self, wait_s: float = 0.0) -> str:
        """The same, unless that was done; wait so long for the end of a step that is under way (seconds).

        Returns why it was not, or ''.
        """
        if not self._keeps:
            return ""
        with self._lock:
            if self._ahead is not None:
                self._ahead.join()
            self._ended.wait_for(lambda: not self._changed, wait_s)
            return self._tries(self._save_whole)

    def _is_whole(self) -> bool:
        """Whether the state is that after the last step, and devices have it."""
        is_known = self._whole is not None and not self._changed and not self._is_touched()
        return is_known and self._copier.devices.has_ended()

    def _save_whole(self) -> None:
        until = time.monotonic() + HALF_STEP_S
        while not self._copier.devices.has_ended() and time.monotonic() < until:
            time.sleep(LOOK_S)
        if not self._is_whole() or self._whole is None:
            return
        if self._closing is not None:
            self._closing.join()
        saved = self._saved
        if saved is not None and saved.step == self._whole and self._copier.has_replicated(saved):
            return
        stamp = SnapshotId(self._folder.read_control().round, self._whole)
        if self._copier.begin_copy(stamp, now=True).finish(lambda: not self._is_touched()):
            self._saved = stamp

    def _stop(self) -> None:
        """The agent is about to stop this worker: save, and train no further than other ranks may have come."""
        self._copier.devices.set_current_device()
        with self._lock:
            steps_s = STEPS * self._schedule.step_s()
            missed = self._save(min(HALF_STEP_S, max(HOLD_S, steps_s)))
            if not self._why and self._more != 0 and self._is_whole():
                more_s = min(HOLD_S, max(ONE_MORE_S, steps_s))
                self._more, self._free_at = 1, time.monotonic() + more_s + HOLD_S
                self._ended.wait_for(lambda: not self._more, more_s)
                missed = self._save()
            self._answer(missed)
            self._free_at = time.monotonic() + HOLD_S

    def _answer(self, missed: str) -> None:
        step = self._saved.step if self._saved else None
        save_request.write_answer(self._folder.path, self._rank, "done", step=step, why=self._why or missed)


def _say(text: str) -> None:
    print(f"hetagent.snapshots: {text}", file=sys.stderr, flush=True)
