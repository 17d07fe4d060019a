"""The worker processes of one round: see them exit, end them and everything they started.

Exits are read from pidfds without reaping (`WNOWAIT`): a leader stays a zombie until its round is cleaned up,
so its pid, which is also its session's and its process group's id, cannot be taken by somebody else meanwhile.
"""

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetagent.processes import marked, session_members

KILL_WAIT_S = 10.0
"""How long killed processes may take to disappear before the agent goes on without them (seconds)."""

PAUSE_MIN_S, PAUSE_MAX_S = 0.002, 0.1
"""Pause after the first and after many looks for processes that were killed (seconds)."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How one worker ended.

    Attributes:
        local_rank: which one.
        status: its exit status; negative for a signal, as in `subprocess`.
        seen_at: when the agent saw it (monotonic seconds).
    """

    local_rank: int
    status: int
    seen_at: float

    @property
    def succeeded(self) -> bool:
        """Whether the worker ended with status 0."""
        return self.status == 0

    @property
    def exit_code(self) -> int | None:
        """Its exit status, or None where a signal ended it."""
        return self.status if self.status >= 0 else None

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it, or None."""
        return _signal_name(-self.status) if self.status < 0 else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


class Workers:
    """The processes that a torch process context started for one round.

    Args:
        pcontext: torch's context; each of its processes leads a session of its own.
        selector: where the workers' pidfds are registered, with this object as data.
        incarnation: the `HET_INCARNATION` in the environment of the workers.

    Raises:
        OSError: no file descriptor is left; the selector is as before.
    """

    def __init__(self, pcontext: Any, selector: selectors.BaseSelector, incarnation: str) -> None:
        self._pcontext = pcontext
        self._selector = selector
        self._incarnation = incarnation
        self._sids: frozenset[int] = frozenset(pcontext.pids().values())
        self._running: dict[int, int] = {}
        try:
            for local_rank, pid in pcontext.pids().items():
                fd = os.pidfd_open(pid)
                self._running[fd] = local_rank
                selector.register(fd, selectors.EVENT_READ, self)
        except OSError:
            self._forget_all()
            raise

    @property
    def running(self) -> bool:
        """Whether a worker itself (not something it started) still runs."""
        return bool(self._running)

    @property
    def error_files(self) -> Mapping[int, str]:
        """Where each local rank records its exception."""
        return dict(self._pcontext.error_files)

    @property
    def stderr_files(self) -> Mapping[int, str]:
        """Where each local rank's stderr goes; an empty name where it goes to the console only."""
        return dict(self._pcontext.stderrs)

    def collect(self) -> list[Exit]:
        """Workers that ended since the last call."""
        ended = []
        for fd, local_rank in list(self._running.items()):
            status = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                continue
            exited = status.si_code == os.CLD_EXITED
            number = status.si_status if exited else -status.si_status
            ended.append(Exit(local_rank, number, time.monotonic()))
            self._forget(fd)
        return ended

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)
        os.close(fd)
        del self._running[fd]

    def _forget_all(self) -> None:
        for fd in list(self._running):
            self._forget(fd)

    def first(self, failed: Sequence[Exit]) -> Exit:
        """Of workers that were seen to have failed at the same time, the one that probably did first.

        Whoever was killed, or left without an exception, was gone at once; the others wrote down their
        exceptions in the order in which these came, and only then began to unwind.
        """

        def recorded_at(one: Exit) -> float:
            try:
                return os.stat(self.error_files.get(one.local_rank, "")).st_mtime
            except OSError:
                return 0.0

        return min(failed, key=recorded_at)

    def send(self, signum: int) -> None:
        """Send a signal to the process groups of all workers."""
        for sid in self._sids:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: sudo in a worker
                os.killpg(sid, signum)

    def clear(self) -> list[int]:
        """Kill what is left of the workers and of what they started, reap the workers, close their logs.

        Returns:
            pids that would not die within `KILL_WAIT_S` (stuck in the kernel, or not ours to kill).
        """
        stuck = kill_all_of(self._incarnation, self._sids)
        self._forget_all()
        close_context(self._pcontext)
        return stuck


def close_context(pcontext: Any) -> None:
    """Reap the dead processes of a torch context and close its logs.

    torch kills those that live, and leaves the rest undone at the first that is not ours to kill.
    """
    try:
        pcontext.close(signal.SIGKILL, 0)
    except OSError:
        for handler in pcontext.subprocess_handlers.values():
            handler.proc.poll()
        for tail_log in pcontext._tail_logs:
            tail_log.stop()
        for file in (pcontext.filtered_stdout, pcontext.filtered_stderr):
            if file is not None:
                file.close()


def kill_all_of(incarnation: str, sids: frozenset[int] = frozenset()) -> list[int]:
    """Kill everything in some sessions, and whatever else was started by workers of an agent.

    Like `processes.kill_tree_of`, but made for the way between two rounds: it takes some milliseconds where
    nothing is left. Two looks in a row must find nothing, since a process may fork behind the back of one.

    Returns:
        pids that would not die within `KILL_WAIT_S`.
    """
    until = time.monotonic() + KILL_WAIT_S
    pause_s, quiet = PAUSE_MIN_S, 0
    while True:
        left = {*session_members(sids), *marked(incarnation)}
        quiet = 0 if left else quiet + 1
        if quiet == 2 or time.monotonic() >= until:
            return sorted(left)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if left:
            time.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)
