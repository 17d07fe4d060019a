"""The agent's run loop: does on this node what the server decides."""

import os
import selectors
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hetagent.job import failures
from hetagent.job.account import STOPPING, Account, Spent
from hetagent.job.local_round import LocalRound
from hetagent.job.network.check import NetworkCheck
from hetagent.job.ports import Ports
from hetagent.job.progress.watching import Watching
from hetagent.job.ready.readiness import Readiness
from hetagent.job.shares import RoundShares
from hetagent.job.workers.leftovers import Leftovers
from hetagent.job.workers.starter import Starter
from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import CommandError, Misfit, NotFound
from hetagent.node.network import NetworkError
from hetagent.node.processes import finding as processes
from hetagent.node.processes import signals
from hetagent.node.processes.guardian import Guardian, GuardianError
from hetagent.protocol import reports
from hetagent.protocol.line import LEAVE_S, UNHEARD_LEAVE_S, Line
from hetrdzv.protocol.settings import DEFAULTS, UNLIMITED_RESTARTS
from hetrdzv.protocol.states import DirectiveKind
from hetrdzv.protocol.wire import DirectiveReply, FailureFields, NoticeReply, StartReply

EXIT_FAILED = 1
"""What the server has an agent exit with for a failure that is not a worker's own (docs/design.md, Agent)."""


class AgentError(RuntimeError):
    """This node cannot continue; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is: what marks its workers as its own."""

    group: str
    node_id: str
    incarnation: str


class Agent:
    """Runs this node's part of a job, every round of which a hetserver decides.

    Args:
        identity: who this agent is.
        line: the connection to the server, not started yet.
        guardian: ends the workers if this process dies, not started yet.
        starter: makes the worker processes.
        ports: the ports that this node offers.
        worker_env: what every worker gets beside torchrun's environment.
        launch: turns this node's part of a round into a command.
        stop_timeout_s: seconds between SIGTERM and SIGKILL; None: the group's setting.
        tell: shows one line to the person at the terminal.
        must_meet: whether it is a failure if workers end well but have not met.
        watching: watches the workers; None: nobody does.
        secrets: what no failure report may contain.
        moved: asked before each `ready`: whether this node has another address to offer now.
        readiness: asked before each `ready`, and while this node waits: whether it can take part in a round.
        network: checks the network before the workers of a round start; None: nobody does.
        notice_signal: what workers get when their round is about to end; None: only the file.
        signals: on which signals the agent stops its workers and leaves.

    Attributes:
        outcome: the last directive (`exit`); None until it has come.
        signum: the signal on which the agent leaves, or None.
        hangs: whether threads are left that the interpreter would wait for: in a look-up of the server's name, or
            writing to a console that nobody reads.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        line: Line,
        guardian: Guardian,
        starter: Starter,
        ports: Ports,
        worker_env: Mapping[str, str],
        launch: Launch,
        stop_timeout_s: float | None,
        tell: Callable[[str], None],
        moved: Callable[[], bool] = lambda: False,
        readiness: Readiness | None = None,
        secrets: Callable[[], Collection[str]] = tuple,
        must_meet: bool = False,
        watching: Watching | None = None,
        network: NetworkCheck | None = None,
        notice_signal: signal.Signals | None = None,
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    ) -> None:
        self.outcome: DirectiveReply | None = None
        self.signum: signal.Signals | None = None
        self.hangs = False
        self._identity = identity
        self._line = line
        self._guardian = guardian
        self._starter = starter
        self._ports = ports
        self._worker_env = worker_env
        self._launch = launch
        self._stop_timeout_s = stop_timeout_s
        self._group_stop_timeout_s = DEFAULTS.stop_timeout_s
        self._tell = tell
        self._moved = moved
        self._readiness = readiness or Readiness()
        self._prepared = False  # the starter has got ready for the first round
        self._offered = False  # the line has been told that the workers are gone
        self._not_ready = ""  # why this node takes part in no round
        self._pids: list[int] = []  # of the newest round's workers
        self._warned: set[str] = set()
        self._secrets = secrets
        self._must_meet = must_meet
        self._watching = watching
        self._network = network
        self._notice_signal = notice_signal
        self._signals = signals
        self._selector = selectors.DefaultSelector()
        self._got_signals: list[int] = []
        self._taken: deque[DirectiveReply] = deque()  # not obeyed yet
        self._round = 0  # the newest round that was started here, or over before it was
        self._local: LocalRound | None = None  # this node's part of it
        self._ready_after_stop = False  # join again once the workers are gone
        self._leftovers = Leftovers(identity.incarnation, tell, starter.kept)
        self._leave_by: float | None = None  # when a signal's grace is over (monotonic seconds)
        self._hurried = False  # a second signal has come
        self._leaves_because = ""  # why this node leaves by itself
        self._account = Account(time.monotonic())

    @property
    def spent(self) -> Spent:
        """Where this node's time has gone so far."""
        return self._account.spent(time.monotonic())

    @property
    def round_number(self) -> int:
        """The newest round that this node took part in."""
        return self._round

    @property
    def ended_by(self) -> str:
        """What ended the agent if no `exit` did: the name of a signal, or why this node left by itself."""
        return self.signum.name if self.signum is not None else self._leaves_because

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
            error = self._unfinished()
            self._write_error_file(error)
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
        with signals.noted(self._signals, self._got_signals) as woken:
            try:
                self._selector.register(woken, selectors.EVENT_READ, woken)
                self._selector.register(self._line, selectors.EVENT_READ, self._line)
                self._selector.register(self._readiness, selectors.EVENT_READ, self._readiness)
                if self._network is not None:
                    self._selector.register(self._network, selectors.EVENT_READ, self._network)
                self._start_guardian()
                self._line.start()
                self._be_ready()
                if not self._readiness.measures:
                    self._prepare()
                while not self._over:
                    for key, _ in self._selector.select(self._timeout_s()):
                        if key.data is woken:
                            woken.recv(4096)
                        elif key.data is self._guardian:
                            self._replace_guardian()
                        elif isinstance(key.data, RoundShares):
                            key.data.look()
                    self._on_signals()
                    self._on_workers()
                    self._on_readiness()
                    self._on_network()
                    self._taken.extend(self._line.take())
                    while self._taken:
                        self._obey(self._taken.popleft())
                    self._on_stopped()
            finally:
                self._shut_down()

    @property
    def _over(self) -> bool:
        """Whether nothing is left to do: the outcome is known, or this node leaves, and no worker is left."""
        return not self._has_workers and (self.outcome is not None or bool(self.ended_by))

    @property
    def _has_workers(self) -> bool:
        return self._local is not None and self._local.present

    def _timeout_s(self) -> float | None:
        due_at = self._local.due_at() if self._local is not None else None
        return None if due_at is None else max(0.0, due_at - time.monotonic())

    def _shut_down(self) -> None:
        """Whatever happened: leave nothing of the workers, say goodbye, give everything back."""
        self._starter.rest()
        self._readiness.close()
        if self._network is not None:
            self._network.close()
        if self._local is not None:
            self._local.stop(signal.SIGTERM, 0.0)
        self._clear_workers()
        if self._succeeded:
            self._leftovers.keep_spared()
        else:
            self._leftovers.kill_spared()
        self._launch.end()
        leave_s = UNHEARD_LEAVE_S if self._hurried else LEAVE_S
        left = self._line.leave(self._goodbye(), leave_s, lambda: bool(self._got_signals))
        self.hangs = self.hangs or not left
        self._ports.close()
        self._selector.close()
        self._line.close()
        # The last thing: if anything above fails, it ends what is left. If the line broke, it says goodbye for us.
        if not self._line.broken:
            self._guardian.dismiss()

    def _goodbye(self) -> str:
        if self.signum is not None:
            return f"its agent got {self.signum.name}"
        if self._leaves_because:
            return self._leaves_because
        return "its agent has finished" if self.outcome is not None else "its agent failed"

    # -- how it ended ------------------------------------------------------------------------------------------

    @property
    def _succeeded(self) -> bool:
        return self.outcome is not None and self.outcome.outcome == "succeeded"

    def _unfinished(self) -> str | None:
        """Why this agent did not see the job to its end; None if it did."""
        if self.signum is not None:
            return f"got {self.signum.name}"
        if (
            self.outcome is not None
            and self.outcome.outcome is None
            and self.outcome.exit_code == EXIT_FAILED
        ):
            return self.outcome.why
        return self._leaves_because or None

    def _write_error_file(self, why: str | None) -> None:
        """Write the root cause, or why this agent did not see the job to its end, for whoever started it."""
        try:
            if self.outcome is not None and self.outcome.root_cause is not None:
                failures.write_root_cause(self.outcome.root_cause)
            elif why is not None and self.signum is None:
                failures.write_error(why, why)
        except OSError as error:
            self._tell(f"cannot write the root cause to {failures.ERROR_FILE}: {error}")

    # -- the guardian ----------------------------------------------------------------------------------------

    def _start_guardian(self) -> None:
        self._guardian.start()
        self._selector.register(self._guardian, selectors.EVENT_READ, self._guardian)

    def _replace_guardian(self) -> None:
        self._tell("the guardian died; starting another one")
        self._selector.unregister(self._guardian)
        try:
            self._start_guardian()
        except GuardianError as error:
            self._tell(f"{error}; continuing without one")

    # -- what happens ----------------------------------------------------------------------------------------

    def _on_signals(self) -> None:
        while self._got_signals:
            signum = self._got_signals.pop(0)
            name = signal.Signals(signum).name
            if self.signum is not None:
                self._hurried = True
                self._leave_by = time.monotonic()
                self._tell(f"got {name} again: killing the workers")
                self._stop(signal.SIGKILL, 0.0)
                continue
            self.signum = signal.Signals(signum)
            self._leave_by = time.monotonic() + self._grace_s()
            self._line.leaving(name)
            if self._local is None or not self._local.present:
                self._tell(f"got {name}: leaving")
            elif self._local.stopping:
                self._tell(f"got {name}: leaving once the workers have stopped; press again to kill them")
            else:
                grace_s = self._grace_s()
                self._tell(
                    f"got {name}: passed on to the workers, which have {grace_s:g} s to stop; "
                    "press again to kill them"
                )
                self._stop(signum, grace_s)
            self._account.loses(STOPPING, time.monotonic())

    def _on_workers(self) -> None:
        """Report workers that ended by themselves."""
        if self._local is None:
            return
        self._local.look_for_asks()
        if (warning := self._local.look()) is not None:
            self._tell(warning)
        if (met := self._local.late()) is not None:
            self._tell(f"round {self._round}: {self._local.meeting(met)}")
            self._line.say(reports.started(self._round, met))
        end = self._local.end()
        if end is None:
            self._on_ready_to_stop(self._local)
            return
        if end.failure is not None:
            failure, text = self._local.describe(end.failure, self._secrets())
            self._line.say(reports.failed(self._round, failure), end.failure.seen_at)
            self._tell(f"round {self._round}: {text}")
            self._account.loses(text, time.monotonic())
            self._stop(signal.SIGTERM, self._grace_s())
        else:
            self._tell(f"round {self._round}: all local workers succeeded; waiting for the others")
            self._account.waits_for_others(time.monotonic())
            met = self._local.met()
            self._line.say(reports.succeeded(self._round, met, must_meet=self._must_meet))
            self._clear_workers(spare_detached=True)

    def _obey(self, directive: DirectiveReply) -> None:
        self._group_stop_timeout_s = directive.stop_timeout_s
        if self.signum is not None and directive.kind is not DirectiveKind.EXIT:
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
                if directive.notice is not None:
                    self._on_notice(directive.notice)
            case DirectiveKind.STOP:
                self._tell(f"round {directive.round} is over: {directive.why}")
                self._account.loses(directive.why, time.monotonic())
                self._round = max(self._round, directive.round)
                self._ready_after_stop = True
                self._keep_stacks(directive)
                if self._local is not None:
                    self._local.stop_for_others(signal.SIGTERM, self._grace_s())
            case DirectiveKind.EXIT:
                self.outcome = directive
                self._account.loses(STOPPING, time.monotonic())
                self._keep_stacks(directive)
                self._stop(signal.SIGTERM, self._grace_s())

    def _on_notice(self, notice: NoticeReply) -> None:
        """The round is about to end: its workers may save before they are stopped."""
        if self._local is None or not self._local.present or self._local.stopping:
            return
        left = f"the workers have {notice.left_s:.0f} s to save"
        self._tell(f"round {self._round} is about to end ({notice.why}): {left}")
        deaf = self._local.notify(notice, self._notice_signal)
        if deaf and self._notice_signal is not None:
            who = f"local rank{'s' if len(deaf) > 1 else ''} {', '.join(map(str, deaf))}"
            name = self._notice_signal.name
            self._tell(f"{name} was not sent to {who}: without a handler it would have killed the worker")

    def _on_ready_to_stop(self, local: LocalRound) -> None:
        """Report that the workers have saved; do not wait for ever for the end of the round."""
        if local.ready_to_stop():
            self._tell(f"round {self._round}: the workers are ready to stop")
            self._line.say(reports.ready_to_stop(self._round))
        elif local.is_forgotten():
            self._tell(
                f"round {self._round} goes on, but the workers here have stopped for its end: joining again"
            )
            self._ready_after_stop = True
            self._clear_workers()

    def _keep_stacks(self, directive: DirectiveReply) -> None:
        """Keep the stacks of workers that hang, for whoever looks into the logs."""
        if (
            directive.hang
            and self._watching is not None
            and self._local is not None
            and not self._local.stopping
        ):
            self._watching.keep_stacks()

    def _on_stopped(self) -> None:
        """Clean up once the workers have ended or their grace is over; then say that we are ready."""
        if self._local is not None and self._local.stopped():
            if (text := self._local.overstayed()) is not None:
                self._tell(f"round {self._round}: {text}")
            self._clear_workers()
        if self._ready_after_stop and not self._has_workers and self.outcome is None and not self.ended_by:
            self._be_ready()

    # -- between rounds --------------------------------------------------------------------------------------

    def _grace_s(self) -> float:
        return self._stop_timeout_s if self._stop_timeout_s is not None else self._group_stop_timeout_s

    def _stop(self, signum: int, grace_s: float) -> None:
        if self._local is not None:
            self._local.stop(signum, grace_s)

    def _clear_workers(self, *, spare_detached: bool = False) -> None:
        """Take away what is left of the round's processes."""
        if self._local is not None and self._local.present:
            shares = self._heard_shares()
            if (
                shares is not None and shares in self._selector.get_map()
            ):  # a first attempt may have failed after it
                self._selector.unregister(shares)
            cleared = self._local.clear(spare_detached=spare_detached, until=self._leave_by)
            self._leftovers.note_stuck(cleared.stuck)
            if spare_detached:
                self._leftovers.spare()
            if not cleared.shown:
                self.hangs = True
                self._tell("nobody reads the workers' output: continuing without waiting for it")
            self._guardian.watch(())

    def _be_ready(self) -> None:
        self._ready_after_stop = False
        if self._network is not None:
            self._network.rest()
        self._leftovers.kill_spared()
        if stuck := self._leftovers.stuck():
            # They may hold a GPU, a port or a checkpoint: the next round would fail here again, and again.
            self._give_up(f"its processes do not die: {stuck}")
            return
        self._offered = False
        self._readiness.ask(self._pids)
        self._on_readiness()

    def _give_up(self, why: str) -> None:
        """Leave, since this node is of no use to the next round."""
        self._leaves_because = why
        self._tell(f"leaving, since {why}; check the node before you use it again")

    def _on_readiness(self) -> None:
        """Join if this node can take part in a round, or say why it cannot."""
        for verdict in self._readiness.take():
            self._warn(verdict.warnings)
            if verdict.fatal:
                self._give_up(verdict.why)
                return
            if verdict.why:
                self._tell(f"this node is not ready: {verdict.why}; asking again until it is")
            elif self._not_ready:
                self._tell("this node is ready")
            self._not_ready = verdict.why
            if self._offered:
                self._line.change_readiness(verdict.why)
            else:
                self._offer()

    def _warn(self, warnings: Iterable[str]) -> None:
        for text in warnings:
            if text not in self._warned:
                self._warned.add(text)
                self._tell(f"warning: {text}")

    def _offer(self) -> None:
        """Join, or ready for the next round: the workers are gone."""
        self._offered = True
        self._launch.end()
        if self._moved():  # the ports are held on an address that is gone
            self._ports.close()
        try:
            port, script_port = self._ports.offer()
        except NetworkError as error:
            raise AgentError(
                f"node '{self._identity.node_id}' cannot offer a port for the next round: {error}"
            ) from None
        self._line.ready(self._round, port, script_port, self._not_ready)
        self._prepare()

    def _prepare(self) -> None:
        """Get ready for the first round, once."""
        if not self._prepared:
            self._prepared = True
            self._starter.prepare(self._launch.forecast, self._environ())

    # -- starting a round ------------------------------------------------------------------------------------

    def _on_start(self, number: int, start: StartReply) -> None:
        if self._has_workers or number < self._round:
            return
        if number == self._round:
            # Another start of the newest round: it brings what the launch could not do without.
            is_checked = self._network is None or not self._network.runs
            if self._local is not None and not self._local.begun and not self._ready_after_stop:
                self._local.assignment.start = start
                if is_checked:
                    self._start_workers(self._local)
            return
        self._round = number
        self._readiness.rest()
        assignment = Assignment(
            group=self._identity.group,
            node_id=self._identity.node_id,
            round=number,
            start=start,
            script_port=self._ports.script,
            ask=self._line.ask,
            interrupted=self._is_wanted,
        )
        self._local = LocalRound(
            assignment,
            self._launch,
            self._starter,
            self._identity.incarnation,
            self._watching,
            self._share,
        )
        if start.restarted_by:
            of = "" if start.max_restarts >= UNLIMITED_RESTARTS else f" of {start.max_restarts}"
            self._tell(f"restarting ({start.restart_count}{of}): {start.restarted_by}")
            self._account.blames(start.restarted_by)
        self._tell(f"round {number}: {self._local.place}")
        network, listener = self._network, self._ports.script
        if network is not None and network.wanted and start.nnodes > 1 and listener is not None:
            network.begin(number, start, listener)
        else:
            self._start_workers(self._local)

    def _on_network(self) -> None:
        """Start the workers once the network of their round was checked."""
        result = self._network.take() if self._network is not None else None
        if result is None:
            return
        if result.line:
            self._tell(f"round {self._round}: {result.line}")
        self._warn(result.warnings)
        is_over = self._ready_after_stop or self.outcome is not None or bool(self.ended_by)
        if self._local is not None and not self._local.begun and not is_over:
            self._start_workers(self._local, result.warnings if self._local.assignment.is_master else ())

    def _share(self, assignment: Assignment) -> RoundShares:
        """The shares of a round, for its workers here."""
        decided = self._watching.decided if self._watching is not None else lambda number, others: None
        return RoundShares(assignment, self._line.ask, self._tell, decided)

    def _heard_shares(self) -> RoundShares | None:
        """The shares of the round, if the kernel says when a worker asks for others."""
        shares = self._local.shares if self._local is not None else None
        return shares if shares is not None and shares.fileno() >= 0 else None

    def _is_wanted(self) -> bool:
        """Whether something has happened that the loop has not looked at yet."""
        return bool(self._taken or self._selector.select(0))

    def _start_workers(self, local: LocalRound, network: Iterable[str] = ()) -> None:
        try:
            begun = local.start(self._environ())
        except BaseException as error:
            # Nobody else knows what was started or taken before it.
            self._leftovers.kill_all(self._starter.unfinished())
            if not isinstance(error, Exception):  # Ctrl-C, where --signals-to-handle leaves SIGINT out
                raise
            self._start_failed(error)  # it fails the round, not the agent
            return
        finally:
            self._ports.script = local.assignment.script_port
            for note in local.assignment.notes:
                self._tell(note)
            local.assignment.notes.clear()
        if begun:
            if (shares := self._heard_shares()) is not None:
                self._selector.register(shares, selectors.EVENT_READ, shares)
            self._account.trains(time.monotonic())
            self._pids = local.pids
            self._guardian.watch(self._pids)
            self._line.say(reports.started(local.number, network="\n".join(network)))

    def _environ(self) -> dict[str, str]:
        return {
            **(self._watching.environ(os.environ) if self._watching is not None else {}),
            **self._worker_env,
            processes.NODE_ID: self._identity.node_id,
            processes.INCARNATION: self._identity.incarnation,
            processes.AGENT_PID: str(os.getpid()),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(signum.name for signum in self._signals),
        }

    def _start_failed(self, error: Exception) -> None:
        """Report it."""
        if self._local is not None:
            self._local.end_shares()
        if self._watching is not None:
            self._watching.end()
        text = str(error) if isinstance(error, CommandError) else f"{type(error).__name__}: {error}"
        message = failures.sendable(text)
        self._tell(f"round {self._round}: the workers could not be started: {message}")
        failure = FailureFields(local_rank=-1, rank=-1, message=message[: failures.MAX_CHARACTERS])
        if isinstance(error, NotFound | Misfit):
            failure = failure.model_copy(update={"permanent": True})
        self._line.say(reports.failed(self._round, failure))
