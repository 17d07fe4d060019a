"""Starts workers with torch's own elastic agent, so that they get everything that torchrun's workers get.

Used of torch's agent: how it starts the workers of a round (environment, macros in arguments, log specs and prefixes,
filtered copies, error files, NUMA binding, virtual local ranks), the watchdog and the health check beside them. Not
used: its run loop, its way of watching and stopping workers, its ranks, its events.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from string import Template
from types import SimpleNamespace
from typing import Any, TextIO

from torch.distributed.elastic.agent.server.api import Worker, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.multiprocessing import LogsSpecs, SubprocessContext
from torch.distributed.elastic.multiprocessing import api as processes_api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from hetagent.launch.base import Assignment, PredictedCommand
from hetagent.launch.command import WorkerCommand
from hetagent.torch_compat.flags import does_torch_alter_command, substitute_macros
from hetagent.workers.output import STDERR, STDOUT, OutputCapture, wait_for_log_copies
from hetagent.workers.starter import StartedWorker, Take, WorkerProgram
from hetagent.workers.store import HetRendezvousHandler
from hetagent.workers.tail import LineTail, format_ranks


class TorchStarter(LocalElasticAgent):
    """Makes the worker processes of this node, round after round; captures what they write if it gets a `capture`."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        log_line_prefix_template: str | None = None,
        capture: OutputCapture | None = None,
        *,
        collapse: bool = False,
    ) -> None:
        if log_line_prefix_template is not None:  # before 2.14 torch does not fill in the host's name
            hostname = os.uname().nodename
            log_line_prefix_template = Template(log_line_prefix_template).safe_substitute(hostname=hostname)
        super().__init__(spec, logs_specs, log_line_prefix_template=log_line_prefix_template)
        self._prefix = Template(log_line_prefix_template or "[${role_name}${local_rank}]:")
        self._assignment: Assignment | None = None  # of the newest round
        self._environs: Sequence[Mapping[str, str | None]] = ()
        self._capture = capture
        self._collapse = collapse
        self._begun: dict[int, StartedWorker] = {}  # by a start that is not over, or has failed
        self._context: SubprocessContext | None = None  # of the round that runs

    @property
    def spec(self) -> WorkerSpec:
        """What the workers run."""
        return self._worker_group.spec

    # -- start -----------------------------------------------------------------------------------------------

    def predict_programs(
        self, predict_command: Callable[[int], PredictedCommand | None], environ: Mapping[str, str]
    ) -> Sequence[WorkerProgram]:
        """What the worker of each local rank will probably run in the first round; empty: only that round will tell."""
        if does_torch_alter_command(self.spec):
            return ()  # the first round must show what it is
        programs = []
        for local_rank in range(self.spec.local_world_size):
            predicted = predict_command(local_rank)
            if predicted is None:
                return ()
            command, changes = predicted
            args = substitute_macros([command.entrypoint, *command.args], local_rank)
            values = {**os.environ, **environ, **changes}
            known = {name: value for name, value in values.items() if value is not None}
            programs.append(WorkerProgram(args, known))
        return programs

    def start(
        self,
        assignment: Assignment,
        command: WorkerCommand,
        environs: Sequence[Mapping[str, str | None]],
        take: Take | None = None,
    ) -> Mapping[int, StartedWorker]:
        """Start the workers of a round, each as a child of this process with a session of its own; by local rank.

        `environs` has changes to torchrun's environment for each local rank; None removes a variable. Where this fails,
        some workers may be running: see `take_failed_start_pids`.
        """
        group, spec, start = self._worker_group, self.spec, assignment.start
        assert isinstance(spec.rdzv_handler, HetRendezvousHandler)
        spec.rdzv_handler.accept_round(start)
        self._assignment, self._environs = assignment, environs
        spec.entrypoint, spec.args, spec.max_restarts = command.entrypoint, command.args, start.max_restarts
        self._remaining_restarts = start.max_restarts - start.restart_count
        try:
            with _no_signal_handlers(), self._use_own_processes(take), self._copy_whole_lines():
                self._initialize_workers(group)
        except BaseException:
            self._stop_helpers()
            raise
        finally:
            self._store = group.store = None  # the handler has it: other references would keep its port taken
        context, self._pcontext = self._pcontext, None
        assert isinstance(context, SubprocessContext), "commands, not functions, are started"
        self._context = context
        workers = {
            local_rank: replace(
                worker,
                error_file=context.error_files.get(local_rank, ""),  # another LogsSpecs may have none
                stdout_file=context.stdouts[local_rank],
                stderr_file=context.stderrs[local_rank],
            )
            for local_rank, worker in self._begun.items()
        }
        self._begun = {}
        return workers

    def take_failed_start_pids(self) -> Collection[int]:
        """Once, the pids of the processes of a start that failed: torch has forgotten them. Each leads a session."""
        begun, self._begun = self._begun, {}
        return [worker.pid for worker in begun.values()]

    def _open_worker(
        self, take: Take | None, local_rank: int, program: WorkerProgram, stdout: int, stderr: int
    ) -> "subprocess.Popen[bytes]":
        """The process of a worker."""
        captured = self._capture.open(stdout, stderr) if self._capture is not None else None
        if captured is not None:
            stdout, stderr = captured.writers.get(STDOUT, stdout), captured.writers.get(STDERR, stderr)
        try:
            process = take(local_rank, program, stdout, stderr) if take is not None else None
            if process is None:
                process = subprocess.Popen(
                    program.args, env=program.environ, stdout=stdout, stderr=stderr, start_new_session=True
                )
            self._begun[local_rank] = StartedWorker(process.pid, captured=captured)
            return process
        finally:
            if captured is not None:
                captured.close_writers()

    # -- end -------------------------------------------------------------------------------------------------

    def wait_for_output(self, until: float | None) -> bool:
        """Wait until then (monotonic seconds) for what has been written by now; False: the console is blocked."""
        return self._capture is None or self._capture.wait_for_output(until)

    def end_round(self, until: float | None) -> None:
        """See `close` of `Workers`."""
        context, self._context = self._context, None
        if context is None:  # something was raised in it, or after it
            return
        handlers = context.subprocess_handlers.values()
        for handler in handlers:
            handler.proc.poll()
        shown = wait_for_log_copies([tail.stop for tail in _list_tails(context)], until)
        shown = self.wait_for_output(until) and shown
        if shown:
            files = [file for handler in handlers for file in (handler._stdout, handler._stderr)]
            files += [getattr(context, name, None) for name in ("filtered_stdout", "filtered_stderr")]
            for file in filter(None, files):
                file.close()
        self._stop_helpers()

    def _stop_helpers(self) -> None:
        """Stop the watchdog and the health check, if torch has started them.

        torch's own `_shutdown` would end the workers too, and in 2.7 and before the rendezvous.
        """
        self._pcontext = None
        for name in ("_worker_watchdog", "_health_check_server"):
            helper = getattr(self, name)
            setattr(self, name, None)
            if helper is not None:
                helper.stop()

    def close(self) -> None:
        """The agent ends: what workers have detached writes on to the console."""
        if self._capture is not None:
            self._capture.hand_over()

    # -- torch's hooks ---------------------------------------------------------------------------------------

    def _assign_worker_ranks(self, *_: Any, **__: Any) -> list[Worker]:
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
            for name, value in self._environs[local_rank].items():
                if value is None:
                    env.pop(name, None)
                else:
                    env[name] = value
        super()._setup_local_watchdog(envs)

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        """An event for nobody: torch asks DNS for the host's name to fill it, which can take seconds."""
        return Event(f"torchelastic.worker.status.{state}", source=source)

    # -- what torch does otherwise while it starts workers ---------------------------------------------------

    def _use_own_processes(self, take: Take | None) -> contextlib.AbstractContextManager[None]:
        """Have torch take our processes: standbys, or such that write to us."""
        begin, environs = partial(self._open_worker, take), self._environs

        class Taken(SubprocessHandler):
            def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> "subprocess.Popen[bytes]":
                for name, value in environs[self.local_rank_id].items():
                    if value is None:  # this process may have it
                        env.pop(name, None)
                stdout = self._stdout.fileno() if self._stdout else STDOUT
                stderr = self._stderr.fileno() if self._stderr else STDERR
                return begin(self.local_rank_id, WorkerProgram(args, env), stdout, stderr)

        return _patch_module(processes_api, "get_subprocess_handler", Taken)

    def _copy_whole_lines(self) -> contextlib.AbstractContextManager[None]:
        """Have a `LineTail` copy to the console what torch's `TailLog` would."""
        assert self._assignment is not None
        offset, role, tail_log = self._assignment.start.rank_offset, self.spec.role, processes_api.TailLog

        def prefix(local_ranks: Collection[int]) -> str:
            rank = format_ranks({offset + each for each in local_ranks})
            return self._prefix.safe_substitute(
                role_name=role, rank=rank, local_rank=format_ranks(local_ranks)
            )

        def make_tail(name: str, files: dict[int, str], out: TextIO, *args: Any, **kwargs: Any) -> Any:
            if files and out in (sys.stdout, sys.stderr):
                return LineTail(files, out, prefix, self._collapse)
            return tail_log(name, files, out, *args, **kwargs)

        return _patch_module(processes_api, "TailLog", make_tail)


def _list_tails(context: Any) -> Sequence[Any]:
    """Whatever copies files to the console or into the filtered files."""
    if hasattr(context, "_tail_logs"):
        tails: Sequence[Any] = context._tail_logs
        return tails
    return [context._stdout_tail, context._stderr_tail]  # before 2.10


def _no_signal_handlers() -> contextlib.AbstractContextManager[None]:
    """Keep torch from installing signal handlers, as it does whenever it starts workers: the run loop has its own.

    From 2.10 on a variable says which signals, and none is not among the choices.
    """
    handle: Callable[..., None] = lambda signum, handler: None  # noqa: E731
    without = SimpleNamespace(**vars(processes_api.signal) | {"signal": handle})
    return _patch_module(processes_api, "signal", without)


@contextlib.contextmanager
def _patch_module(module: Any, name: str, by: object) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, by)
    try:
        yield
    finally:
        setattr(module, name, original)
