"""Starts workers with torch's own elastic agent, so that they get everything that torchrun's workers get.

Used of torch's `LocalElasticAgent`: how it starts the workers of a round (environment, macros in arguments, log specs
and prefixes, filtered copies, error files, NUMA binding, virtual local ranks), the watchdog and the health check beside
them, its events and its metrics. Not used: its run loop, its way of watching and stopping workers, its ranks.

Where a standby fits, torch gets that process instead of a new one. Of torch's ways to start and log workers, private
parts are touched in this module and in `logs.py` only.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TextIO

from torch.distributed.elastic import events, multiprocessing
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.metrics import put_metric
from torch.distributed.elastic.multiprocessing import LogsSpecs, ProcessFailure, SubprocessContext
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.utils import macros

from hetagent.job.failures import read_record
from hetagent.job.logs import RoundLogsSpecs
from hetagent.job.output import Trimmer, drained
from hetagent.job.starter import Exit, Started
from hetagent.job.store import HetRendezvousHandler
from hetagent.launch.base import Assignment, Forecast
from hetagent.launch.command import WorkerCommand
from hetagent.standby.keeper import Standbys
from hetagent.standby.process import Plan

UNUSED_SIGNAL = signal.SIGURG
"""torch installs signal handlers whenever it starts workers; the run loop has its own, so torch gets an idle signal."""

TORCHS_RUN = "SimpleElasticAgent.run"
"""The name under which torch's metrics know the run of an agent."""


class TorchStarter(LocalElasticAgent):
    """A `Starter` that uses torch's agent.

    Args:
        spec: torch's worker spec; its handler is a `HetRendezvousHandler`.
        logs_specs: torch's.
        log_line_prefix_template: torch's.
        standbys: where to take processes that have imported already; None: there are none.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        log_line_prefix_template: str | None = None,
        standbys: Standbys | None = None,
    ) -> None:
        super().__init__(spec, logs_specs, log_line_prefix_template=log_line_prefix_template)
        self._assignment: Assignment | None = None  # of the newest round
        self._environs: Sequence[Mapping[str, str | None]] = ()
        self._error_files: Mapping[int, str] = {}
        self._created_at = time.monotonic()
        self._standbys = standbys

    # -- the starter -----------------------------------------------------------------------------------------

    def prepare(self, forecast: Forecast, environ: Mapping[str, str]) -> None:
        """See `Starter`."""
        spec = self._worker_group.spec
        if self._standbys is None or spec.numa_options is not None or spec.virtual_local_rank:
            return  # torch makes the command or the environment, so the first round must show it
        plans = []
        for local_rank in range(spec.local_world_size):
            foreseen = forecast(local_rank)
            if foreseen is None:
                return
            command, changes = foreseen
            args = macros.substitute([command.entrypoint, *command.args], str(local_rank))
            values = {**os.environ, **environ, **changes}
            plans.append(
                Plan(tuple(args), {name: value for name, value in values.items() if value is not None})
            )
        self._standbys.prepare(plans)

    def start(
        self,
        assignment: Assignment,
        command: WorkerCommand,
        environs: Sequence[Mapping[str, str | None]],
    ) -> Started:
        """See `Starter`."""
        group, spec, start = self._worker_group, self._worker_group.spec, assignment.start
        assert isinstance(spec.rdzv_handler, HetRendezvousHandler)
        spec.rdzv_handler.accept(start)
        self._assignment, self._environs = assignment, environs
        spec.entrypoint, spec.args, spec.max_restarts = command.entrypoint, command.args, start.max_restarts
        self._remaining_restarts = start.max_restarts - start.restart_count
        if isinstance(self._logs_specs, RoundLogsSpecs):
            self._logs_specs.capture_stderr = not command.is_python
        # A worker inherits this process's environment as well.
        removed = {name for environ in environs for name, value in environ.items() if value is None}
        try:
            with (
                _handling_only(UNUSED_SIGNAL),
                _changed_environ(dict.fromkeys(removed)),
                _taking(self._standbys),
            ):
                self._initialize_workers(group)
        except BaseException:
            self._stop_helpers()
            raise
        finally:
            self._store = group.store = None  # the handler has it: other references would keep its port taken
        context, self._pcontext = self._pcontext, None
        assert isinstance(context, SubprocessContext), "commands, not functions, are started"
        self._error_files = dict(context.error_files)
        return Started(
            pids=context.pids(),
            error_files=self._error_files,
            stderr_files=dict(context.stderrs),
            close=partial(self._close, context, self._trimmer()),
        )

    def rest(self) -> None:
        """See `Starter`."""
        if self._standbys is not None:
            self._standbys.close()

    def finish(self, failed: Sequence[Exit], *, succeeded: bool, error: str | None) -> None:
        """See `Starter`. Does what `LocalElasticAgent.run` and torch's `launch_agent` do at the end."""
        run_s = time.monotonic() - self._created_at
        self._total_execution_time = int(run_s)
        put_metric(f"{TORCHS_RUN}.{'success' if error is None else 'failure'}", 1)
        put_metric(f"{TORCHS_RUN}.duration.ms", int(1000 * run_s))
        group = self._worker_group
        if error is None and self._assignment is not None:
            ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
            failures = {ranks[end.local_rank]: self._failure(end) for end in failed}
            result = RunResult(WorkerState.FAILED, failures=failures)
            if succeeded:
                result = RunResult(WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks.values()))
            self._record_metrics(result)
            self._record_worker_events(result)
        state = "SUCCEEDED" if error is None else "FAILED"  # of the agent, not of the workers
        events.record(
            self._construct_event(state, EventSource.AGENT, raw_error=error), group.spec.event_log_handler
        )

    def _failure(self, end: Exit) -> ProcessFailure:
        """torch's record of a failed worker, with what that wrote into its error file if torch can read it."""
        path = self._error_files.get(end.local_rank, "")
        make = partial(ProcessFailure, end.local_rank, end.pid, end.status)
        try:
            return make(path if read_record(path) is not None else "")
        except Exception:  # it is not of torch's format
            return make("")

    def _trimmer(self) -> Trimmer:
        """Of what is captured for our own purposes only."""
        captured = self._logs_specs.captured if isinstance(self._logs_specs, RoundLogsSpecs) else ()
        return Trimmer(frozenset(map(os.path.realpath, captured)))

    def _close(self, context: SubprocessContext, trimmer: Trimmer, until: float | None) -> bool:
        handlers = context.subprocess_handlers.values()
        for handler in handlers:
            handler.proc.poll()
        trimmer.stop()
        tails = context._tail_logs
        copied = {os.path.realpath(path) for tail in tails for path in tail._log_files.values()}
        shown = drained([tail.stop for tail in tails], copied, until)
        files: list[TextIO | None] = [context.filtered_stdout, context.filtered_stderr]
        files += [file for handler in handlers for file in (handler._stdout, handler._stderr)]
        for file in files if shown else ():
            if file is not None:
                file.close()
        self._stop_helpers()
        return shown

    def _stop_helpers(self) -> None:
        """Stop the watchdog and the health check, if torch has started them."""
        self._pcontext = None
        self._shutdown()

    # -- torch's hooks ---------------------------------------------------------------------------------------

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
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

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """torch calls this once the environments of all workers are complete."""
        for local_rank, env in envs.items():
            if self._standbys is not None:
                env.update(self._standbys.environ(local_rank))
            for name, value in self._environs[local_rank].items():
                if value is None:
                    env.pop(name, None)
                else:
                    env[name] = value
        super()._setup_local_watchdog(envs)

    def _construct_event(
        self,
        state: str,
        source: EventSource,
        worker: Worker | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> Event:
        """torch asks DNS for the host's name, which can take seconds: only if somebody listens to events."""
        if self._worker_group.spec.event_log_handler == "null":
            return Event(f"torchelastic.worker.status.{state}", source=source)
        return super()._construct_event(state, source, worker, raw_error, duration_ms, exit_code, worker_pid)


@contextlib.contextmanager
def _taking(standbys: Standbys | None) -> Iterator[None]:
    """Have torch take standbys where it would start processes, for the length of a block."""
    if standbys is None:
        yield
        return
    take = standbys.take

    class Taken(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> "subprocess.Popen[bytes]":
            stdout = self._stdout.fileno() if self._stdout else 1
            stderr = self._stderr.fileno() if self._stderr else 2
            taken = take(self.local_rank_id, Plan(args, env), stdout, stderr)
            return taken if taken is not None else super()._popen(args, env)

    original = multiprocessing.api.get_subprocess_handler
    setattr(multiprocessing.api, original.__name__, Taken)
    try:
        yield
    finally:
        setattr(multiprocessing.api, original.__name__, original)


@contextlib.contextmanager
def _handling_only(signum: signal.Signals) -> Iterator[None]:
    """Have torch handle this signal only, and only for the length of a block."""
    handler = signal.getsignal(signum)
    try:
        with _changed_environ({"TORCHELASTIC_SIGNALS_TO_HANDLE": signum.name}):
            yield
    finally:
        signal.signal(signum, handler)


@contextlib.contextmanager
def _changed_environ(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of this process, or remove them (None), for the length of a block."""
    before = {name: os.environ.get(name) for name in changes}
    _change_environ(changes)
    try:
        yield
    finally:
        _change_environ(before)


def _change_environ(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
