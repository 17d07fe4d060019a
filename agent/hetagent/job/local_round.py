"""This node's part of one round: its processes, from their start until the last of them is gone."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from hetagent.job.failures import Left, failure_message, is_permanent
from hetagent.job.notice import PATIENCE_S, Notice, handles
from hetagent.job.progress.watching import Watching
from hetagent.job.shares import RoundShares
from hetagent.job.workers.deaths import Deaths
from hetagent.job.workers.processes import Cleared, Workers
from hetagent.job.workers.starter import Exit, Starter
from hetagent.launch.base import Assignment, Launch
from hetagent.node.network import host_port
from hetagent.progress import NOTICE_FILE
from hetrdzv.protocol.wire import FailureFields, NoticeReply

FAILING_S = 5.0
"""How long a program may take to end after one of its processes has died (seconds); it stops the others first."""

MEET_AFTER_S = 60.0
"""When to look whether the workers have met (seconds after their start); they import, and read their data, before."""


@dataclass(frozen=True, slots=True)
class _Stopping:
    """Workers that have been asked to stop: the signal they got, and when they will be killed (monotonic seconds)."""

    signum: int
    grace_s: float
    kill_at: float


@dataclass(frozen=True, slots=True)
class End:
    """How the processes of a round ended on this node.

    Attributes:
        failure: the first failure; None if all succeeded.
        due_at: when to report it (monotonic seconds).
    """

    failure: Exit | None
    due_at: float


class LocalRound:
    """This node's processes of one round.

    Args:
        assignment: this node's part of the round.
        launch: turns it into a command and an environment.
        starter: makes the processes.
        incarnation: the `HET_INCARNATION` by which they are found.
        watching: watches the processes; None: nobody does.
        share: makes the files of the workers' shares.

    Attributes:
        begun: whether the processes were started, or could not be; until then another `start` may follow.
        shares: what the workers know of their shares; None: there are none.
    """

    def __init__(
        self,
        assignment: Assignment,
        launch: Launch,
        starter: Starter,
        incarnation: str,
        watching: Watching | None = None,
        share: Callable[[Assignment], RoundShares] | None = None,
    ) -> None:
        self.assignment = assignment
        self.begun = False
        self.shares: RoundShares | None = None  # while there are processes
        self._share = share
        self._launch = launch
        self._starter = starter
        self._incarnation = incarnation
        self._watching = watching
        self._workers: Workers | None = None  # until they are cleared away
        self._failed_here = False  # a worker of this node failed by itself
        self._exits: list[Exit] = []
        self._end: End | None = None  # not reported yet
        self._stopping: _Stopping | None = None
        self._meet_at: float | None = None  # when to look whether the workers have met (monotonic seconds)
        self._met_told: int | None = None  # how many had at the last look; None: all, or nobody looked
        self._deaths: Deaths | None = None  # of what the node's one program has started
        self._stop_later: _Stopping | None = None  # once the program has had time to end by itself
        self._look_at: float | None = None  # when the launch looks at its processes (monotonic seconds)
        self._notice_files: dict[int, str] = {}  # by local rank
        self._notice: Notice | None = None  # the round is about to end
        self._ready_told = False  # all workers are ready for that

    @property
    def number(self) -> int:
        """The round's number."""
        return self.assignment.round

    @property
    def present(self) -> bool:
        """Whether there are processes, dead or alive, that have not been cleared away."""
        return self._workers is not None

    @property
    def stopping(self) -> bool:
        """Whether the workers have been asked to stop."""
        return self._stopping is not None

    @property
    def pids(self) -> list[int]:
        """The workers' pids, by local rank."""
        return list(self._workers.pids.values()) if self._workers is not None else []

    @property
    def failed(self) -> list[Exit]:
        """How the failed workers ended, if one of them failed by itself; known once they have been cleared away."""
        return [one for one in self._exits if not one.succeeded] if self._failed_here else []

    @property
    def place(self) -> str:
        """This node's place in the round, for the terminal."""
        start = self.assignment.start
        last = start.rank_offset + start.slots - 1
        ranks = f"rank {last}" if start.slots == 1 else f"ranks {start.rank_offset} to {last}"
        master = f"{start.master.node_id} ({host_port(start.master.address, start.master.port)})"
        return (
            f"{ranks} of {start.world_size}, node {start.group_rank} of {start.nnodes}, master {master}, "
            f"restart {start.restart_count}"
        )

    def due_at(self) -> float | None:
        """When to look again even if nothing happens (monotonic seconds); None: no need."""
        if self._workers is None:
            return None
        if self._stopping is not None:
            return self._stopping.kill_at
        later = self._stop_later.kill_at if self._stop_later is not None else None
        moments = [later, self._look_at, self._meet_at, self._end.due_at if self._end is not None else None]
        moments.append(self.shares.due_at() if self.shares is not None else None)
        if self._notice is not None:
            if not self._ready_told:
                moments.append(self._notice.look_at)
            elif not self._workers.running:
                moments.append(self._notice.until + PATIENCE_S)
        return min((at for at in moments if at is not None), default=None)

    # -- start -----------------------------------------------------------------------------------------------

    def start(self, environ: Mapping[str, str]) -> bool:
        """Start the processes.

        Args:
            environ: what every worker of this agent gets beside torchrun's environment.

        Returns:
            False if the launch is waiting for another `start` of this round.

        Raises:
            Exception: they could not be started; some of them may be running.
        """
        self.begun = True
        command = self._launch.begin(self.assignment)
        if command is None:
            self.begun = False
            return False
        count = 1 if self._launch.one_per_node else self.assignment.start.slots
        if self._share is not None:
            self.shares = self._share(self.assignment)
        environs = [self._environ(environ, local_rank) for local_rank in range(count)]
        if self._watching is not None:
            watch = self._watching.prepare(self.assignment)
            shows = command.is_python and not self._launch.one_per_node
            for local_rank, one in enumerate(environs):
                one.update(watch.environ(local_rank, torch=shows))
        self._notice_files = {
            local_rank: path for local_rank, one in enumerate(environs) if (path := one.get(NOTICE_FILE))
        }
        started = self._starter.start(self.assignment, command, environs)
        self._workers = Workers(started, self._incarnation, self._starter.kept)
        if self._watching is not None:
            offset = self.assignment.start.rank_offset
            self._watching.begin(started.pids, offset, started.error_files, self._workers.stderr_tail)
        if self._launch.meets_in_store and self.assignment.is_master and self.assignment.start.world_size > 1:
            self._meet_at = time.monotonic() + MEET_AFTER_S
        if self._launch.watches_deaths:
            self._deaths = Deaths(started.pids[0])
        if self._launch.look_after_s is not None:
            self._look_at = time.monotonic() + self._launch.look_after_s
        return True

    def _environ(self, environ: Mapping[str, str], local_rank: int) -> dict[str, str | None]:
        own = {"HET_RANK_OFFSET": str(self.assignment.start.rank_offset), "HET_ROUND": str(self.number)}
        shares: Mapping[str, str | None] = {}
        if self.shares is not None:
            shares = self.shares.environ(local_rank, one_per_node=self._launch.one_per_node)
        return {**environ, **own, **shares, **self._launch.environ(self.assignment, local_rank)}

    def look_for_asks(self) -> None:
        """Where nothing says when a worker asks for other shares, look whether one does, if it is time for that."""
        due_at = self.shares.due_at() if self.shares is not None else None
        if self.shares is not None and due_at is not None and time.monotonic() >= due_at:
            self.shares.look()

    def end_shares(self) -> None:
        """Nobody needs the files of the workers' shares any more."""
        if self.shares is not None:
            self.shares.close()
            self.shares = None

    def look(self) -> str | None:
        """Have the launch look at its processes once, some time after their start; a warning if something is wrong."""
        if self._look_at is None or self._workers is None or time.monotonic() < self._look_at:
            return None
        self._look_at = None
        return self._launch.look(self.assignment, self.pids[0])

    def met(self) -> int | None:
        """How many workers of all nodes have found each other; None: there is only one, or nobody can tell."""
        if self._workers is None or not self._launch.meets_in_store or self.assignment.start.world_size == 1:
            return None
        met = self._workers.met()
        return None if met is None else min(met, self.assignment.start.world_size)

    def late(self) -> int | None:
        """How many workers have met, if that is not all of them some time after their start, and when it changes."""
        if self._meet_at is None or time.monotonic() < self._meet_at:
            return None
        met, self._meet_at = self.met(), None
        if met is not None and met < self.assignment.start.world_size:
            self._meet_at = time.monotonic() + MEET_AFTER_S  # they may only have been loading
        elif self._met_told is None:
            return None
        if met == self._met_told:
            return None
        self._met_told = met
        return met

    def meeting(self, met: int) -> str:
        """What to say of so many workers that have met."""
        world, where = self.assignment.start.world_size, "init_process_group with env://"
        if met == world:
            return f"all {world} workers have met by now"
        so_far = f"only {met} of {world}" if met else f"none of {world}"
        return (
            f"{MEET_AFTER_S:g} s or more after their start {so_far} workers have met; unless they are still loading, "
            f"or meet in another way than {where}, they train alone or wait for each other"
        )

    # -- a planned stop --------------------------------------------------------------------------------------

    def notify(self, told: NoticeReply, signum: signal.Signals | None) -> list[int]:
        """Tell the workers that the round is about to end, so that they save.

        Args:
            signum: what to send to those that handle it; None: nothing.

        Returns:
            the local ranks that would have been killed by the signal, and so did not get it.
        """
        if self._workers is None or self._stopping is not None or self._notice is not None:
            return []
        shared_by = self.assignment.start.slots if self._launch.one_per_node else 1
        self._notice = Notice(told, self._notice_files, shared_by)
        if signum is None:
            return []
        running = self._workers.alive
        deaf = [local_rank for local_rank, pid in running.items() if not handles(pid, signum)]
        for local_rank, pid in running.items():
            if local_rank not in deaf:
                with contextlib.suppress(PermissionError):  # sudo in a worker; it has the file
                    os.kill(pid, signum)  # it is not reaped before the round is cleared away
        return deaf

    def ready_to_stop(self) -> bool:
        """Whether it is to be told now, once, that the workers may be stopped: all have said so or have ended well."""
        notice = self._notice
        if notice is None or self._ready_told or self._workers is None or self._stopping is not None:
            return False
        if time.monotonic() < notice.look_at and self._workers.running:
            return False
        ready = notice.ready() | {one.local_rank for one in self._workers.exits if one.succeeded}
        self._ready_told = ready >= self._workers.pids.keys() and notice.answered()
        return self._ready_told

    def is_forgotten(self) -> bool:
        """Whether all workers have ended for a notice, and the round goes on all the same, long after it."""
        notice = self._notice
        if notice is None or self._workers is None or self._stopping is not None or self._workers.running:
            return False
        return self._ready_told and time.monotonic() >= notice.until + PATIENCE_S

    # -- end -------------------------------------------------------------------------------------------------

    def end(self) -> End | None:
        """How the processes ended by themselves, once that is to be reported; None until then, and while stopping."""
        if self._workers is None:
            return None
        ended = self._workers.collect()
        if self._stopping is not None:
            return None
        failed = [one for one in ended if not one.succeeded]
        over = self._end is None and not failed and not self._workers.running
        if over and self._notice is not None and self._notice.answered():
            return None  # they have saved, and wait for the end of the round: the job is not done
        if self._end is None and (failed or not self._workers.running):
            patience_s = self._launch.patience_s(self.assignment, failed=bool(failed))
            first = self._workers.first(failed) if failed else None
            self._end = End(self._dated(first), time.monotonic() + patience_s)
        if self._end is None or time.monotonic() < self._end.due_at:
            return None
        self._failed_here = self._end.failure is not None
        self._workers.catch_up()
        return self._end

    def _dated(self, failure: Exit | None) -> Exit | None:
        """A failure, seen when the first process died that the program had started."""
        died_at = self._deaths.first_at() if self._deaths is not None else None
        if failure is None or died_at is None:
            return failure
        return replace(failure, seen_at=min(failure.seen_at, died_at))

    def stop_for_others(self, signum: int, grace_s: float) -> None:
        """Stop the workers, since the round is over elsewhere.

        If a process of this node's program has died, the program may be about to fail, and what happened elsewhere may
        follow from that: it gets some time to end by itself.
        """
        if self._workers is None or self._stopping is not None or self._stop_later is not None:
            return
        if self._workers.running and self._deaths is not None and self._deaths.first_at() is not None:
            self._stop_later = _Stopping(signum, grace_s, time.monotonic() + FAILING_S)
        else:
            self.stop(signum, grace_s)

    def describe(self, failure: Exit, secrets: Collection[str] = ()) -> tuple[FailureFields, str]:
        """A worker's failure, for the server and in a few words for the terminal.

        Args:
            secrets: what must not be sent.
        """
        assert self._workers is not None
        left = Left(
            error_file=self._workers.error_files.get(failure.local_rank, ""),
            stderr_file=self._workers.stderr_files.get(failure.local_rank, ""),
            stderr_end=self._workers.stderr_end(failure.local_rank),
        )
        local_rank, rank = failure.local_rank, self.assignment.start.rank_offset + failure.local_rank
        who = f"rank {rank} (local rank {local_rank})"
        if self._launch.one_per_node:
            local_rank, rank, who = -1, -1, "the program of this node"
        how = f"was killed by {failure.signal}" if failure.signal else f"exited with code {failure.exit_code}"
        fields = FailureFields(
            local_rank=local_rank,
            rank=rank,
            exit_code=failure.exit_code,
            signal=failure.signal,
            message=failure_message(left, failure.status, secrets),
            permanent=is_permanent(left),
        )
        if self._watching is not None:
            fields = fields.model_copy(update=self._watching.reached())
        return fields, f"{who} {how}"

    def stop(self, signum: int, grace_s: float) -> None:
        """Ask the workers to end; they are killed after the grace. A second call can only shorten it."""
        if self._workers is None:
            return
        self._stop_later = None
        stopping = _Stopping(signum, grace_s, time.monotonic() + grace_s)
        if self._stopping is None:
            self._stopping = stopping
            self._workers.send(signum)
        elif stopping.kill_at < self._stopping.kill_at:
            self._stopping = stopping

    def stopped(self) -> bool:
        """Whether the workers have ended since `stop`, or their grace is over."""
        if self._stop_later is not None and time.monotonic() >= self._stop_later.kill_at:
            self.stop(self._stop_later.signum, self._stop_later.grace_s)
        if self._workers is None or self._stopping is None:
            return False
        self._workers.collect()
        return not self._workers.running or time.monotonic() >= self._stopping.kill_at

    def overstayed(self) -> str | None:
        """What to say if workers are still running at the end of their grace."""
        if self._workers is None or self._stopping is None or not self._workers.running:
            return None
        name, grace_s = signal.Signals(self._stopping.signum).name, self._stopping.grace_s
        return f"workers are still running {grace_s:g} s after {name}; killing them" if grace_s > 0 else None

    def clear(self, *, spare_detached: bool = False, until: float | None = None) -> Cleared:
        """Kill and take away what is left of the processes; see `Workers.clear`."""
        assert self._workers is not None
        if self._deaths is not None:
            self._deaths.close()
            self._deaths = None
        # If this fails, they are still ours to clear.
        cleared = self._workers.clear(spare_detached=spare_detached, until=until)
        if self._watching is not None:
            self._watching.end()
        self.end_shares()
        self._exits, self._workers = list(self._workers.exits), None
        self._stopping = self._stop_later = self._end = self._look_at = self._meet_at = None
        return cleared
