"""The worker processes of one round: notices their exits, signals them, and ends everything they started.

Exits are read without reaping (`WNOWAIT`): a worker stays a zombie until its round is cleaned up, so that its pid,
which is also the id of its session and process group, cannot be reused in the meantime. The caller learns from SIGCHLD
when to look (`hetagent.node.processes.signals.noted`).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from hetagent.node.processes import proctree as processes
from hetagent.workers.failures import WorkerRemains, raised_at, script_ended_at, tail
from hetagent.workers.output import STDERR, STDOUT
from hetagent.workers.starter import Exit, Started
from hetrdzv.protocol.bounds import MAX_SECONDS

PATIENCE_S = 1.0
"""How long to wait for the console before the end of workers is reported (seconds)."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """After clearing away a round: pids that would not die, and whether all output has reached the console."""

    stuck: list[int]
    shown: bool


class Workers:
    """The processes that a starter started for one round, marked with this `HET_INCARNATION`.

    Those of `kept_sessions` are for later rounds. With `spawns` each of them starts this node's workers itself.
    """

    def __init__(
        self,
        started: Started,
        incarnation: str,
        kept_sessions: Callable[[], Collection[int]] = tuple,
        *,
        spawns: bool = False,
    ) -> None:
        self._kept_sessions = kept_sessions
        self._spawns = spawns
        self._owed: dict[int, int] = {}  # signals that a worker's helpers get once it has ended, by its pid
        self.started = started
        self._incarnation = incarnation
        self._sids = frozenset(started.pids.values())
        self._running = dict(started.pids)
        self._exits: dict[int, Exit] = {}

    @property
    def pids(self) -> Mapping[int, int]:
        """The workers' pids by local rank, whether they run or not."""
        return self.started.pids

    @property
    def alive(self) -> Mapping[int, int]:
        """The pids of those that were running when last looked at, by local rank."""
        return self._running

    @property
    def running(self) -> bool:
        """Whether a worker itself (not something it started) is still running."""
        return bool(self._running)

    @property
    def exits(self) -> Sequence[Exit]:
        """How the workers that have ended did so, by local rank."""
        return [self._exits[rank] for rank in sorted(self._exits)]

    def remains(self, local_rank: int) -> WorkerRemains:
        """What a local rank has left behind."""
        captured = self.started.captured.get(local_rank)
        stderr = captured.stderr.read() if captured is not None else b""
        stderr_file = self.started.stderr_files.get(local_rank, "")
        return WorkerRemains(
            error_file=self.started.error_files.get(local_rank, ""),
            stderr=stderr or tail(stderr_file),
            stderr_file=stderr_file,
        )

    def output(self, local_rank: int) -> tuple[bytes, bytes] | None:
        """The end of what a local rank has written, wherever that goes; None: nobody keeps it.

        That is both streams in one and nothing, or where one goes into a file, stdout and stderr.
        """
        captured = self.started.captured.get(local_rank)
        if captured is None:
            return None
        files = (self.started.stdout_files.get(local_rank, ""), self.started.stderr_files.get(local_rank, ""))
        if not captured.writers and not any(map(os.path.exists, filter(None, files))):
            return None
        both = captured.both.read()
        if STDERR not in captured.writers:
            return both or tail(files[0]), tail(files[1])
        return (both, b"") if STDOUT in captured.writers else (tail(files[0]), both)

    def catch_up(self) -> None:
        """Let the console show what the workers have written before what is logged next, unless it is slow."""
        self.started.catch_up(time.monotonic() + PATIENCE_S)

    def collect(self) -> list[Exit]:
        """The workers that have ended since the last call."""
        ended = []
        for local_rank, pid in list(self._running.items()):
            status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                continue
            exited = status.si_code == os.CLD_EXITED
            number = status.si_status if exited else -status.si_status
            ended.append(Exit(local_rank, pid, number, time.monotonic()))
            self._exits[local_rank] = ended[-1]
            del self._running[local_rank]
            if pid in self._owed:
                _send(os.killpg, pid, self._owed.pop(pid))
        return ended

    def raised(self) -> list[Exit]:
        """The workers that have not ended since an exception has ended their scripts."""
        now, clock, found = time.monotonic(), time.time(), []
        for local_rank, pid in self._running.items():
            ended_at = script_ended_at(self.started.error_files.get(local_rank, ""))
            if ended_at is not None:
                found.append(Exit(local_rank, pid, 1, now - max(0.0, clock - ended_at), lingers=True))
        return found

    def first(self, failed: Sequence[Exit]) -> Exit:
        """Of the workers that were seen to have failed at the same time, the one that probably failed first.

        A worker that was killed, or exited without an exception, was gone at once; the others recorded their
        exceptions in the order in which these were raised, and unwound only after that.
        """
        return min(failed, key=lambda failure: self._raised_at(failure.local_rank) or 0.0)

    def raised_s(self, failure: Exit) -> float:
        """How long before its end was seen a worker raised the exception that ended it (seconds); 0: it raised none."""
        recorded_at, seen_s = self._raised_at(failure.local_rank), time.monotonic() - failure.seen_at
        if recorded_at is None:
            return 0.0
        return round(min(max(0.0, time.time() - recorded_at - seen_s), MAX_SECONDS), 3)

    def _raised_at(self, local_rank: int) -> float | None:
        return raised_at(self.started.error_files.get(local_rank, ""))

    def send(self, signum: int) -> None:
        """Send a signal to the workers; kill those that are stopped and would not act on it.

        The rest of a worker's process group gets it as well, but not the helpers of one that handles it, before it has
        ended. SIGINT is for all: Python handles it by itself, and who presses Ctrl-C means everything.
        """
        alive = processes.living() if signum != signal.SIGINT else {}
        for sid in self._sids:
            spared = processes.helpers(alive, sid, signum, spawns=self._spawns)
            if not spared:
                _send(os.killpg, sid, signum)
                continue
            self._owed[sid] = signum
            for process in alive.values():
                if process.group == sid and process.pid not in spared:
                    _send(os.kill, process.pid, signum)
        for pid in processes.stopped(self._sids):
            _send(os.kill, pid, signal.SIGKILL)

    def clear(self, *, spare_detached: bool = False, until: float | None = None) -> "Cleared":
        """Kill what is left of the workers and of what they started, reap the workers, close their logs.

        With `spare_detached` what has left the workers' sessions (`setsid`) is left alone.
        """
        if spare_detached:
            stuck = processes.kill_all(lambda: processes.session_members(self._sids))
        else:
            stuck = processes.kill_all_of(self._incarnation, self._sids, self._kept_sessions)
        self.collect()
        return Cleared(stuck, self.started.close(until))


def _send(kill: Callable[[int, int], None], to: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: sudo in a worker
        kill(to, signum)
