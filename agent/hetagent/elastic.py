"""The agent's run loop: torch's LocalElasticAgent, told what to do by the server instead of by its own poll."""

import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.multiprocessing import LogsSpecs

from hetagent import signals
from hetagent.failures import MAX_CHARACTERS, failure_message, sendable
from hetagent.guardian import Guardian, GuardianError
from hetagent.handler import HetRendezvousHandler
from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import CommandError
from hetagent.line import Line
from hetagent.logs import RoundLogsSpecs
from hetagent.network import NetworkError, host_port
from hetagent.workers import Exit, Workers, close_context, kill_all_of
from hetrdzv.wire import DirectiveKind, DirectiveReply, FailureFields

LEAVE_S = 4.0
"""How long the goodbye to the server may take (seconds)."""

UNUSED_SIGNAL = signal.SIGURG
"""torch handles signals anew at every start of workers; this loop does it itself, so torch gets an unused one."""


class AgentError(RuntimeError):
    """This node cannot go on; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is: everything that marks its workers as its own."""

    group: str
    node_id: str
    incarnation: str


@dataclass(slots=True)
class _Stopping:
    """Workers on their way out: what they were sent, and until when they have (monotonic seconds)."""

    signum: int
    grace_s: float
    kill_at: float


@dataclass(frozen=True, slots=True)
class _End:
    """How a round ended here: the first failure, if any, and when that is to be told (monotonic seconds)."""

    failure: Exit | None
    due_at: float


class HetElasticAgent(LocalElasticAgent):
    """An elastic agent whose every round is decided by a hetserver.

    Args:
        spec: torch's worker spec; its handler is a `HetRendezvousHandler`.
        logs_specs: torch's.
        identity: who this agent is.
        line: the connection to the server, not started yet.
        guardian: ends the workers should this process die, not started yet.
        hold_script_port: reserves the port that a script of its own may use; returns the held socket.
        worker_env: what every worker gets beside torchrun's environment.
        launch: how this node's part of a round becomes processes.
        stop_timeout_s: seconds between SIGTERM and SIGKILL; None: the group's.
        tell: shows one line to the person at the terminal.
        moved: asked before each `ready`: whether this node now offers another address.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        *,
        identity: Identity,
        line: Line,
        guardian: Guardian,
        hold_script_port: Callable[[], socket.socket],
        worker_env: Mapping[str, str],
        launch: Launch,
        stop_timeout_s: float | None,
        tell: Callable[[str], None],
        moved: Callable[[], bool] = lambda: False,
        signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
        log_line_prefix_template: str | None = None,
    ) -> None:
        super().__init__(spec, logs_specs, log_line_prefix_template=log_line_prefix_template)
        assert isinstance(spec.rdzv_handler, HetRendezvousHandler)
        self._handler = spec.rdzv_handler
        self._identity = identity
        self._line = line
        self._guardian = guardian
        self._hold_script_port = hold_script_port
        self._script_port: socket.socket | None = None
        self._worker_env = worker_env
        self._launch = launch
        self._assignment: Assignment | None = None  # of the newest round
        self._begun = False  # whether the newest round's processes were started, or could not be
        self._end: _End | None = None  # of its processes, and not told yet
        self._look_at: float | None = None  # when the launch looks at its processes (monotonic seconds)
        self._stop_timeout_s = stop_timeout_s
        self._tell = tell
        self._moved = moved
        self._signals = signals

        self._selector = selectors.DefaultSelector()
        self._got_signals: list[int] = []
        self._taken: deque[DirectiveReply] = deque()  # not obeyed yet
        self._workers: Workers | None = None
        self._stopping: _Stopping | None = None
        self._round = 0  # the newest round whose workers were started, or were to be started
        self._ready_after_stop = False  # a stop was asked for: when the workers are gone, join again
        self._group_stop_timeout_s = 30.0
        self.outcome: DirectiveReply | None = None
        self.signum: signal.Signals | None = None
        self.hangs = False  # a thread hangs in a look-up of the server's name

    # -- the loop --------------------------------------------------------------------------------------------

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        with signals.noted(self._signals, self._got_signals) as wake_read:
            try:
                self._selector.register(wake_read, selectors.EVENT_READ, wake_read)
                self._selector.register(self._line, selectors.EVENT_READ, self._line)
                self._start_guardian()
                self._line.start()
                self._be_ready()
                while not self._over:
                    for key, _ in self._selector.select(self._timeout_s()):
                        if key.data is wake_read:
                            wake_read.recv(4096)
                        elif key.data is self._guardian:
                            self._replace_guardian()
                    self._on_signals()
                    self._on_exits()
                    self._on_time()
                    self._taken.extend(self._line.take())
                    while self._taken:
                        self._obey(self._taken.popleft())
                    self._on_stopped()
            finally:
                self._shutdown()
                self.hangs = not self._line.leave(self._goodbye(), LEAVE_S)
                if not self._line.broken:  # else the guardian notices our end, and says goodbye for us
                    self._guardian.dismiss()
                self._handler.shutdown()
                if self._script_port is not None:
                    self._script_port.close()
                self._selector.close()
                self._line.close()
        return self._final_result()

    @property
    def round_number(self) -> int:
        """The newest round that this node took part in."""
        return self._round

    @property
    def _over(self) -> bool:
        """Whether nothing is left to do: the outcome is known, or we were told to go, and no worker runs."""
        return self._workers is None and (self.outcome is not None or self.signum is not None)

    def _timeout_s(self) -> float | None:
        if self._stopping is not None:
            return max(0.0, self._stopping.kill_at - time.monotonic())
        moments = [self._look_at, self._end.due_at if self._end is not None else None]
        return min((max(0.0, at - time.monotonic()) for at in moments if at is not None), default=None)

    def _goodbye(self) -> str:
        if self.signum is not None:
            return f"its agent got {self.signum.name}"
        return "its agent has finished" if self.outcome is not None else "its agent failed"

    def _final_result(self) -> RunResult:
        if self.outcome is not None and self.outcome.outcome == "succeeded":
            ranks = [worker.global_rank for worker in self._worker_group.workers]
            return RunResult(WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks))
        return RunResult(WorkerState.FAILED)

    def _start_guardian(self) -> None:
        self._guardian.start()
        self._selector.register(self._guardian, selectors.EVENT_READ, self._guardian)

    def _replace_guardian(self) -> None:
        self._tell("the guardian died; another one is started")
        self._selector.unregister(self._guardian)
        try:
            self._start_guardian()
        except (GuardianError, OSError) as error:
            self._tell(f"{error}; going on without one")

    # -- what happens ----------------------------------------------------------------------------------------

    def _on_signals(self) -> None:
        while self._got_signals:
            signum = self._got_signals.pop(0)
            name = signal.Signals(signum).name
            if self.signum is not None:
                self._tell(f"got {name} again: the workers are killed")
                self._stop(signal.SIGKILL, 0.0)
                continue
            self.signum = signal.Signals(signum)
            self._line.leaving(name)
            if self._workers is None:
                self._tell(f"got {name}: leaving")
            elif self._stopping is not None:
                self._tell(f"got {name}: leaving when the workers have stopped; once more kills them")
            else:
                grace_s = self._grace_s()
                self._tell(f"got {name}: the workers get it too and have {grace_s:g} s; once more kills them")
                self._stop(signum, grace_s)

    def _on_exits(self) -> None:
        if self._workers is None:
            return
        ended = self._workers.collect()
        if self._stopping is not None:
            return
        failed = [one for one in ended if not one.succeeded]
        if self._end is None and (failed or not self._workers.running):
            assert self._assignment is not None
            patience_s = self._launch.patience_s(self._assignment, failed=bool(failed))
            first = self._workers.first(failed) if failed else None
            self._end = _End(first, time.monotonic() + patience_s)
        if self._end is None or time.monotonic() < self._end.due_at:
            return
        if self._end.failure is not None:
            self._report_failure(self._end.failure)
            self._stop(signal.SIGTERM, self._grace_s())
        else:
            self._tell(f"round {self._round}: all local workers succeeded; waiting for the others")
            self._line.succeeded(self._round)
            self._finish_workers()

    def _report_failure(self, ended: Exit) -> None:
        assert self._workers is not None
        message = failure_message(
            self._workers.error_files.get(ended.local_rank, ""),
            self._workers.stderr_files.get(ended.local_rank, ""),
            ended.status,
        )
        local_rank, rank, who = ended.local_rank, self._handler.start.rank_offset + ended.local_rank, ""
        if self._launch.one_per_node:
            local_rank, rank, who = -1, -1, "the program of this node"
        failure = FailureFields(
            local_rank=local_rank, rank=rank, exit_code=ended.exit_code, signal=ended.signal, message=message
        )
        self._line.failed(self._round, failure, ended.seen_at)
        how = f"was killed by {ended.signal}" if ended.signal else f"exited with code {ended.exit_code}"
        self._tell(f"round {self._round}: {who or f'rank {rank} (local rank {local_rank})'} {how}")

    def _on_time(self) -> None:
        """Have the launch look at its processes once, some time after their start."""
        if self._look_at is None or time.monotonic() < self._look_at:
            return
        self._look_at = None
        if self._workers is not None and self._pcontext is not None and self._assignment is not None:
            warning = self._launch.look(self._assignment, next(iter(self._pcontext.pids().values())))
            if warning is not None:
                self._tell(warning)

    def _obey(self, directive: DirectiveReply) -> None:
        self._group_stop_timeout_s = directive.stop_timeout_s
        if self.signum is not None and directive.kind is not DirectiveKind.EXIT:
            return
        match directive.kind:
            case DirectiveKind.WAIT:
                pass
            case DirectiveKind.START:
                self._start_round(directive)
            case DirectiveKind.STOP:
                self._tell(f"round {directive.round} is over: {directive.why}")
                self._round = max(self._round, directive.round)
                self._ready_after_stop = True
                self._stop(signal.SIGTERM, self._grace_s())
            case DirectiveKind.EXIT:
                self.outcome = directive
                self._stop(signal.SIGTERM, self._grace_s())

    def _grace_s(self) -> float:
        return self._stop_timeout_s if self._stop_timeout_s is not None else self._group_stop_timeout_s

    def _stop(self, signum: int, grace_s: float) -> None:
        """Ask the workers to end; they are killed after the grace. A second call can only shorten it."""
        if self._workers is None:
            return
        stopping = _Stopping(signum, grace_s, time.monotonic() + grace_s)
        if self._stopping is None:
            self._stopping = stopping
            self._workers.send(signum)
        elif stopping.kill_at < self._stopping.kill_at:
            self._stopping = stopping

    def _on_stopped(self) -> None:
        """Clean up once the workers have ended or their grace has; then say that we are ready."""
        if self._stopping is not None and self._workers is not None:
            self._workers.collect()
            if self._workers.running and time.monotonic() < self._stopping.kill_at:
                return
            if self._workers.running and self._stopping.grace_s > 0:
                name, grace_s = signal.Signals(self._stopping.signum).name, self._stopping.grace_s
                self._tell(
                    f"round {self._round}: workers still run {grace_s:g} s after {name}; they are killed"
                )
            self._finish_workers()
        if self._ready_after_stop and self._workers is None and self.signum is None and self.outcome is None:
            self._be_ready()

    def _finish_workers(self) -> None:
        """Take away what is left of the round's processes."""
        workers, pcontext = self._workers, self._pcontext
        # If that fails they are still ours: `_shutdown` tries again, and then the guardian does.
        stuck = workers.clear() if workers is not None else []
        self._workers, self._stopping, self._pcontext = None, None, None
        self._look_at = self._end = None
        if workers is not None:
            self._tell_stuck(stuck)
            self._guardian.watch(())
        elif pcontext is not None:
            close_context(pcontext)
        super()._shutdown()  # what torch starts beside the workers if asked to: watchdog, health check

    def _tell_stuck(self, stuck: Sequence[int]) -> None:
        if stuck:
            why = "they hang in the kernel, or are not ours to kill"
            self._tell(f"processes {', '.join(map(str, stuck))} do not die ({why}); going on without them")

    def _be_ready(self) -> None:
        self._ready_after_stop = False
        self._launch.end()
        self._handler.release()
        self._store = self._worker_group.store = None  # torch's references to it, which keep its port taken
        if self._moved():  # what is held is bound to an address that is gone
            self._handler.shutdown()
            if self._script_port is not None:
                self._script_port.close()
                self._script_port = None
        try:
            if self._script_port is None:
                self._script_port = self._hold_script_port()
            port = self._handler.offer()
        except NetworkError as error:
            raise AgentError(
                f"node '{self._identity.node_id}' cannot offer a port for the next round: {error}"
            ) from None
        self._line.ready(self._round, port, self._script_port.getsockname()[1])

    def _start_round(self, directive: DirectiveReply) -> None:
        if self._workers is not None or directive.round < self._round:
            return
        if directive.round == self._round:
            self._go_on_with(directive)
            return
        start = self._handler.accept(directive)
        spec = self._worker_group.spec
        self._round = directive.round
        self._assignment = Assignment(
            group=self._identity.group,
            node_id=self._identity.node_id,
            round=directive.round,
            start=start,
            script_port=self._script_port,
            start_daemon=self._line.start_daemon,
            interrupted=self._is_wanted,
        )
        spec.max_restarts = start.max_restarts
        self._remaining_restarts = start.max_restarts - start.restart_count
        last = start.rank_offset + start.slots - 1
        ranks = f"rank {last}" if start.slots == 1 else f"ranks {start.rank_offset} to {last}"
        master = f"{start.master.node_id} ({host_port(start.master.address, start.master.port)})"
        self._tell(
            f"round {directive.round}: {ranks} of {start.world_size}, node {start.group_rank} "
            f"of {start.nnodes}, master {master}, restart {start.restart_count}"
        )
        self._launch_workers(self._assignment)

    def _is_wanted(self) -> bool:
        """Whether something has happened that the loop has not looked at yet."""
        return bool(self._taken or self._selector.select(0))

    def _go_on_with(self, directive: DirectiveReply) -> None:
        """Another start of the newest round: it has what the launch could not do without."""
        if not self._begun and self._assignment is not None and not self._ready_after_stop:
            assert directive.start is not None
            self._assignment.start = directive.start
            self._launch_workers(self._assignment)

    def _launch_workers(self, assignment: Assignment) -> None:
        try:
            self._begun = self._try_to_launch(assignment)
        except (
            Exception
        ) as error:  # whatever keeps workers from starting is the round's failure, not the agent's
            self._begun = True
            self._start_failed(error)
            return
        if self._begun:
            self._line.started(self._round)

    def _try_to_launch(self, assignment: Assignment) -> bool:
        """Returns whether the launch had all that it needs."""
        spec = self._worker_group.spec
        try:
            command = self._launch.begin(assignment)
        finally:
            self._script_port = assignment.script_port
        for note in assignment.notes:
            self._tell(note)
        assignment.notes.clear()
        if command is None:
            return False
        spec.entrypoint, spec.args = command.entrypoint, command.args
        if isinstance(self._logs_specs, RoundLogsSpecs):
            self._logs_specs.capture_stderr = not command.is_python
        self._initialize_workers(self._worker_group)
        if self._launch.look_after_s is not None:
            self._look_at = time.monotonic() + self._launch.look_after_s
        return True

    def _start_failed(self, error: Exception) -> None:
        """Report it, and take away what was started before it: torch forgets these processes."""
        text = str(error) if isinstance(error, CommandError) else f"{type(error).__name__}: {error}"
        message = sendable(text)
        self._tell(f"round {self._round}: the workers could not be started: {message}")
        failure = FailureFields(local_rank=-1, rank=-1, message=message[:MAX_CHARACTERS])
        self._line.failed(self._round, failure, time.monotonic())
        if self._workers is None:
            self._tell_stuck(kill_all_of(self._identity.incarnation))
        self._finish_workers()

    # -- torch's hooks ---------------------------------------------------------------------------------------

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Ranks are the server's: this node's offset and the local rank."""
        start = self._handler.start
        return [
            Worker(
                local_rank=local_rank,
                global_rank=start.rank_offset + local_rank,
                role_rank=start.role_offset + local_rank,
                world_size=start.world_size,
                role_world_size=start.role_world_size,
            )
            for local_rank in range(1 if self._launch.one_per_node else start.slots)
        ]

    def _set_local_rank_env(
        self, worker_env: dict[str, str | None], local_rank: int, spec: WorkerSpec
    ) -> None:
        super()._set_local_rank_env(worker_env, local_rank, spec)
        worker_env.update(self._worker_env)
        worker_env.update(
            HET_RANK_OFFSET=str(self._handler.start.rank_offset),
            HET_ROUND=str(self._round),
            HET_NODE_ID=self._identity.node_id,
            HET_INCARNATION=self._identity.incarnation,
            HET_AGENT_PID=str(os.getpid()),
            TORCHELASTIC_SIGNALS_TO_HANDLE=",".join(signum.name for signum in self._signals),
        )
        assert self._assignment is not None
        for name, value in self._launch.environ(self._assignment, local_rank).items():
            if value is None:  # a process inherits this agent's environment, too
                worker_env.pop(name, None)
                os.environ.pop(name, None)
            else:
                worker_env[name] = value

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with signals.torch_handling(UNUSED_SIGNAL):
            pids = super()._start_workers(worker_group)
        self._workers = Workers(self._pcontext, self._selector, self._identity.incarnation)
        self._guardian.watch(pids.values())
        return pids

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """torch calls this last of all, whatever happened: nothing of the workers may be left."""
        if self._workers is not None:
            self._workers.send(death_sig)
        self._finish_workers()
        self._launch.end()

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
        """torch's events ask DNS for the host's name, which can take seconds: only where somebody listens."""
        if self._worker_group.spec.event_log_handler == "null":
            return Event(f"torchelastic.worker.status.{state}", source=source)
        return super()._construct_event(state, source, worker, raw_error, duration_ms, exit_code, worker_pid)
