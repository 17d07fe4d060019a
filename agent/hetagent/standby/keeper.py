"""Keeps a standby for each local rank: makes them, replaces those that end, and hands them over.

All in the run loop's thread, which looks every second.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hetagent.context import AgentContext
from hetagent.node import scratch
from hetagent.node.console import WarnOnce
from hetagent.node.memory import read_free_memory
from hetagent.node.processes import proctree as processes
from hetagent.node.self_pipe import wait_readable
from hetagent.options.values import AUTO
from hetagent.roundhook import RoundHook
from hetagent.standby.process import END_TIMEOUT_S, IMPORT_AHEAD, Standby, differs_by_round_only
from hetagent.torch_compat.flags import AUTO_PRELOAD
from hetagent.worker.runner import BEFORE
from hetagent.workers.starter import WorkerProgram

PREFIX = "hetagent_imports_"

SETTLED_S = 5.0
"""A worker that has imported nothing for so long has probably imported everything (seconds)."""

QUIET_S = 2.0
"""How long after the start of a round no standby is made: its workers come first (seconds)."""

LOOK_S = 1.0
"""How often to look what they say, and whether one is due (seconds)."""

RETRY_S = 10.0
"""How long after a standby has died the next one is made (seconds)."""

ATTEMPTS = 3
"""So many standbys in a row may die before they are ready."""

NEEDED_BYTES = 1 << 30
"""Free memory for each standby to be made; with torch it takes 290 MB (CPU build), more with CUDA."""


class StandbyPool(RoundHook):
    """The standbys of one agent."""

    def __init__(self, preload: Sequence[str], log: Callable[[str], None]) -> None:
        self._preload = [module for module in preload if module != AUTO] or list(AUTO_PRELOAD)
        self._auto = AUTO in preload
        scratch.remove_stale_folders(PREFIX)
        self._notes = scratch.ScratchFolder(PREFIX)  # where workers note their imports
        self._left_out: set[str] = set()
        self._log = log
        self._programs: dict[int, WorkerProgram] = {}
        self._standbys: dict[int, Standby] = {}
        self._not_before = 0.0  # when the next one may be made (monotonic seconds)
        self._look_at = 0.0
        self._died = 0  # in a row, before they were ready
        self._log_once = WarnOnce(log)

    def start_predicted(self, programs: Sequence[WorkerProgram]) -> None:
        """Make standbys for the first round."""
        self._programs.update(enumerate(programs))
        self._make_due()

    def worker_env(self, local_rank: int) -> Mapping[str, str]:
        """What the worker of a local rank gets, so that it notes what it imports."""
        return {BEFORE: f"{IMPORT_AHEAD}{os.pathsep}{self._notes_file(local_rank)}"} if self._auto else {}

    def claim_standby(
        self, local_rank: int, program: WorkerProgram, stdout: int, stderr: int
    ) -> "subprocess.Popen[bytes] | None":
        """Turn the standby of a local rank into its worker; None if there is none that fits.

        The next standby is made for the same program, once the round runs.
        """
        self._programs[local_rank] = program
        self._not_before = max(self._not_before, time.monotonic() + QUIET_S)
        standby = self._standbys.pop(local_rank, None)
        if standby is not None and differs_by_round_only(standby.program, program):
            with contextlib.suppress(OSError):  # it has died
                return standby.become_worker(program, stdout, stderr)
        elif standby is not None:
            standby.kill()
        return None

    def close(self) -> None:
        """End all of them, and make no more. Harmless if called again."""
        if pids := self.persistent_sessions():  # also what their imports have detached
            processes.kill_tree(tuple, pids, END_TIMEOUT_S)
        for standby in self._standbys.values():
            standby.kill()
        self._standbys.clear()
        self._notes.close()

    def persistent_sessions(self) -> Sequence[int]:
        """The pids of all that were not taken; from any thread."""
        return [standby.process.pid for standby in list(self._standbys.values())]

    # -- in the run loop ---------------------------------------------------------------------------------------

    def due_at(self) -> float | None:
        return self._look_at

    def on_wakeup(self) -> None:
        """Take in what standbys say, replace those that have ended or are out of date, and make those that are due."""
        self._look_at = time.monotonic() + LOOK_S
        for rank, standby in list(self._standbys.items()):
            self._check(rank, standby)
        self._make_due()

    def _make_due(self) -> None:
        """Make the standbys that are due."""
        missing = [rank for rank in sorted(self._programs) if rank not in self._standbys]
        if not missing or self._died >= ATTEMPTS:
            return
        preload = [module for module in self._preload if module not in self._left_out]
        try:
            if read_free_memory() < (needed := len(missing) * NEEDED_BYTES):
                self._log_once(
                    "no standbys for now, so a restart imports everything again: "
                    f"less than {needed / 2**30:.0f} GiB of memory are free"
                )
                return
            for rank in missing:
                is_settled = self._notes_written_at(rank) + SETTLED_S <= time.time()
                if is_settled and self._not_before <= time.monotonic():
                    self._standbys[rank] = Standby(
                        self._programs[rank], preload, self._notes_file(rank), [*self._left_out]
                    )
        except OSError as error:  # this process has no descriptors left, for instance
            self._on_failure(f"cannot be started: {error}")

    def _check(self, rank: int, standby: Standby) -> None:
        """See what has become of a standby."""
        if wait_readable([standby], 0.0):
            if standby.read_messages():
                self._died = 0
            else:
                self._on_end(rank, standby)
        elif standby.ready and standby.started_at < self._notes_written_at(rank) <= time.time() - SETTLED_S:
            del self._standbys[rank]  # the script has imported more since: make another one
            standby.kill()

    def _on_end(self, rank: int, standby: Standby) -> None:
        """A standby has ended, or must."""
        del self._standbys[rank]
        status = standby.kill()
        if standby.left_out is not None:
            module, why = standby.left_out
            if module not in self._left_out:  # not yet known from another standby
                self._left_out.add(module)
                self._log(f"standbys do without {module}: {why}")
        elif not standby.ready:
            self._on_failure(f"ended with status {status} as it imported")
        else:
            self._not_before = time.monotonic() + RETRY_S

    def _on_failure(self, how: str) -> None:
        """A standby failed before it was ready."""
        self._died += 1
        self._not_before = time.monotonic() + RETRY_S
        if self._died == ATTEMPTS:
            self._log(
                f"no more standbys, so a restart imports everything again: {ATTEMPTS} in a row failed; the last one "
                f"{how}; --preload torch imports nothing else ahead"
            )

    def _notes_file(self, rank: int) -> str:
        """Where the worker of a local rank notes its imports."""
        return str(self._notes.path / str(rank))

    def _notes_written_at(self, rank: int) -> float:
        """When that worker last noted something (seconds since the epoch); 0 where nothing is noted."""
        with contextlib.suppress(OSError):  # nothing yet, or somebody has cleaned up TMPDIR
            return os.stat(self._notes_file(rank)).st_mtime
        return 0.0


def make_standbys(context: AgentContext) -> StandbyPool | None:
    """The standbys; where there can be none, the reason is logged."""
    launch, command, preload = context.options.launch, context.command, context.options.preload
    if not preload:
        return None
    if launch != "gpu":
        problem = f"--launch {launch} starts processes of other kinds"
    elif command is not None and not command.is_python:
        problem = f"{Path(command.entrypoint).name} is not a Python script"
    else:
        return StandbyPool(preload, context.tell)
    context.tell(f"no standby processes, so restarts import everything again: {problem}")
    return None
