"""The worker processes of one round: notices their exits, signals them, and ends everything they started.

Exits are read without reaping (`WNOWAIT`): a worker stays a zombie until its round is cleaned up, so that its pid,
which is also the id of its session and process group, cannot be reused in the meantime. The caller learns from SIGCHLD
when to look (`hetagent.node.processes.signals.capture_signals`).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from hetagent.node.processes import proctree as processes
from hetagent.node.processes.signals import signal_name
from hetagent.workers.failures import ErrorRecord, format_failure_message, read_record
from hetagent.workers.leftovers import OrphanReaper
from hetagent.workers.starter import StartedWorker, WorkerExit
from hetrdzv.protocol.bounds import MAX_SECONDS
from hetrdzv.protocol.rounds import WorkerFailure

UNWIND_S = 1.0
"""For how long a worker is as good as ended after an exception has ended its script (seconds)."""


class Workers:
    """The processes that a starter started for one round, by local rank."""

    def __init__(
        self,
        started: Mapping[int, StartedWorker],
        close: Callable[[float | None], None],  # `TorchStarter.end_round`
        reaper: OrphanReaper,
    ) -> None:
        self.started = started
        self._close = close
        self._reaper = reaper
        self.pids = {local_rank: worker.pid for local_rank, worker in started.items()}
        self._sids = frozenset(self.pids.values())
        self._exits: dict[int, WorkerExit] = {}

    @property
    def alive(self) -> Mapping[int, int]:
        """The pids of those that were running when last looked at, by local rank."""
        return {rank: pid for rank, pid in self.pids.items() if rank not in self._exits}

    @property
    def running(self) -> bool:
        """Whether a worker itself (not something it started) is still running."""
        return len(self._exits) < len(self.pids)

    @property
    def exits(self) -> Sequence[WorkerExit]:
        """How the workers that have ended did so, by local rank."""
        return [self._exits[rank] for rank in sorted(self._exits)]

    def take_exits(self) -> list[WorkerExit]:
        """The workers that have ended since the last call."""
        ended = []
        for local_rank, pid in self.alive.items():
            status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                continue
            exited = status.si_code == os.CLD_EXITED
            number = status.si_status if exited else -status.si_status
            ended.append(WorkerExit(local_rank, number, time.monotonic()))
            self._exits[local_rank] = ended[-1]
        return ended

    def find_lingering(self) -> list[WorkerExit]:
        """The workers that run although an exception has ended their scripts; some only unwind still."""
        now, clock = time.monotonic(), time.time()
        lingering = []
        for local_rank in self.alive:
            ended_at = self._read_record(local_rank).ended_at
            if ended_at is not None:
                age_s = max(0.0, clock - ended_at)
                lingering.append(WorkerExit(local_rank, 1, now - age_s, lingers=age_s >= UNWIND_S))
        return lingering

    def find_first_failure(self, failed: Sequence[WorkerExit]) -> WorkerExit:
        """Of the workers that were seen to have failed at the same time, the one that probably failed first.

        A worker that was killed, or exited without an exception, was gone at once; the others recorded their
        exceptions in the order in which these were raised, and unwound only after that.
        """
        return min(failed, key=lambda end: self._read_record(end.local_rank).raised_at or 0.0)

    def describe_failure(self, end: WorkerExit, rank: int, secrets: Collection[str] = ()) -> WorkerFailure:
        """How a worker of this rank failed, in words without secrets."""
        worker, record = self.started[end.local_rank], self._read_record(end.local_rank)
        raised_s = 0.0
        if record.raised_at is not None:
            raised_s = time.time() - record.raised_at - (time.monotonic() - end.seen_at)
        return WorkerFailure(
            local_rank=end.local_rank,
            rank=rank,
            exit_code=None if end.lingers or end.returncode < 0 else end.returncode,
            signal=signal_name(-end.returncode) if end.returncode < 0 else None,
            lingers=end.lingers,
            message=format_failure_message(record, worker.read_stderr(), secrets),
            raised_s=round(min(max(0.0, raised_s), MAX_SECONDS), 3),
            permanent=record.permanent,
        )

    def _read_record(self, local_rank: int) -> ErrorRecord:
        return read_record(self.started[local_rank].error_file)

    def send_signal(self, signum: int) -> None:
        """Send a signal to the workers; kill those that are stopped and would not act on it.

        The rest of a worker's process group gets it as well, but for torch's data loaders, without which a script could
        not end its step and save. SIGINT is for all: who presses Ctrl-C means everything.
        """
        members = [process for process in processes.list_processes().values() if process.group in self._sids]
        spared = processes.find_data_loaders(members) if signum != signal.SIGINT else set()
        for process in members:
            if process.pid not in spared:
                _send_signal(process.pid, signum)
        for pid in processes.find_stopped(self._sids):
            _send_signal(pid, signal.SIGKILL)

    def kill_remaining(self, *, spare_detached: bool = False, until: float | None = None) -> None:
        """Kill what is left of the workers and of what they started, reap the workers, close their logs.

        With `spare_detached` what has left the workers' sessions (`setsid`) is left alone.
        """
        self._reaper.kill_all(self._sids, spare_detached=spare_detached)
        self.take_exits()
        self._close(until)


def _send_signal(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: sudo in a worker
        os.kill(pid, signum)
