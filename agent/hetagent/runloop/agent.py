"""The agent's run loop: does on this node what the server decides."""

import os
import select
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from hetagent.context import Identity
from hetagent.errors import AgentError, CommandError, PermanentStartError, Starved
from hetagent.health.checks import HealthChecks
from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import explained
from hetagent.node.console import WarnOnce
from hetagent.node.network import NetworkError
from hetagent.node.processes import proctree as processes
from hetagent.node.processes import signals
from hetagent.node.processes.guardian import Guardian, GuardianError
from hetagent.runloop.local_round import LocalRound, Phase
from hetagent.runloop.parts import Parts
from hetagent.runloop.ports import Ports
from hetagent.runloop.shutdown import Shutdown, ShutdownAction, WorkerActivity
from hetagent.session import reports
from hetagent.session.connection import ServerConnection
from hetagent.session.session import HURRIED_LEAVE_S, LEAVE_S
from hetagent.workers import failures
from hetagent.workers.leftovers import OrphanReaper
from hetagent.workers.starter import Exit
from hetrdzv.protocol.directive import Directive, Start
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.settings import DEFAULTS, UNLIMITED_RESTARTS
from hetrdzv.protocol.states import DirectiveKind, ReportKind

if TYPE_CHECKING:
    from hetagent.workers.torch_starter import TorchStarter


class _Waking(Protocol):
    """Wakes the loop while its descriptor is readable."""

    def fileno(self) -> int: ...


class Agent:
    """Runs this node's part of a job, every round of which a hetserver decides.

    Args:
        line, guardian: not started yet.
        worker_env: what every worker gets beside torchrun's environment.
        stop_timeout_s: seconds between SIGTERM and SIGKILL; None: the group's setting.
        shutdown: how this node leaves.
        log: shows one line at the terminal.
        secrets: what no failure report may contain.
        signals: on which signals the agent stops its workers and leaves.

    Attributes:
        outcome: the last directive (`exit`); None until it has come.
        last_words: what parts have to say in the closing block.
        hangs: whether threads are left that the interpreter would wait for: in a look-up of the server's name, or
            writing to a blocked console.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        line: ServerConnection,
        guardian: Guardian,
        starter: "TorchStarter",
        ports: Ports,
        launch: Launch,
        health: HealthChecks,
        parts: Parts,
        worker_env: Mapping[str, str],
        stop_timeout_s: float | None,
        shutdown: Shutdown,
        log: Callable[[str], None],
        secrets: Callable[[], Collection[str]] = tuple,
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    ) -> None:
        self.outcome: Directive | None = None
        self.last_words: list[str] = []
        self.hangs = False
        self._identity = identity
        self._line = line
        self._guardian = guardian
        self._starter = starter
        self._ports = ports
        self._launch = launch
        self._health = health
        self._parts = parts
        self._worker_env = worker_env
        self._stop_timeout_s = stop_timeout_s
        self._group_stop_timeout_s = DEFAULTS.stop_timeout_s
        self._log = log
        self._log_once = WarnOnce(log)
        self._secrets = secrets
        self._signals = signals
        self._got_signals: list[int] = []
        self._directives: deque[Directive] = deque()  # not obeyed yet
        self._woken: socket.socket | None = None  # by a signal, or the end of a child
        self._round = 0  # the newest round that was started here, or over before it was
        self._local: LocalRound | None = None  # this node's part of it
        self._ready_after_stop = False  # join again once the workers are gone
        self._done = False  # the newest round's workers have succeeded, and others still work
        self._logged_cause = ""  # what ended the newest round, once logged
        self._pids: list[int] = []  # of the newest round's workers
        self._shutdown = shutdown
        self._orphans = OrphanReaper(identity.incarnation, log, parts.kept_sessions)
        self._after_round = 0  # the round after which this node joins
        self._joined = False  # since then
        self._not_ready = ""  # why this node takes part in no round
        self._is_predicted = False  # what the workers of the first round will run

    @property
    def round_number(self) -> int:
        """The newest round that this node took part in."""
        return self._round

    @property
    def ended_by(self) -> str:
        """What ended the agent if no `exit` did: the name of a signal, or why this node left by itself."""
        return self._shutdown.ended_by

    def status(self, *, fixed: bool) -> int:
        """The exit status; see `statuses.status_of`."""
        return self._shutdown.status(self.outcome, fixed=fixed)

    # -- the loop --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Join, and do what the server says until it says `exit`, or until a signal arrives.

        Raises:
            AgentError: this node cannot continue.
            GuardianError: the guardian cannot be started.
        """
        error: str | None = None
        try:
            self._run()
            error = self._shutdown.unfinished(self.outcome)
            self._shutdown.write_error_file(self.outcome)
        except BaseException:  # Ctrl-C too, where --signals-to-handle leaves SIGINT out
            error = traceback.format_exc()
            raise
        finally:
            failed = self._local.failed if self._local is not None else []
            try:
                self._starter.finish(failed, succeeded=self._succeeded, error=error)
            except Exception as failure:  # an event log must not change how the job ends
                self._log(f"the end of this agent was not recorded: {type(failure).__name__}: {failure}")

    def _run(self) -> None:
        with signals.noted(self._signals, self._got_signals) as self._woken:
            try:
                snapshots = self._parts.snapshots
                self._guardian.pipes = snapshots.pipes() if snapshots is not None else None
                self._guardian.start()
                self._line.start()
                self._be_ready()
                self._predict()
                while not self._is_over:
                    self._turn()
            finally:
                self._shut_down()

    def _turn(self) -> None:
        """Wait until something happens; then see to everything, each in its turn."""
        readable = self._readable(self._timeout_s())
        if self._woken in readable:
            self._woken.recv(4096)
        if self._guardian in readable:
            self._replace_guardian()
        self._on_signals()
        self._on_end_of_grace()
        self._on_hooks(readable)
        self._on_workers()
        self._on_health()
        self._directives.extend(self._line.take())
        while self._directives:
            self._obey(self._directives.popleft())
        self._on_stopped()

    def _readable(self, timeout_s: float | None) -> list[_Waking]:
        """What has something to say by then (seconds; None: wait for ever)."""
        sources: list[_Waking] = [self._line, self._health, *self._parts.hooks]
        if self._woken is not None:
            sources.append(self._woken)
        if self._guardian.pid is not None:
            sources.append(self._guardian)
        poller = select.poll()
        by_number = {source.fileno(): source for source in sources}
        by_number.pop(-1, None)
        for number in by_number:
            poller.register(number, select.POLLIN)
        ready = poller.poll(None if timeout_s is None else 1000 * timeout_s)
        return [by_number[number] for number, _ in ready]

    def _timeout_s(self) -> float | None:
        moments = [self._local.due_at() if self._local is not None else None, self._shutdown.stop_at]
        due_at = min((moment for moment in moments if moment is not None), default=None)
        return None if due_at is None else max(0.0, due_at - time.monotonic())

    @property
    def _is_over(self) -> bool:
        """Whether nothing is left to do: the outcome is known, or this node leaves, and no worker is left."""
        if self._has_workers or not self._leaves:
            return False
        waits = self._done and self._shutdown.stop_at is not None  # or it would end the round of the others
        return self.outcome is not None or not waits

    @property
    def _leaves(self) -> bool:
        """Whether no other round is to be started here."""
        return self.outcome is not None or bool(self.ended_by)

    @property
    def _has_workers(self) -> bool:
        return self._local is not None and self._local.present

    @property
    def _succeeded(self) -> bool:
        return self.outcome is not None and self.outcome.outcome == "succeeded"

    def _shut_down(self) -> None:
        """Whatever happened: leave nothing of the workers, say goodbye, give everything back."""
        self._health.close()
        if self._local is not None:
            self._local.stop(signal.SIGTERM, 0.0)
        self._clear_workers()
        if self._local is not None:
            self._local.forgo()  # Ctrl-C in the middle of a start leaves it with what hooks have made
        goodbye = self._shutdown.goodbye(self.outcome)
        parts = self._parts
        if not self._shutdown.hurried and parts.snapshots is not None:
            parts.snapshots.say_goodbye(goodbye, self._shutdown.stays_until)
        parts.close()
        if not self._succeeded:
            self._orphans.kill_spared()
        self._launch.end()
        leave_s = HURRIED_LEAVE_S if self._shutdown.hurried else LEAVE_S
        if self._shutdown.gone_at is not None:
            leave_s = min(leave_s, max(HURRIED_LEAVE_S, self._shutdown.gone_at - time.monotonic()))
        left = self._line.leave(goodbye, leave_s, lambda: bool(self._got_signals))
        self.hangs = self.hangs or not left
        if parts.snapshots is not None:
            is_hurried = lambda: self._shutdown.hurried or bool(self._got_signals)  # noqa: E731
            self.last_words += filter(None, [parts.snapshots.leave(self._shutdown.gone_at, is_hurried)])
        if self._succeeded:  # now that no part has a process any more
            self._orphans.keep_spared()
        self._ports.close()
        self._line.close()
        # The last thing: if anything above fails, it ends what is left. If the line broke, it says goodbye for us.
        if not self._line.broken:
            self._guardian.dismiss()

    # -- what happens ----------------------------------------------------------------------------------------

    def _replace_guardian(self) -> None:
        self._log("the guardian died; starting another one")
        try:
            self._guardian.start()
        except GuardianError as error:
            self._log(f"{error}; continuing without one")

    def _on_signals(self) -> None:
        while self._got_signals:
            signum = signal.Signals(self._got_signals.pop(0))
            self._leave(self._shutdown.got(signum, self._activity, self._stop_s(), time.monotonic()))

    def _leave(self, action: ShutdownAction | None) -> None:
        if action is None:
            return
        if action.why:
            self._line.leaving(action.why, action.save_s)
        self._log(action.text)
        if action.stop is not None:
            self._stop(*action.stop)

    @property
    def _activity(self) -> WorkerActivity:
        if self._local is None or not self._local.present:
            return WorkerActivity.NONE
        if self._local.stopping:
            return WorkerActivity.STOPPING
        return WorkerActivity.SAVING if self._parts.supports_graceful_stop() else WorkerActivity.RUNNING

    def _on_end_of_grace(self) -> None:
        """Stop workers that have not been stopped in time by the end of their round."""
        if self._shutdown.time_is_over(time.monotonic()) and self._activity in (
            WorkerActivity.RUNNING,
            WorkerActivity.SAVING,
        ):
            self._log("the time to save is over: stopping the workers")
            self._stop(signal.SIGTERM, self._stop_s())

    def _on_hooks(self, readable: Collection[_Waking]) -> None:
        """Have those parts look that have something to look at; start the workers if one has held that back."""
        is_stopping = self._local is not None and self._local.stopping
        for hook in self._parts.hooks:
            due_at = None if is_stopping else hook.due_at()
            if hook in readable or (due_at is not None and time.monotonic() >= due_at):
                hook.look()
        preemption = self._parts.preemption
        if preemption is not None and (notice := preemption.take()) is not None:
            self._leave(self._shutdown.preempted(notice, self._activity, self._stop_s(), time.monotonic()))
        self._start_workers()
        if self._local is not None and (why := self._local.abandon_reason()):
            self._log(f"round {self._round} {why}; joining again")
            self._line.offers(stopped=why)
            self._ready_after_stop = True
            self._clear_workers()

    def _on_workers(self) -> None:
        """Report workers that ended by themselves."""
        end = self._local.end() if self._local is not None else None
        if self._local is None or end is None:
            return
        if end.failure is not None:
            self._report_failure(self._local, end.failure)
            self._stop(signal.SIGTERM, self._stop_s())
        else:
            others = "" if self._local.is_alone else "; waiting for the other nodes"
            self._log(f"round {self._round}: all local workers succeeded{others}")
            self._done = True
            fields = self._parts.report(ReportKind.SUCCEEDED)
            self._line.send(reports.succeeded(self._round, moved=self._local.moved(), **fields))
            self._clear_workers(spare_detached=True)

    def _report_failure(self, local: LocalRound, end: Exit) -> None:
        """Report that a worker failed."""
        failure, text = local.describe(end, self._secrets())
        ended = local.ended_before(end.seen_at)
        self._line.send(reports.failed(self._round, failure, local.moved(), ended), end.seen_at)
        self._log(f"round {self._round}{self._because(text)}")

    def _report_before_stop(self, local: LocalRound) -> None:
        """The round is over elsewhere: report what happened here before, which that may have followed from."""
        if (end := local.overtaken()) is not None:
            self._report_failure(local, end)
        elif local.phase is Phase.RUNNING and (ended := local.ended_before(time.monotonic())) is not None:
            self._line.send(reports.ended(self._round, ended))

    def _because(self, cause: str) -> str:
        """What ended the round, to be put after that it is over; empty if that was logged last."""
        news = cause != self._logged_cause
        self._logged_cause = cause
        return f": {cause}" if news else ""

    def _obey(self, directive: Directive) -> None:
        self._group_stop_timeout_s = directive.stop_timeout_s
        starts = directive.kind is DirectiveKind.START and directive.round > self._round
        if starts and self._shutdown.ended_by:
            return
        match directive.kind:
            case DirectiveKind.WAIT:
                pass
            case DirectiveKind.START:
                assert directive.start is not None
                if directive.job > 1 and self._round == 0:
                    group = self._identity.group
                    self._log(
                        f"this is job {directive.job} of group '{group}'; rounds are numbered across jobs"
                    )
                self._warn([warning.message for warning in directive.warnings or ()])
                self._on_start(directive.round, directive.start)
                self._pass_on(directive)
            case DirectiveKind.STOP if directive.round <= self._after_round:
                pass  # it came as the workers were ending by themselves, and this node has joined since
            case DirectiveKind.STOP:
                self._log(f"round {directive.round} is over{self._because(directive.why)}")
                self._round = max(self._round, directive.round)
                self._ready_after_stop, self._done = True, False
                self._pass_on(directive)
                if self._local is not None:
                    self._report_before_stop(self._local)
                    self._local.stop_for_others(signal.SIGTERM, self._stop_s())
            case DirectiveKind.EXIT:
                self.outcome = directive
                self._pass_on(directive)
                self._stop(signal.SIGTERM, self._stop_s())

    def _pass_on(self, directive: Directive) -> None:
        runs = self._local is not None and self._local.present and not self._local.stopping
        if runs or directive.kind is DirectiveKind.EXIT:
            for hook in self._parts.hooks:
                hook.on_directive(directive)

    def _on_stopped(self) -> None:
        """Clean up once the workers have ended or their grace is over; then say that we are ready."""
        if self._local is not None and self._local.stopped():
            if (text := self._local.overstayed()) is not None:
                self._log(f"round {self._round}: {text}")
            self._clear_workers()
        if self._ready_after_stop and not self._has_workers and not self._leaves:
            self._be_ready()

    # -- between rounds --------------------------------------------------------------------------------------

    def _stop_s(self) -> float:
        """How long workers have between SIGTERM and SIGKILL (seconds)."""
        given = self._stop_timeout_s
        stop_s = given if given is not None else self._group_stop_timeout_s
        return self._shutdown.stop_s(stop_s, time.monotonic())

    def _stop(self, signum: int, grace_s: float) -> None:
        if self._local is not None:
            self._local.stop(signum, grace_s)

    def _clear_workers(self, *, spare_detached: bool = False) -> None:
        """Take away what is left of the round's processes."""
        if self._local is None or not self._local.present:
            return
        cleared = self._local.clear(spare_detached=spare_detached, until=self._shutdown.kill_at)
        self._orphans.note_stuck(cleared.stuck)
        if spare_detached:
            self._orphans.spare()
        if not cleared.shown:
            self.hangs = True
            self._log("console is blocked; continuing without waiting for the workers' output")
        self._guardian.watch(())

    def _be_ready(self) -> None:
        self._ready_after_stop = False
        if self._local is not None:
            self._local.forgo()
        self._orphans.kill_spared()
        if stuck := self._orphans.stuck():
            # They may hold a GPU, a port or a checkpoint: the next round would fail here again, and again.
            self._leave_if(f"its processes cannot be killed: {stuck}")
            return
        self._after_round, self._joined = self._round, False
        self._health.run(self._pids)
        self._on_health()

    def _on_health(self) -> None:
        """Join if this node can take part in a round, leave if it never will, or say why it cannot yet.

        Raises:
            AgentError: there is no free port.
        """
        for result in self._health.take():
            self._warn(result.warnings)
            if result.fatal:
                self._leave_if(result.why)
                return
            if result.why:
                self._log(f"this node is not ready: {result.why}; checking again until it is")
            elif self._not_ready:
                self._log("this node is ready")
            self._not_ready = result.why
            if self._joined:
                self._line.change_readiness(result.why)
            else:
                self._join()

    def _join(self) -> None:
        self._joined = True
        self._launch.end()
        try:
            port, script_port = self._ports.offer()
        except NetworkError as error:
            who = f"node '{self._identity.node_id}'"
            raise AgentError(f"{who} cannot offer a port for the next round: {error}") from None
        self._line.ready(self._after_round, port, script_port, self._not_ready)
        self._predict()

    def _warn(self, warnings: Iterable[str]) -> None:
        for text in warnings:
            self._log_once(f"warning: {text}")

    def _leave_if(self, why: str) -> None:
        """Leave if this node is of no use to the next round."""
        if why:
            self._shutdown.because = why
            self._log(f"leaving, since {why}; check the node before you use it again")

    # -- starting a round ------------------------------------------------------------------------------------

    def _predict(self) -> None:
        """Have standbys made for the first round, as far as its workers are known; once."""
        standbys = self._parts.standbys
        if self._is_predicted or standbys is None:
            return
        self._is_predicted = True
        if programs := self._starter.predict_programs(self._launch.predict_command, self._environ()):
            standbys.predict(programs)

    def _on_start(self, number: int, start: Start) -> None:
        if self._has_workers or number < self._round:
            return
        if number == self._round:
            if self._local is not None and not self._ready_after_stop:
                self._local.start_again(start)
                self._start_workers()
            return
        self._round, self._done = number, False
        self._line.offers(stopped="")
        self._health.cancel()
        assignment = Assignment(
            group=self._identity.group,
            node_id=self._identity.node_id,
            round=number,
            start=start,
            script_port=self._ports.script,
            ask=self._line.ask,
            interrupted=lambda: bool(self._directives or self._readable(0.0)),
        )
        if start.restarted_by:
            of = "" if start.max_restarts >= UNLIMITED_RESTARTS else f" of {start.max_restarts}"
            advice = f"; {start.advice}" if start.advice else ""
            self._log(
                f"restarting ({start.restart_count}{of}){self._because(start.restarted_by.message)}{advice}"
            )
        self._logged_cause = ""
        incarnation = self._identity.incarnation
        self._local = LocalRound(assignment, self._launch, self._starter, incarnation, self._parts)
        self._log(f"round {number}: {self._local.place}")
        self._start_workers()

    def _start_workers(self) -> None:
        """Start the workers of the round, if it is time for that."""
        local = self._local
        if local is None or not local.startable or self._ready_after_stop or self._leaves:
            return
        try:
            local.start(self._environ())
        except BaseException as error:
            traceback.clear_frames(
                error.__traceback__
            )  # they have files open, and there may be no more to be had
            # Nobody else knows what was started or taken before it.
            self._orphans.kill_all(self._starter.unfinished())
            self._starter.forget()
            if not isinstance(error, Exception):  # Ctrl-C, where --signals-to-handle leaves SIGINT out
                raise
            self._clear_workers()
            self._start_failed(local, error)  # it fails the round, not the agent
            return
        finally:
            self._ports.script = local.assignment.script_port
            for note in local.assignment.notes:
                self._log(note)
            local.assignment.notes.clear()
        if local.present:
            self._pids = local.pids
            self._guardian.watch(self._pids)
            self._line.send(reports.started(local.number, moved=local.moved()))

    def _environ(self) -> dict[str, str]:
        return {
            **self._parts.static_env(os.environ),
            **self._worker_env,
            processes.NODE_ID: self._identity.node_id,
            processes.INCARNATION: self._identity.incarnation,
            processes.AGENT_PID: str(os.getpid()),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(signum.name for signum in self._signals),
        }

    def _start_failed(self, local: LocalRound, error: Exception) -> None:
        """Report it."""
        local.forgo()
        error = explained(error)
        text = str(error) if isinstance(error, CommandError) else f"{type(error).__name__}: {error}"
        message = failures.sendable(text)
        self._log(f"round {self._round}: the workers could not be started: {message}")
        failure = Failure(
            local_rank=-1,
            rank=-1,
            message=message[: failures.MAX_CHARACTERS],
            permanent=isinstance(error, PermanentStartError),
            final=isinstance(error, Starved),
        )
        self._line.send(reports.failed(self._round, failure))
        self._leave_if(f"it cannot start workers: {message}" if failure.final else "")
