"""Starts workers with torch's own elastic agent, so that they get everything that torchrun's workers get.

Used of torch's agent: how it starts the workers of a round (environment, macros in arguments, log specs and prefixes,
filtered copies, error files, NUMA binding, virtual local ranks), the watchdog and the health check beside them, its
events and its metrics. Not used: its run loop, its way of watching and stopping workers, its ranks.

Where there is a process already that can become a worker, torch gets that instead of a new one. How torch does all this
is the business of `hetagent.torch_compat`.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TextIO

from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing import LogsSpecs, ProcessFailure

from hetagent.launch.base import Assignment, PredictCommand
from hetagent.launch.command import WorkerCommand
from hetagent.torch_compat.flags import changes_the_command, substituted
from hetagent.torch_compat.starting import ElasticAgent, Processes
from hetagent.workers.console import drained
from hetagent.workers.failures import read_record, tail
from hetagent.workers.kept import STDERR, STDOUT, Consoles, Kept
from hetagent.workers.starter import Exit, MergeLines, Program, Started, Take, no_process
from hetagent.workers.store import HetRendezvousHandler


class TorchStarter(ElasticAgent):
    """Makes the worker processes of this node, round after round.

    Args:
        spec: torch's worker spec; its handler is a `HetRendezvousHandler`.
        logs_specs: torch's.
        log_line_prefix_template: torch's.
        consoles: keep the end of what workers write; None: nothing of it is to be kept or looked at.
        merged: makes what takes the lines of `tee` on their way to the console; None: the console does.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        log_line_prefix_template: str | None = None,
        consoles: Consoles | None = None,
        *,
        merged: MergeLines | None = None,
    ) -> None:
        super().__init__(spec, logs_specs, log_line_prefix_template)
        self._assignment: Assignment | None = None  # of the newest round
        self._environs: Sequence[Mapping[str, str | None]] = ()
        self._error_files: Mapping[int, str] = {}
        self._created_at = time.monotonic()
        self._take_ahead: Take = no_process
        self._consoles = consoles
        self._merged = merged
        self._kept: dict[int, Kept] = {}  # of the newest round, by local rank
        self._begun: list[subprocess.Popen[bytes]] = []  # by a start that is not over, or has failed

    # -- the starter -----------------------------------------------------------------------------------------

    def predict_programs(
        self, predict_command: PredictCommand, environ: Mapping[str, str]
    ) -> Sequence[Program]:
        """What the worker of each local rank will probably run in the first round; empty: only that round will tell.

        Args:
            predict_command: see `Launch.predict_command`.
            environ: what every worker of this agent gets beside torchrun's environment.
        """
        if changes_the_command(self.spec):
            return ()  # the first round must show what it is
        programs = []
        for local_rank in range(self.spec.local_world_size):
            predicted = predict_command(local_rank)
            if predicted is None:
                return ()
            command, changes = predicted
            args = substituted([command.entrypoint, *command.args], local_rank)
            values = {**os.environ, **environ, **changes}
            programs.append(
                Program(args, {name: value for name, value in values.items() if value is not None})
            )
        return programs

    def start(
        self,
        assignment: Assignment,
        command: WorkerCommand,
        environs: Sequence[Mapping[str, str | None]],
        take: Take = no_process,
    ) -> Started:
        """Start the workers of a round.

        Args:
            assignment: this node's part of the round: ranks, master, restart count.
            command: what every worker runs.
            environs: for each local rank, changes to torchrun's environment; None removes a variable.
            take: has a process for a worker; without one it is started.

        Raises:
            Exception: they could not be started. Some may be running: see `unfinished`.
        """
        spec, start = self.spec, assignment.start
        assert isinstance(spec.rdzv_handler, HetRendezvousHandler)
        spec.rdzv_handler.accept(start)
        self._assignment, self._environs = assignment, environs
        spec.entrypoint, spec.args, spec.max_restarts = command.entrypoint, command.args, start.max_restarts
        self._kept, self._take_ahead = {}, take
        # A worker inherits this process's environment as well.
        removed = {name for environ in environs for name, value in environ.items() if value is None}
        with _without(removed):
            started = self.launch(
                start.restart_count, self._take, self._merge if self._merged is not None else None
            )
        self._error_files, self._begun = started.error_files, []
        return Started(
            pids=started.pids,
            error_files=started.error_files,
            stderr_files=started.stderr_files if self._consoles is not None else {},
            stderr_ends={local_rank: kept.stderr.read for local_rank, kept in self._kept.items()},
            outputs={
                local_rank: partial(
                    _output, kept, started.stdout_files[local_rank], started.stderr_files[local_rank]
                )
                for local_rank, kept in self._kept.items()
            },
            met=spec.rdzv_handler.workers,
            catch_up=partial(self._catch_up, self._kept.values()),
            close=partial(self._close, started, self._kept.values()),
        )

    def _take(
        self, local_rank: int, args: tuple[str, ...], env: dict[str, str], stdout: int, stderr: int
    ) -> "subprocess.Popen[bytes] | None":
        kept = self._consoles.open(stdout, stderr) if self._consoles is not None else None
        if kept is not None:
            self._kept[local_rank] = kept
            stdout, stderr = kept.writer(STDOUT, stdout), kept.writer(STDERR, stderr)
        try:
            taken = self._take_ahead(local_rank, Program(args, env), stdout, stderr)
            if taken is None and kept is not None and kept.sources:
                taken = subprocess.Popen(args, env=env, stdout=stdout, stderr=stderr, start_new_session=True)
            if taken is not None:
                self._begun.append(taken)
            return taken
        finally:
            if kept is not None:
                kept.close_writers()

    def _merge(self, out: TextIO, local_ranks: Sequence[int]) -> Any:
        assert self._assignment is not None
        assert self._merged is not None
        return self._merged(out, local_ranks, self._assignment.start.rank_offset, self.prefix)

    def _catch_up(self, kept: Collection[Kept], until: float | None = None) -> bool:
        return self._consoles is None or self._consoles.catch_up(kept, until)

    def unfinished(self) -> Collection[int]:
        """Pids of the processes of a start that failed, known beside their marks; each leads a session of its own."""
        return [process.pid for process in self._begun]

    def forget(self) -> None:
        """Reap the processes of a start that failed, which were killed; torch has forgotten them."""
        for process in self._begun:
            process.poll()
        self._begun = []

    def finish(self, failed: Sequence[Exit], *, succeeded: bool, error: str | None) -> None:
        """Report how this agent ended to whoever listens (torch's events and metrics).

        Args:
            failed: how the workers of the last round ended, if one of them failed by itself.
            succeeded: whether the job did.
            error: what kept the agent from seeing the job to its end; None if nothing did.
        """
        result = None
        if error is None and self._assignment is not None:
            ranks = self.ranks
            failures = {ranks[end.local_rank]: self._failure(end) for end in failed}
            result = RunResult(WorkerState.FAILED, failures=failures)
            if succeeded:
                result = RunResult(WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks.values()))
        self.record_end(self._created_at, result, error)
        if self._consoles is not None:
            self._consoles.hand_over()

    def _failure(self, end: Exit) -> ProcessFailure:
        """torch's record of a failed worker, with what that wrote into its error file if torch can read it."""
        path = self._error_files.get(end.local_rank, "")
        make = partial(ProcessFailure, end.local_rank, end.pid, end.status)
        try:
            return make(path if read_record(path) is not None else "")
        except Exception:  # it is not of torch's format
            return make("")

    def _close(self, started: Processes, kept: Collection[Kept], until: float | None) -> bool:
        started.reap()
        shown = drained(started.stops, until)
        shown = self._catch_up(kept, until) and shown
        if shown:
            started.close_files()
        self.stop_helpers()
        return shown

    # -- what torch's agent asks -----------------------------------------------------------------------------

    def workers(self) -> list[Worker]:
        """The server's ranks: this node's offset plus the local rank."""
        assert self._assignment is not None
        start = self._assignment.start
        return [
            Worker(
                local_rank=local_rank,
                global_rank=start.rank_offset + local_rank,
                role_rank=start.role_offset + local_rank,
                world_size=start.world_size,
                role_world_size=start.role_world_size,
            )
            for local_rank in range(len(self._environs))
        ]

    def complete(self, local_rank: int, env: dict[str, str]) -> None:
        """Add what rooms and the launch want; None removes a variable."""
        for name, value in self._environs[local_rank].items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value


def _output(kept: Kept, stdout_file: str, stderr_file: str) -> tuple[bytes, bytes] | None:
    """The end of what a worker has written; see `Workers.output`."""
    if not kept.sources and not any(map(os.path.exists, filter(None, (stdout_file, stderr_file)))):
        return None
    if STDERR in kept.sources and STDOUT in kept.sources:
        return kept.ends.read(), b""
    if STDERR in kept.sources:
        return tail(stdout_file), kept.ends.read()
    return kept.ends.read() or tail(stdout_file), tail(stderr_file)


@contextlib.contextmanager
def _without(names: set[str]) -> Iterator[None]:
    """Remove variables of this process for the length of a block."""
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
