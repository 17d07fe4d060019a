"""Torch's agent without its run loop: it starts the workers of a round, and records how they ended."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from string import Template
from subprocess import Popen
from types import SimpleNamespace
from typing import Any, TextIO

from torch.distributed.elastic import events
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.metrics import put_metric
from torch.distributed.elastic.multiprocessing import LogsSpecs, SubprocessContext
from torch.distributed.elastic.multiprocessing import api as processes_api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

Take = Callable[[int, tuple[str, ...], dict[str, str], int, int], "Popen[bytes] | None"]
"""Asked for a process of a worker: local rank, command, environment, descriptors of stdout and stderr."""

Merge = Callable[[TextIO, Sequence[int]], Any]
"""Asked for a stream in place of the console, for the lines of some local ranks: it has `write`, `mark` and `close`."""

TORCHS_RUN = "SimpleElasticAgent.run"
"""The name under which torch's metrics know the run of an agent."""


class Processes:
    """The processes that torch has started, and the files and threads for their output."""

    def __init__(self, context: SubprocessContext) -> None:
        self._context = context
        self.pids: Mapping[int, int] = context.pids()
        self.error_files: Mapping[int, str] = dict(context.error_files)
        self.stdout_files: Mapping[int, str] = dict(context.stdouts)
        self.stderr_files: Mapping[int, str] = dict(context.stderrs)

    def reap(self) -> None:
        """Reap those that have ended."""
        for handler in self._context.subprocess_handlers.values():
            handler.proc.poll()

    @property
    def _tails(self) -> list[Any]:
        """Whatever copies files to the console or into the filtered files."""
        several: list[Any] | None = getattr(self._context, "_tail_logs", None)
        if several is not None:
            return several
        context: Any = self._context  # before 2.10
        return [context._stdout_tail, context._stderr_tail]

    @property
    def stops(self) -> list[Callable[[], None]]:
        """Each returns when everything that has been written has been copied."""
        return [tail.stop for tail in self._tails]

    def close_files(self) -> None:
        """Close the files of the output."""
        filtered = (getattr(self._context, name, None) for name in ("filtered_stdout", "filtered_stderr"))
        handlers = self._context.subprocess_handlers.values()
        for file in (
            *filtered,
            *(file for handler in handlers for file in (handler._stdout, handler._stderr)),
        ):
            if file is not None:
                file.close()


class ElasticAgent(LocalElasticAgent):
    """torch's agent without its run loop: starts the workers of a round, and records how they ended.

    Args:
        spec: torch's worker spec.
        logs_specs: torch's.
        log_line_prefix_template: torch's; `${hostname}` is filled in here, for releases before 2.14 as well.
    """

    def __init__(self, spec: WorkerSpec, logs_specs: LogsSpecs, log_line_prefix_template: str | None) -> None:
        if log_line_prefix_template is not None:
            hostname = os.uname().nodename
            log_line_prefix_template = Template(log_line_prefix_template).safe_substitute(hostname=hostname)
        self._template = log_line_prefix_template or "[${role_name}${local_rank}]:"
        super().__init__(spec, logs_specs, log_line_prefix_template=log_line_prefix_template)

    # -- for the subclass to say -----------------------------------------------------------------------------

    def workers(self) -> list[Worker]:
        """Who the workers of this round are."""
        raise NotImplementedError

    def complete(self, local_rank: int, env: dict[str, str]) -> None:
        """Change the environment of a worker, which torch has made."""
        raise NotImplementedError

    # -- for the subclass to call ----------------------------------------------------------------------------

    @property
    def spec(self) -> WorkerSpec:
        """What the workers run."""
        return self._worker_group.spec

    @property
    def ranks(self) -> dict[int, int]:
        """The global rank of each local rank in the newest round."""
        return {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}

    def launch(self, restart_count: int, take: Take | None, merge: Merge | None = None) -> Processes:
        """Start the workers, each as a child of this process with a session of its own.

        Args:
            restart_count: how often the group was restarted.
            take: has a process for a worker, or None; without one torch starts it.
            merge: makes what takes the lines of `tee` on their way to the console; None: the console does.
        """
        group = self._worker_group
        self._remaining_restarts = group.spec.max_restarts - restart_count
        try:
            with _no_signal_handlers(), _taking(take), _merging(merge):
                self._initialize_workers(group)
        except BaseException:
            self.stop_helpers()
            raise
        finally:
            self._store = group.store = None  # the handler has it: other references would keep its port taken
        context, self._pcontext = self._pcontext, None
        assert isinstance(context, SubprocessContext), "commands, not functions, are started"
        return Processes(context)

    def prefix(self, rank: str, local_rank: str) -> str:
        """What lines of `tee` begin with on the console if they are of these ranks, as torch would make it of one."""
        made = Template(self._template)
        return made.safe_substitute(role_name=self.spec.role, rank=rank, local_rank=local_rank)

    def stop_helpers(self) -> None:
        """Stop the watchdog and the health check, if torch has started them.

        torch's own `_shutdown` would end the workers too, and in 2.7 and before the rendezvous.
        """
        self._pcontext = None
        for name in ("_worker_watchdog", "_health_check_server"):
            helper = getattr(self, name)
            setattr(self, name, None)
            if helper is not None:
                helper.stop()

    def record_end(self, started_at: float, result: RunResult | None, error: str | None) -> None:
        """Tell torch's events and metrics how this agent ended, as `LocalElasticAgent.run` and `launch_agent` do.

        Args:
            started_at: when it was created (monotonic seconds).
            result: how the workers of the last round ended, if there were any.
            error: what kept the agent from seeing the job to its end; None if nothing did.
        """
        run_s = time.monotonic() - started_at
        self._total_execution_time = int(run_s)
        put_metric(f"{TORCHS_RUN}.{'success' if error is None else 'failure'}", 1)
        put_metric(f"{TORCHS_RUN}.duration.ms", int(1000 * run_s))
        if result is not None:
            self._record_metrics(result)
            self._record_worker_events(result)
        state = "SUCCEEDED" if error is None else "FAILED"  # of the agent, not of the workers
        event = self._construct_event(state, EventSource.AGENT, raw_error=error)
        events.record(event, self._event_log_handler)

    # -- torch's hooks ---------------------------------------------------------------------------------------

    @property
    def _event_log_handler(self) -> str:
        return getattr(self.spec, "event_log_handler", "null")

    def _assign_worker_ranks(self, *_: Any, **__: Any) -> list[Worker]:
        return self.workers()

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """torch calls this once the environments of all workers are complete."""
        for local_rank, env in envs.items():
            self.complete(local_rank, env)
        super()._setup_local_watchdog(envs)

    def _construct_event(self, state: str, source: EventSource, *args: Any, **more: Any) -> Event:
        """torch asks DNS for the host's name, which can take seconds: only if somebody listens to events."""
        if self._event_log_handler == "null":
            return Event(f"torchelastic.worker.status.{state}", source=source)
        return super()._construct_event(state, source, *args, **more)


@contextlib.contextmanager
def _taking(take: Take | None) -> Iterator[None]:
    """Have torch take processes where it would start them, for the length of a block."""
    if take is None:
        yield
        return
    take_one = take

    class Taken(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> "Popen[bytes]":
            stdout = self._stdout.fileno() if self._stdout else 1
            stderr = self._stderr.fileno() if self._stderr else 2
            taken = take_one(self.local_rank_id, args, env, stdout, stderr)
            return taken if taken is not None else super()._popen(args, env)

    with _replaced(processes_api, "get_subprocess_handler", Taken):
        yield


@contextlib.contextmanager
def _merging(merge: Merge | None) -> Iterator[None]:
    """Have torch copy lines to streams of ours instead of the console, for the length of a block."""
    if merge is None:
        yield
        return
    make = merge

    class Merging(processes_api.TailLog):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._merged: Any = None
            if self._log_files and self._dst in (sys.stdout, sys.stderr):
                self._dst = self._merged = make(self._dst, sorted(self._log_files))
                self._log_line_prefixes = {rank: self._merged.mark(rank) for rank in self._log_files}

        def stop(self) -> None:
            super().stop()
            if self._merged is not None:
                self._merged.close()

    with _replaced(processes_api, "TailLog", Merging):
        yield


@contextlib.contextmanager
def _no_signal_handlers() -> Iterator[None]:
    """Keep torch from installing signal handlers, as it does whenever it starts workers: the run loop has its own.

    From 2.10 on a variable says which signals, and none is not among the choices.
    """
    signal = processes_api.signal
    without = SimpleNamespace(**vars(signal) | {"signal": lambda signum, handler: None})
    with _replaced(processes_api, "signal", without):
        yield


@contextlib.contextmanager
def _replaced(module: Any, name: str, by: object) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, by)
    try:
        yield
    finally:
        setattr(module, name, original)
