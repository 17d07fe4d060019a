"""Keeps a standby for each local rank: makes them, replaces those that end, and hands them over."""

import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hetagent.context import AgentContext
from hetagent.errors import UsageError
from hetagent.node.processes import finding as processes
from hetagent.node.processes.signals import signal_name
from hetagent.options.parts import AUTO, Preload
from hetagent.roundhook import RoundHook
from hetagent.standby import memory
from hetagent.standby.imports import SETTLED_S, Imports
from hetagent.standby.process import END_TIMEOUT_S, NotTaken, Standby, fits
from hetagent.torch_compat.flags import PRELOADED
from hetagent.workers.starter import Program

WARM_QUIET_S, COLD_QUIET_S = 1.0, 5.0
"""How long after the start of a round no standby is made: its workers come first (seconds).

Workers that were standbys are up in tenths of a second; others import for seconds.
"""

RETRY_S = 10.0
"""How long after a standby has died the next one is made (seconds)."""

MEMORY_RETRY_S = 60.0
"""How long to wait where memory is short (seconds)."""

HUNG_S = 300.0
"""A standby that has imported for so long is replaced (seconds); torch from a cold file server takes a minute."""

TOGETHER = max(1, len(os.sched_getaffinity(0)) // 8)
"""So many are made at the same time while a round runs, each with half of a CPU."""

ATTEMPTS = 3
"""So many standbys in a row may die before they are ready."""


class Standbys(RoundHook):
    """The standbys of one agent. A thread makes and watches them; the caller's thread takes them.

    Args:
        preload: the modules that they import; `auto` among them stands for those that the script imports, and alone
            also for what torch imports late.
        tell: shows one line to the person at the terminal; called from both threads.
    """

    def __init__(self, preload: Sequence[str], tell: Callable[[str], None]) -> None:
        self._preload = [module for module in preload if module != AUTO] or list(PRELOADED)
        self._imports = Imports() if AUTO in preload else None
        self._left_out: set[str] = set()
        self._tell = tell
        self._lock = threading.Lock()
        self._programs: dict[int, Program] = {}
        self._standbys: dict[int, Standby] = {}
        self._hung_at: dict[int, float] = {}  # when one that still imports is given up
        self._not_before = 0.0  # when the next one may be made (monotonic seconds)
        self._at_once = False  # make all that are missing, without a rest: no worker runs yet
        self._died = 0  # in a row, before they were ready
        self._short = False  # it was said that memory is short
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._keep, name="standbys", daemon=True)
        self._thread.start()

    def predict(self, programs: Sequence[Program]) -> None:
        """Make standbys for the first round, all at once, since no worker runs yet."""
        with self._lock:
            self._programs.update(enumerate(programs))
            self._at_once = True
        self._look()

    def environ(self, local_rank: int) -> Mapping[str, str]:
        """What the worker of a local rank gets, so that it takes notes on what it imports."""
        imports = self._imports
        return imports.environ(local_rank) if imports is not None else {}

    def claim_standby(
        self, local_rank: int, program: Program, stdout: int, stderr: int
    ) -> "subprocess.Popen[bytes] | None":
        """Turn the standby of a local rank into its worker; None if there is none that fits.

        The next standby is made for the same program, once the round runs.
        """
        with self._lock:
            self._programs[local_rank] = program
            standby = self._standbys.pop(local_rank, None)
            process = None
            if standby is not None and not fits(standby.program, program):
                standby.end()
            elif standby is not None:
                try:
                    process = standby.take(program, stdout, stderr)
                except NotTaken as error:
                    self._tell(
                        f"cannot use the standby of local rank {local_rank} ({error}): starting without it"
                    )
                if standby.anew:
                    self._tell(
                        f"the standby of local rank {local_rank} is of no use ({standby.anew}): starting without it"
                    )
            warm = process is not None and standby is not None and not standby.anew
            quiet_s = WARM_QUIET_S if warm else COLD_QUIET_S
            self._not_before = max(self._not_before, time.monotonic() + quiet_s)
        self._look()
        return process

    def close(self) -> None:
        """End all of them, and make no more. Harmless if called again."""
        with self._lock:
            self._preload.clear()
            self._programs.clear()
            pids = [standby.process.pid for standby in self._standbys.values()]
            if pids:  # also what their imports have detached
                processes.kill_tree(tuple, pids, END_TIMEOUT_S)
            for standby in self._standbys.values():
                standby.end()
            self._standbys.clear()
        self._wake.close()
        self._thread.join()
        if self._imports is not None:
            self._imports.close()

    def kept_sessions(self) -> Sequence[int]:
        """The pids of all that were not taken."""
        with self._lock:
            return [standby.process.pid for standby in self._standbys.values()]

    def pids(self) -> Mapping[int, int]:
        """The pids of those that are ready, by local rank."""
        with self._lock:
            return {rank: standby.process.pid for rank, standby in self._standbys.items() if standby.ready}

    # -- the thread ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        with contextlib.suppress(OSError):  # it has plenty to read, or was closed
            self._wake.send(b"\0")

    def _keep(self) -> None:
        with self._woken:
            own = self._woken.fileno()
            while True:
                with self._lock:
                    wait_s = self._make_due()
                    watched = [standby.fileno() for standby in self._standbys.values()]
                # One that is taken in the meantime has closed its descriptor, which need not even be a socket's now.
                with contextlib.suppress(OSError):
                    readable = select.select([*watched, own], [], [], wait_s)[0]
                    if own in readable and not self._woken.recv(4096):
                        return
                with self._lock:
                    self._hear()

    def _make_due(self) -> float | None:
        """Make the standbys that are due; in how many seconds to look again, None: when woken."""
        now = time.monotonic()
        missing = [rank for rank in sorted(self._programs) if rank not in self._standbys]
        outdated = [
            rank
            for rank, standby in sorted(self._standbys.items())
            if standby.ready and standby.seen != self._seen(rank)
        ]
        if not self._preload or not (missing or outdated):
            self._at_once = False
            waits_s = [at - now for at in self._hung_at.values()] + [SETTLED_S] * (self._imports is not None)
            return max(0.0, min(waits_s)) if waits_s else None
        if (shortage := memory.shortage(len(missing))) is not None:
            if not self._short:
                self._tell(f"no standbys for now, so a restart imports everything again: {shortage}")
            self._short = True
            return MEMORY_RETRY_S
        if self._at_once:
            self._at_once = False
            for rank in missing:
                self._make(rank, paced=False)
            return self._make_due()
        if len(self._hung_at) >= TOGETHER:
            return max(0.0, min(self._hung_at.values()) - now)
        if self._not_before > now:
            return self._not_before - now
        if missing:
            self._make(missing[0], paced=True)
        else:
            self._update(outdated[0])
        return self._make_due()

    def _make(self, rank: int, *, paced: bool) -> None:
        try:
            self._standbys[rank] = Standby(self._programs[rank], self._preload, self._seen(rank), paced=paced)
        except OSError as error:
            self._failed(f"cannot be started: {error}", ahead=False)
            return
        self._hung_at[rank] = time.monotonic() + HUNG_S

    def _update(self, rank: int) -> None:
        """Have a standby import what the script has imported since that was made."""
        with contextlib.suppress(OSError):  # it has died, which will be heard
            self._standbys[rank].order((), self._seen(rank), paced=True)
        self._hung_at[rank] = time.monotonic() + HUNG_S

    def _seen(self, rank: int) -> list[str]:
        """The notes on what the script imports, without the modules that standbys leave out and what is in them."""
        notes = self._imports.notes(rank) if self._imports is not None else []
        return [line for line in notes if not any(f"{line}.".startswith(f"{out}.") for out in self._left_out)]

    def _hear(self) -> None:
        now = time.monotonic()
        for rank in [rank for rank in self._hung_at if rank not in self._standbys]:
            del self._hung_at[rank]  # it was taken before it was ready
        for rank, standby in list(self._standbys.items()):
            if select.select([standby], [], [], 0)[0]:
                if standby.hear():
                    self._died = 0
                    self._hung_at.pop(rank, None)
                else:
                    self._lost(rank, standby)
            elif now >= self._hung_at.get(rank, now + 1):
                self._lost(rank, standby)

    def _lost(self, rank: int, standby: Standby) -> None:
        """A standby has ended, or must."""
        del self._standbys[rank]
        importing = self._hung_at.pop(rank, None) is not None
        printed = standby.printed()
        status = standby.end()
        if standby.left_out is not None:
            self._leave_out(*standby.left_out)
        elif importing:
            how = f"was killed by {signal_name(-status)}" if status < 0 else f"exited with code {status}"
            what = ", ".join(self._preload) + (", and what the script imports" if standby.seen else "")
            self._failed(
                f"{how} while it imported {what}{f': {printed}' if printed else ''}", ahead=bool(standby.seen)
            )
        else:
            self._not_before = time.monotonic() + RETRY_S

    def _leave_out(self, module: str, why: str) -> None:
        if module in self._preload:
            self._preload.remove(module)
        if module not in self._left_out:  # not yet known from another standby
            self._left_out.add(module)
            self._tell(f"standbys do without {module}: {why}")

    def _failed(self, how: str, *, ahead: bool) -> None:
        """A standby was of no use before it was ready; `ahead`: it was to import what the script imports."""
        self._died += 1
        self._not_before = time.monotonic() + RETRY_S
        if self._died == ATTEMPTS and ahead and self._imports is not None:
            self._died = 0
            self._imports.close()
            self._imports = None
            self._tell(
                f"standbys no longer import what the script imports: {ATTEMPTS} in a row failed; the last one {how}"
            )
        elif self._died == ATTEMPTS:
            self._preload.clear()
            self._tell(
                f"no more standbys, so a restart imports everything again: {ATTEMPTS} in a row failed; "
                f"the last one {how}"
            )


def standbys_of(context: AgentContext, preload: Preload) -> Standbys | None:
    """The standbys. Where there can be none, a line says why.

    Raises:
        UsageError: the flag asks for them where there can be none.
    """
    problem, launch, command = None, context.options.launch, context.command
    if launch != "gpu":
        problem = f"--launch {launch} starts processes of other kinds"
    elif command is not None and not command.is_python:
        problem = f"{Path(command.entrypoint).name} is not a Python script"
    if not preload.modules:
        return None
    if problem is None:
        return Standbys(preload.modules, context.tell)
    if preload.given is not None:
        raise UsageError(f"--preload {preload.given} makes no sense here, since {problem}: leave it out")
    context.tell(f"no standby processes, so restarts import everything again: {problem}")
    return None
