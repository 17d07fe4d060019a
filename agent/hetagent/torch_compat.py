"""All that hetagent uses of torch's private parts, and every difference between the releases of torch.

One branch per difference, which asks what the installed torch has rather than which number it bears, if that can be
seen. docs/torch.md says what to do about a new release.
"""

import contextlib
import dataclasses
import inspect
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from string import Template
from subprocess import Popen
from types import SimpleNamespace
from typing import Any, TextIO

import torch
import torch.distributed.run
from torch.distributed import TCPStore
from torch.distributed.elastic import events
from torch.distributed.elastic.agent.server import api as server_api
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.metrics import put_metric
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std, SubprocessContext
from torch.distributed.elastic.multiprocessing import api as processes_api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.elastic.utils import macros
from torch.distributed.elastic.utils import store as store_utils

from hetagent.options.model import Streams, TorchrunOptions, UsageError

try:
    from torch.numa import binding as numa
except ImportError:  # before 2.9
    numa = None  # type: ignore[assignment]

VERSION = str(torch.__version__)

RELEASE = tuple(int(number) for number in re.findall(r"\d+", VERSION)[:2])

# -- flags that torch has to support ---------------------------------------------------------------------------

SPEC_FIELDS = frozenset(field.name for field in dataclasses.fields(WorkerSpec))


@dataclass(frozen=True, slots=True)
class Need:
    """What a flag needs of torch.

    Attributes:
        release: the first one with it.
        met: whether the installed torch has it.
    """

    release: str
    met: bool


NEEDS: Mapping[str, Need] = {
    "--event-log-handler": Need("2.8", "event_log_handler" in SPEC_FIELDS),
    "--duplicate-stdout-filters": Need("2.10", "duplicate_stdout_filters" in SPEC_FIELDS),
    "--duplicate-stderr-filters": Need("2.10", "duplicate_stderr_filters" in SPEC_FIELDS),
    "--virtual-local-rank": Need("2.10", "virtual_local_rank" in SPEC_FIELDS),
    # torch 2.9 binds the thread that starts a worker, which would bind no standby; later ones run it with numactl
    "--numa-binding": Need("2.10", hasattr(numa, "_get_validated_logical_cpus_to_bind_to")),
}
"""The flags that not every torch can do; all others are hetagent's own work, or as old as torch 2.6."""


def refuse_what_is_missing(flags: TorchrunOptions, needs: Mapping[str, Need] = NEEDS) -> None:
    """Refuse what was asked for and the installed torch cannot do.

    Raises:
        UsageError: says which release it needs.
    """
    asked = {
        "--event-log-handler": flags.event_log_handler != "null",
        "--duplicate-stdout-filters": flags.duplicate_stdout_filters,
        "--duplicate-stderr-filters": flags.duplicate_stderr_filters,
        "--virtual-local-rank": flags.virtual_local_rank,
        "--numa-binding": flags.numa_binding,
    }
    for flag, need in needs.items():
        if asked[flag] and not need.met:
            raise UsageError(
                f"{flag} needs torch {need.release} or newer, but torch {VERSION} is installed: "
                "upgrade torch, or leave the flag out"
            )


# -- what torch's agent is to run ------------------------------------------------------------------------------


def worker_spec(
    flags: TorchrunOptions, slots: int, handler: RendezvousHandler, entrypoint: str, args: tuple[str, ...]
) -> WorkerSpec:
    """torch's description of the workers; `refuse_what_is_missing` has looked at the flags."""
    mode = flags.numa_binding
    newer: dict[str, Any] = {
        "event_log_handler": flags.event_log_handler,
        "duplicate_stdout_filters": list(flags.duplicate_stdout_filters),
        "duplicate_stderr_filters": list(flags.duplicate_stderr_filters),
        "virtual_local_rank": flags.virtual_local_rank,
        "numa_options": mode and numa.NumaOptions(affinity_mode=numa.AffinityMode(mode)),
    }
    return WorkerSpec(
        role=flags.role,
        local_world_size=slots,
        entrypoint=entrypoint,
        args=args,
        rdzv_handler=handler,
        **{name: value for name, value in newer.items() if name in SPEC_FIELDS},
    )


def changes_the_command(spec: WorkerSpec) -> bool:
    """Whether torch makes the command or the environment of workers itself, so that they cannot be foreseen."""
    return any(getattr(spec, name, None) for name in ("numa_options", "virtual_local_rank"))


def std(streams: Streams) -> Std | dict[int, Std]:
    """torch's word for output streams."""
    if isinstance(streams, dict):
        return {rank: Std(value) for rank, value in streams.items()}
    return Std(streams)


def local_world_size(nproc_per_node: str) -> int:
    """How many workers --nproc-per-node means.

    Raises:
        ValueError: it means nothing, or needs devices that are not here.
    """
    return torch.distributed.run.determine_local_world_size(nproc_per_node)


def substituted(args: Sequence[str], local_rank: int) -> tuple[str, ...]:
    """Arguments with torch's macros filled in."""
    return tuple(macros.substitute(list(args), str(local_rank)))


def find_cpus(mode: str, workers: int) -> None:
    """Find the CPUs to which torch would bind each worker; may initialise CUDA.

    Raises:
        Exception: torch cannot find them.
    """
    find: Any = numa._get_validated_logical_cpus_to_bind_to
    index = "device_index" if "device_index" in inspect.signature(find).parameters else "gpu_index"
    for rank in range(workers):
        find(**{index: rank}, numa_options=numa.NumaOptions(affinity_mode=numa.AffinityMode(mode)))


# -- logs ------------------------------------------------------------------------------------------------------


def logs_specs_class(name: str) -> type[LogsSpecs]:
    """The class that --logs-specs names.

    Raises:
        ValueError: there is none.
    """
    return torch.distributed.run._get_logs_specs_class(name)


class FolderLogs(DefaultLogsSpecs):
    """torch's own log files, with what a subclass needs to arrange them differently."""

    @property
    def run_folder(self) -> str | None:
        """The folder of this run, once `reify` has made one; None if nothing is kept."""
        return None if self._root_log_dir == os.devnull else str(self._run_log_dir)


# -- the round's store -----------------------------------------------------------------------------------------

_VALIDATE, _ADD, _MAGIC = 0, 4, 0x3C85F7CE
"""Of the protocol of TCPStore: two kinds of query, and the word that comes after the first."""

_ANSWER_S = 2.0


def hosted_store(
    host: str, listener: socket.socket, timeout: timedelta, release: tuple[int, ...] = RELEASE
) -> TCPStore:
    """A store that listens on a socket which is open already; takes the socket.

    Only the number tells whether torch's newer kind of store can do that (since 2.8, pytorch#150215): it says so when
    it is asked to, but on the console too. The older kind does the same work with more threads.
    """
    return TCPStore(
        host_name=host,
        port=listener.getsockname()[1],
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        use_libuv=release >= (2, 8),
        master_listen_fd=listener.detach(),
    )


def workers_in(store: tuple[str, int]) -> int | None:
    """How many workers have come to a TCPStore since it was made; None if it does not say.

    Each counts itself there when it opens the store with a world size, as `init_process_group` does; torch's own
    interface does not show the number.

    Args:
        store: its address and port.
    """
    key = b"init/"
    query = struct.pack("=BIBQ", _VALIDATE, _MAGIC, _ADD, len(key)) + key + struct.pack("=q", 0)
    try:
        with socket.create_connection(store, _ANSWER_S) as asked:
            asked.sendall(query)
            answer = asked.recv(8, socket.MSG_WAITALL)
    except OSError:
        return None
    return int(struct.unpack("=q", answer)[0]) if len(answer) == 8 else None


# -- starting workers ------------------------------------------------------------------------------------------

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

    @property
    def copied(self) -> set[str]:
        """The files that are copied from."""
        return {os.path.realpath(path) for tail in self._tails for path in tail._log_files.values()}

    def close_files(self) -> None:
        """Close the files of the output."""
        filtered = (getattr(self._context, name, None) for name in ("filtered_stdout", "filtered_stderr"))
        handlers = self._context.subprocess_handlers.values()
        for file in (*filtered, *(file for one in handlers for file in (one._stdout, one._stderr))):
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


# -- torchrun with our backend ---------------------------------------------------------------------------------

TORCHRUN = (torch.distributed.run.main.__name__, torch.distributed.run.__file__)
"""Name and file of the function that is torchrun."""

AGENT_FILE = server_api.__file__
"""The file of the code that calls a rendezvous handler, with the worker spec in a variable."""

BARRIER_ENTERED, BARRIER_PASSED = (
    server_api._TERMINAL_STATE_SYNC_ID + end
    for end in (store_utils._NUM_MEMBERS, store_utils._LAST_MEMBER_CHECKIN)
)
"""Keys of torch's exit barrier: counted up by every agent whose workers succeeded; set by the last one."""

ROLE_INFO, ASSIGNED_RANKS = "torchelastic/role_info/", "torchelastic/assigned_ranks/"
"""Prefixes of the keys with which torch's agents agree on ranks, followed by a node's group rank: every agent sets the
first, the master's answers with the second (SimpleElasticAgent._assign_worker_ranks)."""


def role_info(group_rank: int, slots: int) -> bytes:
    """What an agent with so many workers sets under `ROLE_INFO`."""
    return server_api._RoleInstanceInfo("", group_rank, slots).serialize()
