"""The agent's run loop: does on this node what the server decides."""

import os
import select
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hetagent.context import Identity
from hetagent.errors import CommandError, PermanentStartError, Starved
from hetagent.health.readiness import Readiness
from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import explained
from hetagent.node.processes import finding as processes
from hetagent.node.processes import signals
from hetagent.node.processes.guardian import Guardian, GuardianError
from hetagent.roundhook import Motion, Room, kept
from hetagent.runloop.account import STOPPING, Account, Spent
from hetagent.runloop.between import Between, Once
from hetagent.runloop.local_round import LocalRound, Phase
from hetagent.runloop.ports import Ports
from hetagent.runloop.shutdown import AtWork, Leaving, Step
from hetagent.session import reports
from hetagent.session.line import LEAVE_S, UNHEARD_LEAVE_S, Line
from hetagent.workers import failures
from hetagent.workers.leftovers import Leftovers
from hetagent.workers.starter import Exit
from hetrdzv.protocol.directive import DirectiveReply, StartReply
from hetrdzv.protocol.facts.causes import Planned
from hetrdzv.protocol.facts.failure import FailureFields
from hetrdzv.protocol.facts.reasons import Ended, Formed, Stalls
from hetrdzv.protocol.settings import DEFAULTS, UNLIMITED_RESTARTS
from hetrdzv.protocol.states import DirectiveKind, ReportKind
from hetrdzv.words.stalls import stall

if TYPE_CHECKING:
    from hetagent.workers.torch_starter import TorchStarter


class _Waking(Protocol):
    """Wakes the loop while its descriptor is readable."""

    def fileno(self) -> int: ...


class Agent:
    """Runs this node's part of a job, every round of which a hetserver decides.

    Args:
        identity: who this agent is.
        line: the connection to the server, not started yet.
        guardian: ends the workers if this process dies, not started yet.
        starter: makes the worker processes.
        ports: the ports that this node offers.
        launch: turns this node's part of a round into a command.
        readiness: whether this node can take part in a round.
        rooms: optional features that have their own work in each round.
        worker_env: what every worker gets beside torchrun's environment.
        stop_timeout_s: seconds between SIGTERM and SIGKILL; None: the group's setting.
        grace_s: how long this node has from a scheduler's signal until it has to be gone (seconds), in which workers
            may save that ask for it; 0: they get the signal at once.
        own_graces_s: the same for signals that come earlier than others (seconds).
        ctrl_c_s: how long workers have at most after Ctrl-C (seconds); None: as long as otherwise.
        tell: shows one line to the person at the terminal.
        secrets: what no failure report may contain.
        signals: on which signals the agent stops its workers and leaves.

    Attributes:
        outcome: the last directive (`exit`); None until it has come.
        last_words: what rooms have to say in the closing block.
        hangs: whether threads are left that the interpreter would wait for: in a look-up of the server's name, or
            writing to a console that nobody reads.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        line: Line,
        guardian: Guardian,
        starter: "TorchStarter",
        ports: Ports,
        launch: Launch,
        readiness: Readiness,
        rooms: Sequence[Room],
        worker_env: Mapping[str, str],
        stop_timeout_s: float | None,
        grace_s: float,
        own_graces_s: Mapping[signal.Signals, float] = {},
        ctrl_c_s: float | None = None,
        tell: Callable[[str], None],
        secrets: Callable[[], Collection[str]] = tuple,
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    ) -> None:
        self.outcome: DirectiveReply | None = None
        self.last_words: list[str] = []
        self.hangs = False
        self._identity = identity
        self._line = line
        self._guardian = guardian
        self._starter = starter
        self._ports = ports
        self._launch = launch
        self._rooms = rooms
        self._worker_env = worker_env
        self._stop_timeout_s = stop_timeout_s
        self._group_stop_timeout_s = DEFAULTS.stop_timeout_s
        self._tell = tell
        self._warn = Once(tell)
        self._secrets = secrets
        self._signals = signals
        self._got_signals: list[int] = []
        self._taken: deque[DirectiveReply] = deque()  # not obeyed yet
        self._woken: socket.socket | None = None  # by a signal, or the end of a child
        self._round = 0  # the newest round that was started here, or over before it was
        self._local: LocalRound | None = None  # this node's part of it
        self._ready_after_stop = False  # join again once the workers are gone
        self._done = False  # the newest round's workers have succeeded, and others still work
        self._said_cause = ""  # what ended the newest round, if the person at the terminal has read that
        self._pids: list[int] = []  # of the newest round's workers
        self._leaving = Leaving(grace_s, own_graces_s, ctrl_c_s)
        self._leftovers = Leftovers(identity.incarnation, tell, partial(kept, rooms))
        self._account = Account(time.monotonic())
        self._left_at: float | None = None  # the server knows then (monotonic seconds)
        self._between = Between(
            node_id=identity.node_id,
            line=line,
            readiness=readiness,
            ports=ports,
            launch=launch,
            foresee=self._foresee,
            tell=tell,
            warn=self._warn,
        )

    @property
    def spent(self) -> Spent:
        """Where this node's time has gone so far, until the server knew that it had left."""
        return self._account.spent(time.monotonic() if self._left_at is None else self._left_at)

    @property
    def round_number(self) -> int:
        """The newest round that this node took part in."""
        return self._round

    @property
    def ended_by(self) -> str:
        """What ended the agent if no `exit` did: the name of a signal, or why this node left by itself."""
        return self._leaving.ended_by

    def status(self, *, fixed: bool) -> int:
        """The exit status; see `statuses.status_of`."""
        return self._leaving.status(self.outcome, fixed=fixed)

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
            error = self._leaving.unfinished(self.outcome)
            self._write_error_file()
        except BaseException:  # Ctrl-C too, where --signals-to-handle leaves SIGINT out
            error = traceback.format_exc()
            raise
        finally:
            failed = self._local.failed if self._local is not None else []
            try:
                self._starter.finish(failed, succeeded=self._succeeded, error=error)
            except Exception as failure:  # an event log must not change how the job ends
                self._tell(f"the end of this agent was not recorded: {type(failure).__name__}: {failure}")

    def _run(self) -> None:
        with signals.noted(self._signals, self._got_signals) as self._woken:
            try:
                self._guardian.pipes = next(filter(None, (room.pipes() for room in self._rooms)), None)
                self._guardian.start()
                self._line.start()
                self._be_ready()
                self._between.prepare()
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
        self._on_rooms(readable)
        self._on_workers()
        self._leave_if(self._between.look())
        self._taken.extend(self._line.take())
        while self._taken:
            self._obey(self._taken.popleft())
        self._on_stopped()

    def _readable(self, timeout_s: float | None) -> list[_Waking]:
        """What has something to say by then (seconds; None: wait for ever)."""
        sources: list[_Waking] = [self._line, self._between.readiness, *self._rooms]
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
        moments = [self._local.due_at() if self._local is not None else None, self._leaving.stop_at]
        due_at = min((moment for moment in moments if moment is not None), default=None)
        return None if due_at is None else max(0.0, due_at - time.monotonic())

    @property
    def _is_over(self) -> bool:
        """Whether nothing is left to do: the outcome is known, or this node leaves, and no worker is left."""
        if self._has_workers or not self._leaves:
            return False
        waits = self._done and self._leaving.stop_at is not None  # or it would end the round of the others
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
        self._between.readiness.close()
        if self._local is not None:
            self._local.stop(signal.SIGTERM, 0.0)
        self._clear_workers()
        if self._local is not None:
            self._local.forgo()  # Ctrl-C in the middle of a start leaves it with what its rooms have made
        goodbye = self._leaving.goodbye(self.outcome)
        for room in self._rooms:
            if not self._leaving.hurried:
                room.say_goodbye(goodbye, self._leaving.stays_until)
            room.close()
        if not self._succeeded:
            self._leftovers.kill_spared()
        self._launch.end()
        leave_s = UNHEARD_LEAVE_S if self._leaving.hurried else LEAVE_S
        if self._leaving.gone_at is not None:
            leave_s = min(leave_s, max(UNHEARD_LEAVE_S, self._leaving.gone_at - time.monotonic()))
        left = self._line.leave(goodbye, leave_s, lambda: bool(self._got_signals))
        self.hangs, self._left_at = self.hangs or not left, time.monotonic()
        for room in self._rooms:
            said = room.leave(self._leaving.gone_at, lambda: self._leaving.hurried or bool(self._got_signals))
            self.last_words += [said] if said else []
        if self._succeeded:  # now that no room has a process any more
            self._leftovers.keep_spared()
        self._ports.close()
        self._line.close()
        # The last thing: if anything above fails, it ends what is left. If the line broke, it says goodbye for us.
        if not self._line.broken:
            self._guardian.dismiss()

    def _write_error_file(self) -> None:
        try:
            self._leaving.write_error_file(self.outcome)
        except OSError as error:
            self._tell(f"cannot write the root cause to {failures.ERROR_FILE}: {error}")

    # -- what happens ----------------------------------------------------------------------------------------

    def _replace_guardian(self) -> None:
        self._tell("the guardian died; starting another one")
        try:
            self._guardian.start()
        except GuardianError as error:
            self._tell(f"{error}; continuing without one")

    def _on_signals(self) -> None:
        while self._got_signals:
            signum = signal.Signals(self._got_signals.pop(0))
            self._leave(self._leaving.got(signum, self._at_work, self._stop_s(), time.monotonic()))

    def _leave(self, step: Step | None) -> None:
        if step is None:
            return
        if step.why:
            self._line.leaving(step.why, step.save_s)
        self._tell(step.text)
        if step.stop is not None:
            self._stop(*step.stop)
        if step.save_s is None:
            self._account.loses(STOPPING, time.monotonic(), self._motion(), planned=True)

    @property
    def _at_work(self) -> AtWork:
        if self._local is None or not self._local.present:
            return AtWork.NONE
        if self._local.stopping:
            return AtWork.STOPPING
        return AtWork.SAVING if any(room.heeds_notice() for room in self._rooms) else AtWork.RUNNING

    def _on_end_of_grace(self) -> None:
        """Stop workers that have not been stopped in time by the end of their round."""
        if self._leaving.time_is_over(time.monotonic()) and self._at_work in (AtWork.RUNNING, AtWork.SAVING):
            self._tell("the time to save is over: stopping the workers")
            self._account.loses(STOPPING, time.monotonic(), self._motion(), planned=True)
            self._stop(signal.SIGTERM, self._stop_s())

    def _on_rooms(self, readable: Collection[_Waking]) -> None:
        """Have those rooms look that have something to look at; start the workers if one has held that back."""
        is_stopping = self._local is not None and self._local.stopping
        for room in self._rooms:
            due_at = None if is_stopping else room.due_at()
            if room in readable or (due_at is not None and time.monotonic() >= due_at):
                room.look()
            if (announcement := room.announces()) is not None:
                step = self._leaving.told(announcement, self._at_work, self._stop_s(), time.monotonic())
                self._leave(step)
        self._start_workers()
        if self._local is not None and (why := self._local.gives_up()):
            self._tell(f"round {self._round} {why}; joining again")
            self._line.offers(stopped=why)
            self._ready_after_stop = True
            self._clear_workers()

    def _on_workers(self) -> None:
        """Report workers that ended by themselves."""
        end = self._local.end() if self._local is not None else None
        if self._local is None or end is None:
            return
        if end.failure is not None:
            text = self._report_failure(self._local, end.failure)
            self._account.loses(text, time.monotonic(), self._local.motion())
            self._stop(signal.SIGTERM, self._stop_s())
        else:
            others = "" if self._local.is_alone else "; waiting for the other nodes"
            self._tell(f"round {self._round}: all local workers succeeded{others}")
            self._account.waits_for_others(time.monotonic(), self._local.motion())
            self._done = True
            said = self._local.report(ReportKind.SUCCEEDED)
            self._line.say(reports.succeeded(self._round, moved=self._local.moved(), **said))
            self._clear_workers(spare_detached=True)

    def _report_failure(self, local: LocalRound, end: Exit) -> str:
        """Report that a worker failed; returns that in a line."""
        failure, text = local.describe(end, self._secrets())
        ended = local.ended_before(end.seen_at)
        self._line.say(reports.failed(self._round, failure, local.moved(), ended), end.seen_at)
        self._tell(f"round {self._round}{self._because(text)}")
        return text

    def _report_before_stop(self, local: LocalRound) -> None:
        """The round is over elsewhere: report what happened here before, which that may have followed from."""
        if (end := local.overtaken()) is not None:
            self._report_failure(local, end)
        elif local.phase is Phase.RUNNING and (ended := local.ended_before(time.monotonic())) is not None:
            self._line.say(reports.ended(self._round, ended))

    def _motion(self) -> Motion | None:
        return self._local.motion() if self._local is not None else None

    def _because(self, cause: str) -> str:
        """What ended the round, to be put after that it is over; empty if that was the last thing that was said."""
        news = cause != self._said_cause
        self._said_cause = cause
        return f": {cause}" if news else ""

    def _obey(self, directive: DirectiveReply) -> None:
        self._group_stop_timeout_s = directive.stop_timeout_s
        starts = directive.kind is DirectiveKind.START and directive.round > self._round
        if starts and self._leaving.ended_by:
            return
        match directive.kind:
            case DirectiveKind.WAIT:
                pass
            case DirectiveKind.START:
                assert directive.start is not None
                if directive.job > 1 and self._round == 0:
                    group = self._identity.group
                    self._tell(
                        f"this is job {directive.job} of group '{group}'; rounds are numbered across jobs"
                    )
                self._warn(directive.warnings or ())
                self._on_start(directive.round, directive.start)
                if directive.round == self._round and isinstance(directive.reason, Stalls | Formed):
                    self._account.hangs(_hang(directive), time.monotonic(), self._motion())
                self._tell_rooms(directive)
            case DirectiveKind.STOP:
                self._tell(f"round {directive.round} is over{self._because(directive.why)}")
                planned = isinstance(directive.reason, Ended) and isinstance(directive.reason.cause, Planned)
                self._account.loses(directive.why, time.monotonic(), self._motion(), planned=planned)
                self._round = max(self._round, directive.round)
                self._ready_after_stop, self._done = True, False
                self._tell_rooms(directive)
                if self._local is not None:
                    self._report_before_stop(self._local)
                    self._local.stop_for_others(signal.SIGTERM, self._stop_s())
            case DirectiveKind.EXIT:
                self.outcome = directive
                self._account.loses(STOPPING, time.monotonic(), self._motion(), planned=True)
                self._tell_rooms(directive)
                self._stop(signal.SIGTERM, self._stop_s())

    def _tell_rooms(self, directive: DirectiveReply) -> None:
        runs = self._local is not None and self._local.present and not self._local.stopping
        if runs or directive.kind is DirectiveKind.EXIT:
            for room in self._rooms:
                room.heard(directive)

    def _on_stopped(self) -> None:
        """Clean up once the workers have ended or their grace is over; then say that we are ready."""
        if self._local is not None and self._local.stopped():
            if (text := self._local.overstayed()) is not None:
                self._tell(f"round {self._round}: {text}")
            self._clear_workers()
        if self._ready_after_stop and not self._has_workers and not self._leaves:
            self._be_ready()

    # -- between rounds --------------------------------------------------------------------------------------

    def _stop_s(self) -> float:
        """How long workers have between SIGTERM and SIGKILL (seconds)."""
        given = self._stop_timeout_s
        stop_s = given if given is not None else self._group_stop_timeout_s
        return self._leaving.stop_s(stop_s, time.monotonic())

    def _stop(self, signum: int, grace_s: float) -> None:
        if self._local is not None:
            self._local.stop(signum, grace_s)

    def _clear_workers(self, *, spare_detached: bool = False) -> None:
        """Take away what is left of the round's processes."""
        if self._local is None or not self._local.present:
            return
        cleared = self._local.clear(spare_detached=spare_detached, until=self._leaving.kill_at)
        self._leftovers.note_stuck(cleared.stuck)
        if spare_detached:
            self._leftovers.spare()
        if not cleared.shown:
            self.hangs = True
            self._tell("nobody reads the workers' output: continuing without waiting for it")
        self._guardian.watch(())

    def _be_ready(self) -> None:
        self._ready_after_stop = False
        if self._local is not None:
            self._local.forgo()
        self._leftovers.kill_spared()
        if stuck := self._leftovers.stuck():
            # They may hold a GPU, a port or a checkpoint: the next round would fail here again, and again.
            self._leave_if(f"its processes cannot be killed: {stuck}")
        else:
            self._leave_if(self._between.begin(self._round, self._pids))

    def _leave_if(self, why: str) -> None:
        """Leave if this node is of no use to the next round."""
        if why:
            self._leaving.because = why
            self._tell(f"leaving, since {why}; check the node before you use it again")

    # -- starting a round ------------------------------------------------------------------------------------

    def _foresee(self) -> None:
        """Have the rooms get ready for the first round, as far as its workers are known."""
        programs = self._starter.foresee(self._launch.forecast, self._environ())
        for room in self._rooms if programs else ():
            room.foresee(programs)

    def _on_start(self, number: int, start: StartReply) -> None:
        if self._has_workers or number < self._round:
            return
        if number == self._round:
            if self._local is not None and not self._ready_after_stop:
                self._local.start_again(start)
                self._start_workers()
            return
        self._round, self._done = number, False
        self._line.offers(stopped="")
        self._between.readiness.rest()
        assignment = Assignment(
            group=self._identity.group,
            node_id=self._identity.node_id,
            round=number,
            start=start,
            script_port=self._ports.script,
            ask=self._line.ask,
            interrupted=lambda: bool(self._taken or self._readable(0.0)),
        )
        if start.restarted_by:
            of = "" if start.max_restarts >= UNLIMITED_RESTARTS else f" of {start.max_restarts}"
            advice = f"; {start.advice}" if start.advice else ""
            self._tell(f"restarting ({start.restart_count}{of}){self._because(start.restarted_by)}{advice}")
            self._account.blames(start.restarted_by)
        self._said_cause = ""
        incarnation = self._identity.incarnation
        self._local = LocalRound(assignment, self._launch, self._starter, incarnation, self._rooms)
        self._tell(f"round {number}: {self._local.place}")
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
            self._leftovers.kill_all(self._starter.unfinished())
            self._starter.forget()
            if not isinstance(error, Exception):  # Ctrl-C, where --signals-to-handle leaves SIGINT out
                raise
            self._clear_workers()
            self._start_failed(local, error)  # it fails the round, not the agent
            return
        finally:
            self._ports.script = local.assignment.script_port
            for note in local.assignment.notes:
                self._tell(note)
            local.assignment.notes.clear()
        if local.present:
            self._account.runs(time.monotonic())
            self._pids = local.pids
            self._guardian.watch(self._pids)
            said = local.report(ReportKind.STARTED)
            self._line.say(reports.started(local.number, moved=local.moved(), **said))

    def _environ(self) -> dict[str, str]:
        steady = {name: value for room in self._rooms for name, value in room.steady(os.environ).items()}
        return {
            **steady,
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
        self._tell(f"round {self._round}: the workers could not be started: {message}")
        failure = FailureFields(
            local_rank=-1,
            rank=-1,
            message=message[: failures.MAX_CHARACTERS],
            permanent=isinstance(error, PermanentStartError),
            final=isinstance(error, Starved),
        )
        self._line.say(reports.failed(self._round, failure))
        self._leave_if(f"it cannot start workers: {message}" if failure.final else "")


def _hang(directive: DirectiveReply) -> str:
    """Who is waited for in the round that runs; empty: nobody."""
    reason = directive.reason
    return f"hanging: {stall(reason.facts)}" if isinstance(reason, Stalls) else ""
