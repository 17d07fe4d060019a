"""The agent's run loop: does on this node what the server decides."""

import contextlib
import math
import os
import signal
import socket
import time
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hetagent.context import AgentContext
from hetagent.errors import AgentError
from hetagent.health.health_checks import HealthChecks
from hetagent.launch.base import Assignment
from hetagent.node.console import WarnOnce
from hetagent.node.network import NetworkError
from hetagent.node.processes import proctree as processes
from hetagent.node.processes import signals as process_signals
from hetagent.node.processes.guardian_client import Guardian, GuardianError
from hetagent.node.self_pipe import Readable, wait_readable
from hetagent.roundhook import PreemptionNotice
from hetagent.runloop.local_round import LocalRound, RoundPhase
from hetagent.runloop.parts import AgentParts
from hetagent.runloop.shutdown import Shutdown
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import make_round_report
from hetagent.session.session import HURRIED_LEAVE_S, LEAVE_S
from hetagent.workers.failures import describe_start_failure
from hetagent.workers.leftovers import OrphanReaper
from hetagent.workers.starter import WorkerExit
from hetrdzv.protocol.directive import Directive, Start
from hetrdzv.protocol.settings import UNLIMITED_RESTARTS
from hetrdzv.protocol.states import DirectiveKind, ReportKind

if TYPE_CHECKING:
    from hetagent.workers.store import HetRendezvousHandler
    from hetagent.workers.torch_starter import TorchStarter


@dataclass(kw_only=True, eq=False)
class Agent:
    """Runs this node's part of a job, every round of which a hetserver decides."""

    context: AgentContext
    server: ServerConnection  # this and the guardian are not started yet
    guardian: Guardian
    starter: "TorchStarter"
    handler: "HetRendezvousHandler"
    health: HealthChecks
    parts: AgentParts
    outcome: Directive | None = field(default=None, init=False)  # the last directive (`exit`)
    last_words: list[str] = field(default_factory=list, init=False)  # for the closing block
    round_number: int = field(default=0, init=False)  # the newest here, started or over before it was
    shutdown: Shutdown = field(init=False)

    def __post_init__(self) -> None:
        options, self._log, self._launch = self.context.options, self.context.tell, self.context.launch
        self._identity, self._signals = self.context.identity, options.signals
        self.shutdown = Shutdown(options.grace_s, options.own_graces_s)
        self._log_once = WarnOnce(self._log)
        self._got_signals: list[int] = []
        self._orphans = OrphanReaper(self._identity.incarnation, self._log, self.parts.persistent_sessions)
        self._local = LocalRound(self._launch, self.starter, self._orphans, self.parts)
        self._ready_after_stop = False  # join again once the workers are gone
        self._done = False  # the newest round's workers have succeeded, and others still work
        self._logged_cause = ""  # what ended the newest round, once logged
        self._after_round = 0  # the round after which this node joins
        self._script_port: socket.socket | None = None  # until a round uses it
        self._not_ready = ""  # why this node takes part in no round

    # -- the loop --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Join, and do what the server says until it says `exit`, or until a signal arrives."""
        capture = process_signals.capture_signals(self._signals, self._got_signals)
        with contextlib.closing(self.starter), capture as woken:
            try:
                if self.parts.preemption is not None:
                    self.parts.preemption.start()
                self.guardian.start()
                self.server.start()
                self._check_shutdown()
                if not self._is_leaving:
                    self._prepare_join()
                    self._start_predicted_standbys()
                while not self._is_over:
                    self._handle_events(woken)
            finally:
                self._shut_down()
        self.shutdown.write_error_file(self.outcome)

    def _handle_events(self, woken: socket.socket) -> None:
        """Wait for an event, then handle every source in turn; `woken`: by a signal, or the end of a child."""
        moments = [at for at in (self._local.due_at(), self.shutdown.stop_at) if at is not None]
        timeout_s = max(0.0, min(moments) - time.monotonic()) if moments else None
        sources: list[Readable] = [woken, self.server, self.health, self.guardian, *self.parts.hooks]
        sources += [self.parts.preemption] if self.parts.preemption is not None else []
        ready = wait_readable(sources, timeout_s)
        if woken in ready:
            woken.recv(4096)
        if self.guardian in ready:
            self._replace_guardian()
        self._check_shutdown()
        self._run_due_hooks(ready)
        self._report_exits()
        self._handle_health_results()
        for directive in self.server.take_directives():
            self._obey_directive(directive)
        self._finish_stop()

    @property
    def _is_over(self) -> bool:
        """Whether nothing is left to do: the outcome is known, or this node leaves, and no worker is left."""
        if self._local.has_processes or not self._is_leaving:
            return False
        waits = self._done and self.shutdown.stop_at is not None  # or it would end the round of the others
        return self.outcome is not None or not waits

    @property
    def _is_leaving(self) -> bool:
        """Whether this node starts no more rounds."""
        return self.outcome is not None or bool(self.shutdown.ended_by)

    def _shut_down(self) -> None:
        """Whatever happened: clean up the workers, say goodbye, release everything."""
        self.health.close()
        self._local.stop(signal.SIGTERM, 0.0)
        self._clear_workers()
        goodbye, gone_at = self.shutdown.leave_reason(self.outcome), self.shutdown.gone_at
        has_succeeded = self.outcome is not None and self.outcome.outcome == "succeeded"
        snapshots = self.parts.snapshots
        is_hurried = lambda: self.shutdown.hurried or bool(self._got_signals)  # noqa: E731
        self.parts.close()
        if not has_succeeded:
            self._orphans.kill_spared()
        self._launch.end()
        if snapshots is not None and not is_hurried():
            snapshots.hand_over(goodbye, gone_at, is_hurried)
        if snapshots is not None:
            self.last_words += filter(None, [snapshots.leave(gone_at, is_hurried)])
        leave_s = max(HURRIED_LEAVE_S, (gone_at or math.inf) - time.monotonic())
        self.server.leave(goodbye, min(LEAVE_S, leave_s), is_hurried)
        if has_succeeded:  # now that no part has a process any more
            self._orphans.log_spared()
        self.handler.shutdown()
        if self._script_port is not None:
            self._script_port.close()
        self.server.close()
        # Last: the guardian ends what is left if anything above fails, and says goodbye if the connection broke.
        if not self.server.has_crashed:
            self.guardian.dismiss()

    # -- what happens ----------------------------------------------------------------------------------------

    def _replace_guardian(self) -> None:
        self._log("the guardian died; starting another one")
        try:
            self.guardian.start()
        except GuardianError as error:
            self._log(f"{error}; continuing without one")

    def _check_shutdown(self) -> None:
        """Begin to leave if something asks for that; stop workers that have not been stopped in time by the server."""
        while self._got_signals:
            self._begin_shutdown(signal.Signals(self._got_signals.pop(0)))
        notice = self.parts.preemption.read_notice() if self.parts.preemption is not None else None
        if notice is not None and not self.shutdown.ended_by:
            self._begin_shutdown(notice)
        if self.shutdown.must_stop_now(time.monotonic()) and self._local.has_processes:
            self._log("the time to save is over: stopping the workers")
            self._local.stop(signal.SIGTERM, self._stop_grace_s())

    def _begin_shutdown(self, cause: signal.Signals | PreemptionNotice) -> None:
        works = self._local.is_running
        saves = works and self.parts.supports_graceful_stop()
        action = self.shutdown.begin(cause, self._stop_grace_s(), time.monotonic(), works=works, saves=saves)
        if action.why:
            fields = {"message": action.why, "grace_s": action.save_s}
            self.server.announce_leave(make_round_report(ReportKind.LEAVING, self.round_number, **fields))
        self._log(action.text)
        if action.stop is not None:
            self._local.stop(*action.stop)

    def _run_due_hooks(self, ready: Collection[Readable]) -> None:
        """Run the hooks that are due."""
        for hook in self.parts.hooks:
            due_at = None if self._local.is_stopping else hook.due_at()
            if hook in ready or (due_at is not None and time.monotonic() >= due_at):
                hook.on_wakeup()
        if why := self._local.abandon_reason():
            self._log(f"round {self.round_number} {why}; joining again")
            self.server.update_offer(stopped=why)
            self._ready_after_stop = True
            self._clear_workers()

    def _report_exits(self) -> None:
        """Report workers that ended by themselves."""
        if (end := self._local.take_end()) is None:
            return
        if end.failure is not None:
            self._report_failure(end.failure)
            self._local.stop(signal.SIGTERM, self._stop_grace_s())
            return
        others = "" if self._local.assignment.start.nnodes == 1 else "; waiting for the other nodes"
        self._log(f"round {self.round_number}: all local workers succeeded{others}")
        self._done = True
        fields = self.parts.start_check.report_fields() if self.parts.start_check is not None else {}
        self._send_report(ReportKind.SUCCEEDED, **fields)
        self._clear_workers(spare_detached=True)

    def _report_failure(self, end: WorkerExit) -> None:
        """Report that a worker failed."""
        failure, text = self._local.describe_failure(end, self.context.access.secrets())
        ended = self._local.find_successes_before(end.seen_at)
        self._send_report(ReportKind.FAILED, since=end.seen_at, failure=failure, ended=ended)
        self._log(f"round {self.round_number}{self._cause_suffix(text)}")

    def _report_before_stop(self) -> None:
        """The round is over elsewhere: report what happened here before, which that may have followed from."""
        if self._local.phase is not RoundPhase.RUNNING:
            return
        if (end := self._local.find_lingering_failure()) is not None:
            self._report_failure(end)
        elif (ended := self._local.find_successes_before(time.monotonic())) is not None:
            self._send_report(ReportKind.ENDED, ended=ended)

    def _send_report(self, kind: ReportKind, since: float | None = None, **fields: Any) -> None:
        """Report what happened to the workers; `since`: see `ServerConnection.send`."""
        moved = self.parts.monitor.progress_times() if self.parts.monitor is not None else None
        self.server.send(make_round_report(kind, self.round_number, moved=moved, **fields), since)

    def _cause_suffix(self, cause: str) -> str:
        """The suffix that says what ended the round; empty if that was logged last."""
        news = cause != self._logged_cause
        self._logged_cause = cause
        return f": {cause}" if news else ""

    def _obey_directive(self, directive: Directive) -> None:
        match directive.kind:
            case DirectiveKind.START if directive.round > self.round_number and self.shutdown.ended_by:
                pass
            case DirectiveKind.START:
                assert directive.start is not None
                for warning in directive.warnings or ():
                    self._log_once(f"warning: {warning.message}")
                self._on_start(directive.round, directive.start)
                self._notify_hooks(directive)
            case DirectiveKind.STOP if directive.round <= self._after_round:
                pass  # it came as the workers were ending by themselves, and this node has joined since
            case DirectiveKind.STOP:
                self._log(f"round {directive.round} is over{self._cause_suffix(directive.why)}")
                self.round_number = max(self.round_number, directive.round)
                self._ready_after_stop, self._done = True, False
                self._notify_hooks(directive)
                self._report_before_stop()
                self._local.stop_for_others(signal.SIGTERM, self._stop_grace_s())
            case DirectiveKind.EXIT:
                self.outcome = directive
                self._notify_hooks(directive)
                self._local.stop(signal.SIGTERM, self._stop_grace_s())

    def _notify_hooks(self, directive: Directive) -> None:
        if self._local.is_running or directive.kind is DirectiveKind.EXIT:
            for hook in self.parts.hooks:
                hook.on_directive(directive)

    def _finish_stop(self) -> None:
        """Clean up once the workers have ended or their grace is over, then join again."""
        if self._local.has_stopped():
            if (text := self._local.describe_overrun()) is not None:
                self._log(f"round {self.round_number}: {text}")
            self._clear_workers()
        if self._ready_after_stop and not self._local.has_processes and not self._is_leaving:
            self._prepare_join()

    # -- between rounds --------------------------------------------------------------------------------------

    def _stop_grace_s(self) -> float:
        """How long workers have between SIGTERM and SIGKILL (seconds)."""
        given_s = self.context.options.shutdown_timeout_s
        if given_s is None:
            given_s = self.server.session.newest_directive.stop_timeout_s
        return self.shutdown.stop_grace_s(given_s, time.monotonic())

    def _clear_workers(self, *, spare_detached: bool = False) -> None:
        """Clean up what is left of the round, if it is not over here."""
        if self._local.phase is RoundPhase.GONE:
            return
        self._local.clear(spare_detached=spare_detached, until=self.shutdown.kill_at)
        self.guardian.set_sessions(())

    def _prepare_join(self) -> None:
        """Ask whether this node can take part in the next round; its workers are gone."""
        self._ready_after_stop = False
        self._clear_workers()
        self._orphans.kill_spared()
        if stuck := self._orphans.describe_stuck():
            # They may hold a GPU, a port or a checkpoint: the next round would fail here again, and again.
            self._leave_for_good(f"its processes cannot be killed: {stuck}")
            return
        self._after_round = self.round_number
        self.health.start()
        self._handle_health_results()

    def _handle_health_results(self) -> None:
        """Join if this node can take part in a round, leave if it never will, or say why it cannot yet."""
        for result in self.health.take_results():
            if result.fatal:
                self._leave_for_good(result.why)
                return
            if result.why:
                self._log(f"this node is not ready: {result.why}; checking again until it is")
            elif self._not_ready:
                self._log("this node is ready")
            self._not_ready = result.why
            self._join_group()

    def _join_group(self) -> None:
        """Join, or join again: this node is ready after its last round, or `_not_ready` has changed."""
        if (
            loss := self.context.address.describe_address_loss()
        ) and not self.server.session.is_server_away:  # else it may come back
            self._leave_for_good(loss)
            return
        self._launch.end()
        self.handler.close_store()
        try:
            self._script_port = self._script_port or self.context.hold_script_port()
            port = self.handler.offer_port()
        except NetworkError as error:
            who = f"node '{self._identity.node_id}'"
            raise AgentError(f"{who} cannot offer a port for the next round: {error}") from None
        self.server.set_ready(self._after_round, port, self._script_port.getsockname()[1], self._not_ready)

    def _leave_for_good(self, why: str) -> None:
        """Leave: this node cannot take part in another round."""
        self.shutdown.because, self.shutdown.gone_at = why, math.inf
        self._log(f"leaving, since {why}; check the node before you use it again")

    # -- starting a round ------------------------------------------------------------------------------------

    def _start_predicted_standbys(self) -> None:
        """Have standbys made for the first round, as far as its workers are known."""
        standbys, predict = self.parts.standbys, self.starter.predict_programs
        if standbys and (programs := predict(self._launch.predict_command, self._make_worker_env())):
            standbys.start_predicted(programs)

    def _on_start(self, number: int, start: Start) -> None:
        if number == self.round_number:
            waits = self._local.phase is RoundPhase.HELD and not self._is_leaving
            if waits and start != self._local.assignment.start:
                self._local.assignment.start = start  # it brings what the launch could not do without
                self._start_workers()
            return
        self.round_number, self._done = number, False
        self.server.update_offer(stopped="")
        self.health.cancel()
        assignment = Assignment(
            group=self._identity.group,
            node_id=self._identity.node_id,
            round=number,
            start=start,
            script_port=self._script_port,
            ask=self.server.ask,
        )
        if start.restarted_by:
            of = "" if start.max_restarts >= UNLIMITED_RESTARTS else f" of {start.max_restarts}"
            advice = f"; {start.advice}" if start.advice else ""
            cause = self._cause_suffix(start.restarted_by.message)
            self._log(f"restarting ({start.restart_count}{of}){cause}{advice}")
        self._logged_cause = ""
        self._local.begin(assignment)
        self._log(f"round {number}: {self._local.description}")
        self._start_workers()

    def _start_workers(self) -> None:
        """Start the workers of the round, unless the launch waits for another `start`."""
        local = self._local
        try:
            local.start(self._make_worker_env())
        except BaseException as error:
            # Its frames have files open, and there may be no more to be had.
            traceback.clear_frames(error.__traceback__)
            # Nobody else knows what was started or taken before it.
            self._orphans.kill_all(self.starter.take_failed_start_pids())
            if not isinstance(error, Exception):  # Ctrl-C, where --signals-to-handle leaves SIGINT out
                raise
            self._clear_workers()
            failure = describe_start_failure(error)  # it fails the round, not the agent
            self._log(f"round {self.round_number}: the workers could not be started: {failure.message}")
            self._send_report(ReportKind.FAILED, failure=failure)
            if failure.final:
                self._leave_for_good(f"it cannot start workers: {failure.message}")
            return
        finally:
            self._script_port = local.assignment.script_port
            for note in local.assignment.notes:
                self._log(note)
            local.assignment.notes.clear()
        if local.has_processes:
            self.guardian.set_sessions(local.pids)
            self._send_report(ReportKind.STARTED)

    def _make_worker_env(self) -> dict[str, str]:
        return {
            **self.parts.static_env(os.environ),
            **self.context.address.socket_env(os.environ),
            processes.NODE_ID: self._identity.node_id,
            processes.INCARNATION: self._identity.incarnation,
            processes.AGENT_PID: str(os.getpid()),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(signum.name for signum in self._signals),
        }
