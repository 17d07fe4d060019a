"""This node's part of one round: its processes, from their start until the last of them is gone."""

import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from hetagent.errors import OutOfResourcesError
from hetagent.launch.base import Assignment, Launch
from hetagent.node import scratch
from hetagent.node.network import format_host_port
from hetagent.roundhook import Environ
from hetagent.runloop.parts import AgentParts
from hetagent.workers.leftovers import OrphanReaper
from hetagent.workers.processes import UNWIND_S, Workers
from hetagent.workers.starter import WorkerExit
from hetrdzv.protocol.reasons.ends import worker_failed
from hetrdzv.protocol.rounds import EarlierSuccesses, WorkerFailure
from hetrdzv.protocol.texts.phrasing import count_text

if TYPE_CHECKING:
    from hetagent.workers.torch_starter import TorchStarter

PREFIX = "hetround_"

SAVE_S = 10.0
"""How long workers may save before they are stopped (seconds), but no longer than until they would be killed."""

FAILING_S = 5.0
"""How long a program may take to end after one of its processes has died (seconds); it stops the others first."""

LINGER_S = 10.0
"""How long a worker may take to end after an exception has ended its script (seconds): it may finish an upload."""

LOOK_S = 2.0
"""How often to look whether an exception has ended the script of a worker that runs (seconds)."""

PATIENCE_S = 1.0
"""How long to wait for the console before the end of workers is reported (seconds)."""


class RoundPhase(StrEnum):
    """Where this node's part of a round is."""

    HELD = "held"  # its processes are to be started; the launch may wait for another `start` of this round
    RUNNING = "running"
    ENDING = "ending"  # the processes have ended, or one has failed: reported in a moment
    SAVING = "saving"  # the processes are to be stopped, once they have saved
    STOPPING = "stopping"  # they were asked to stop
    GONE = "gone"  # they were cleared away, or never came to be


class PendingStop(NamedTuple):
    """A stop of the workers: the signal that they get, and when they are killed (monotonic seconds)."""

    signum: int
    grace_s: float
    kill_at: float


class LocalEnd(NamedTuple):
    """How the processes of a round ended on this node."""

    failure: WorkerExit | None  # the first; None if all succeeded
    due_at: float  # when to report it (monotonic seconds)


class LocalRound:
    """This node's processes of the newest round."""

    assignment: Assignment  # there is none before the first round
    _workers: Workers  # while there are processes

    def __init__(
        self, launch: Launch, starter: "TorchStarter", reaper: OrphanReaper, parts: AgentParts
    ) -> None:
        self.phase = RoundPhase.GONE
        self._launch = launch
        self._starter = starter
        self._reaper = reaper
        self._parts = parts
        self._folder: scratch.ScratchFolder | None = None
        self._look_at = 0.0  # for workers that do not end (monotonic seconds)
        self._end: LocalEnd | None = None  # from ENDING on
        # Under way, or put off while the program has time to end by itself.
        self._stop: PendingStop | None = None

    def begin(self, assignment: Assignment) -> None:
        """This node has a part in another round."""
        self.assignment, self.phase = assignment, RoundPhase.HELD
        self._look_at, self._end, self._stop = 0.0, None, None

    @property
    def has_processes(self) -> bool:
        """Whether there are processes, dead or alive, that have not been cleared away."""
        return self.phase not in (RoundPhase.HELD, RoundPhase.GONE)

    @property
    def is_running(self) -> bool:
        """Whether the workers were started, and not yet asked to stop, or to save before that."""
        return self.phase in (RoundPhase.RUNNING, RoundPhase.ENDING)

    @property
    def is_stopping(self) -> bool:
        """Whether the workers have yet to end that were asked to stop, or to save before that: no hook is due then."""
        return self.phase in (RoundPhase.SAVING, RoundPhase.STOPPING)

    @property
    def pids(self) -> list[int]:
        """The workers' pids, by local rank."""
        return list(self._workers.pids.values())

    @property
    def description(self) -> str:
        """This node's place in the round, for the terminal."""
        start = self.assignment.start
        last = start.rank_offset + start.slots - 1
        ranks = f"rank {last}" if start.slots == 1 else f"ranks {start.rank_offset} to {last}"
        master = f"{start.master.node_id} ({format_host_port(start.master.address, start.master.port)})"
        return (
            f"{ranks} of {start.world_size} on {count_text(start.nnodes, 'node')}, master {master}, "
            f"restart {start.restart_count}"
        )

    def due_at(self) -> float | None:
        """When to look again even if nothing happens (monotonic seconds); None: no need."""
        hooks = () if self.is_stopping else self._parts.hooks
        moments = [at for hook in hooks if (at := hook.due_at()) is not None]
        if self.has_processes:
            moments += [self._stop.kill_at] if self._stop is not None else []
            moments += [self._save_deadline()] if self.phase is RoundPhase.SAVING else []
            moments += [self._look_at] if self.phase is RoundPhase.RUNNING else []
            moments += [self._end.due_at] if self._end is not None and not self.is_stopping else []
        return min(moments, default=None)

    # -- start -----------------------------------------------------------------------------------------------

    def start(self, environ: Mapping[str, str]) -> None:
        """Start the processes, unless the launch waits for another `start` of this round.

        Raises whatever kept them from starting; some of them may be running, and `clear` follows.
        """
        command = self._launch.begin(self.assignment)
        if command is None:
            return
        chosen = self.assignment.start.snapshot
        if chosen is not None and self._parts.snapshots is None:  # its workers would begin from nothing
            raise OutOfResourcesError(
                f"the round begins from the snapshot of step {chosen.step}, but this node has none: it has "
                "--snapshot-memory off, or its agent has said at its start what is missing"
            )
        parent = scratch.find_socket_parent()
        scratch.remove_stale_folders(PREFIX, parent)
        self._folder = scratch.ScratchFolder(PREFIX, parent)
        self.assignment.folder = self._folder.path
        for hook in self._parts.hooks:
            hook.on_round_start(self.assignment, command)
        count = 1 if self._launch.one_per_node else self.assignment.start.slots
        environs = [self._make_worker_env(environ, local_rank) for local_rank in range(count)]
        standbys = self._parts.standbys
        claim = standbys.claim_standby if standbys is not None else None
        started = self._starter.start(self.assignment, command, environs, claim)
        self._workers = Workers(started, self._starter.end_round, self._reaper)
        self.phase = RoundPhase.RUNNING
        for hook in self._parts.hooks:
            hook.on_workers_started(self._workers)

    def _make_worker_env(self, environ: Mapping[str, str], local_rank: int) -> Environ:
        made: dict[str, str | None] = {
            **environ,
            "HET_RANK_OFFSET": str(self.assignment.start.rank_offset),
            "HET_ROUND": str(self.assignment.round),
        }
        for hook in self._parts.hooks:
            made.update(hook.worker_env(local_rank))
        return {**made, **self._launch.worker_env(self.assignment, local_rank)}

    # -- end -------------------------------------------------------------------------------------------------

    def take_end(self) -> LocalEnd | None:
        """How the processes ended by themselves, once that is due to be reported; the caller stops or clears them."""
        if not self.has_processes:
            return None
        failed = [end for end in self._workers.take_exits() if not end.succeeded]
        if self.phase is RoundPhase.RUNNING:
            if not failed and time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + LOOK_S
                failed = self._find_lingering(LINGER_S)
            self._check_exits(failed)
        if self.phase is not RoundPhase.ENDING or self._end is None or time.monotonic() < self._end.due_at:
            return None
        # What it has written is shown before what is logged next, and may be the reason to give up.
        self._starter.wait_for_output(time.monotonic() + PATIENCE_S)
        if self._end.failure is not None and self.abandon_reason():
            return None  # it has failed for that reason, which is no failure of the script
        return self._end

    def _find_lingering(self, for_s: float) -> list[WorkerExit]:
        """The workers that an exception should have ended so many seconds ago."""
        until = time.monotonic() - for_s
        return [end for end in self._workers.find_lingering() if end.seen_at <= until]

    def find_lingering_failure(self) -> WorkerExit | None:
        """A worker that an exception should have ended before the round was over elsewhere, and that still runs."""
        raised = self._find_lingering(UNWIND_S)
        return self._workers.find_first_failure(raised) if raised else None

    def find_successes_before(self, moment: float) -> EarlierSuccesses | None:
        """Workers that had ended with exit code 0 by a moment (monotonic seconds), while others ran; None: none had."""
        if self._launch.one_per_node:
            return None
        ends = [end for end in self._workers.exits if end.succeeded and end.seen_at <= moment]
        if not ends:
            return None
        first = min(ends, key=lambda end: end.seen_at)
        return EarlierSuccesses(
            node_id=self.assignment.node_id,
            rank=self.assignment.start.rank_offset + first.local_rank,
            others=len(ends) - 1,
            before_s=round(moment - first.seen_at, 3),
        )

    def _check_exits(self, failed: Sequence[WorkerExit]) -> None:
        """See whether one has failed, or all have ended."""
        notices = self._parts.notices
        if not failed and (self._workers.running or (notices is not None and notices.is_round_end_awaited())):
            return
        patience_s = self._launch.failure_report_delay_s(self.assignment, failed=bool(failed))
        failure = (
            self._workers.find_first_failure([*failed, *self._workers.find_lingering()]) if failed else None
        )
        died_at = self._parts.first_failure_at()
        if failure is not None and died_at is not None:
            failure = replace(failure, seen_at=min(failure.seen_at, died_at))
        self._end = LocalEnd(failure, time.monotonic() + patience_s)
        self.phase = RoundPhase.ENDING

    def describe_failure(
        self, failure: WorkerExit, secrets: Collection[str] = ()
    ) -> tuple[WorkerFailure, str]:
        """A worker's failure without secrets, for the server and in a line for the terminal."""
        rank = self.assignment.start.rank_offset + failure.local_rank
        fields = self._workers.describe_failure(failure, rank, secrets)
        if self._launch.one_per_node:
            fields = replace(fields, local_rank=-1, rank=-1)
        why = worker_failed(self.assignment.node_id, fields, self.find_successes_before(failure.seen_at))
        return fields, why.message

    def abandon_reason(self) -> str:
        """Why this node should end its part of the round and join again; empty: it need not."""
        snapshots = self._parts.snapshots
        return snapshots.abandon_reason() if snapshots is not None and self.is_running else ""

    # -- stop ------------------------------------------------------------------------------------------------

    def stop_for_others(self, signum: int, grace_s: float) -> None:
        """Stop the workers, since the round is over elsewhere.

        If a process of this node's program has died, the program may be about to fail, and what happened elsewhere may
        follow from that: it gets some time to end by itself.
        """
        if not self.has_processes or self._stop is not None:
            return
        if self._workers.running and self._parts.first_failure_at() is not None:
            self._stop = PendingStop(signum, grace_s, time.monotonic() + FAILING_S)
        else:
            self.stop(signum, grace_s)

    def stop(self, signum: int, grace_s: float) -> None:
        """Ask the workers to end, once those have saved that can; they are killed after the grace.

        A second call can only shorten it.
        """
        if not self.has_processes:
            return
        stop = PendingStop(signum, grace_s, time.monotonic() + grace_s)
        if self.is_running:
            self._stop = stop
            if self._parts.snapshots is not None and grace_s > 0:
                self._parts.snapshots.have_workers_save(min(grace_s, SAVE_S))
            if self._save_deadline() > time.monotonic():
                self.phase = RoundPhase.SAVING
            else:
                self._send_stop_signal()
        elif self._stop is None or stop.kill_at < self._stop.kill_at:
            self._stop = stop

    def _save_deadline(self) -> float:
        """Until when the stop waits for workers that save (monotonic seconds)."""
        assert self._stop is not None
        snapshots = self._parts.snapshots
        save_deadline = snapshots.save_deadline() if snapshots is not None else None
        return min(save_deadline or 0.0, self._stop.kill_at)

    def _send_stop_signal(self) -> None:
        assert self._stop is not None
        self.phase = RoundPhase.STOPPING
        self._workers.send_signal(self._stop.signum)

    def has_stopped(self) -> bool:
        """Whether the workers have ended since `stop`, or their grace is over."""
        if not self.has_processes or self._stop is None:
            return False
        if self.is_running:  # it was put off
            if time.monotonic() < self._stop.kill_at:
                return False
            self.stop(self._stop.signum, self._stop.grace_s)
        self._workers.take_exits()
        if self.phase is RoundPhase.SAVING:
            if self._workers.running and time.monotonic() < self._save_deadline():
                return False
            self._send_stop_signal()
        return not self._workers.running or time.monotonic() >= self._stop.kill_at

    def describe_overrun(self) -> str | None:
        """What to say if workers are still running at the end of their grace."""
        stop = self._stop
        if stop is None or stop.grace_s <= 0 or not self._workers.running:
            return None
        return f"workers are still running {stop.grace_s:g} s after {signal.Signals(stop.signum).name}; killing them"

    def clear(self, *, spare_detached: bool = False, until: float | None = None) -> None:
        """The round is over here: kill what is left of the processes, if any; see `Workers.kill_remaining`."""
        if self.has_processes:  # if this fails, they are still ours to clear
            self._workers.kill_remaining(spare_detached=spare_detached, until=until)
        for hook in self._parts.hooks:
            hook.on_round_end()
        if self._folder is not None:
            self._folder.close()
        self.phase = RoundPhase.GONE
