"""A model agent: drives the real session as session/connection.py and runloop/agent.py do, with model workers.

`connection.py` is modelled by `turn`, `receive` and `_deliver`, `agent.py` by `_obey` and what it calls. Unlike that
one, this agent does not protect itself against a session that hands out what it should not.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetagent.session.requests import Answer, Request, make_round_report
from hetagent.session.session import LEAVE_S, Session
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import HetError, Problem
from hetrdzv.protocol.requests import JoinRequest
from hetrdzv.protocol.rounds import WorkerFailure
from hetrdzv.protocol.states import DirectiveKind, ReportKind
from tests.sim.snapshots import Snapshots
from tests.sim.store import GROUP
from tests.sim.workers import Fate, Workers, make_workers

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

PREFLIGHT_S = 3.0
"""That of preflight.py."""

FORGOTTEN_S = 5.0
"""That of runloop/notices.py."""

HOPELESS = 0.03
"""Chance that no restart mends a failure."""


class Agent:
    """One agent process.

    Attributes:
        alive: whether its process is there.
        workers: those it started and has not seen the end of.
        ranks: theirs.
        stopping: whether it is stopping them.
    """

    def __init__(self, world: "World", machine: "Machine", incarnation: str) -> None:
        self.world = world
        self.machine = machine
        self.link = machine.link
        self.node_id = machine.node_id
        self.incarnation = incarnation
        self.alive = True
        self.workers: Workers | None = None
        self.round = 0
        self._rng, self._script, self._kindness, self._check, self._grace = (
            random.Random(f"{world.seed}.{name}.{incarnation}")
            for name in ("agent", "script", "kindness", "check", "grace")
        )
        self.ranks: range = range(0)  # of the workers
        self._asked = 0  # counts how often the loop has begun to ask whether its node is ready
        self._not_ready = ""
        offer = JoinRequest(
            incarnation=incarnation,
            port=1,
            slots=machine.slots,
            labels=machine.labels,
            weight=machine.weight,
            address=machine.address,
            spec=world.scenario.spec,
            takes_notice=self._kindness.random() >= world.scenario.deaf,
            ready_within_s=self._check.choice((0.0, 0.0, 2.0)),
        )
        self.session = Session(
            GROUP,
            self.node_id,
            offer,
            random.Random(self._rng.random()),
            connect_timeout_s=world.scenario.connect_timeout_s,
        )
        # the connection
        self._fresh: deque[Directive] = deque()
        self._reached_round = 0  # as ServerConnection: a round's master is tried once
        self._trying = False
        self._newest_told = 0
        self._wakes_at = -1.0
        # the main thread
        self._inbox: deque[Directive] = deque()
        self._busy_until = 0.0
        self.stopping = False
        self._kill_at = 0.0
        self._after = 0  # the round after which it has joined last
        self._ready_after_stop = False
        self._signalled = False
        self._exit_told = False
        self._left = False
        # ports
        self._held = 0
        self._store = 0
        # SIGSTOP
        self._paused = False
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._snapshots = Snapshots(self)
        self._call(self._be_ready)

    # -- the process -----------------------------------------------------------------------------------------

    def _call(self, what: Callable[..., None], *args: Any) -> None:
        """Have something happen in this process: not while it is stopped, nor once it is dead."""
        if not self.alive:
            return
        if self._paused:
            self._backlog.append((what, args))
        else:
            what(*args)
            self.turn()

    def after(self, delay_s: float, what: Callable[..., None], *args: Any) -> None:
        self.world.timeline.at(delay_s, self._call, what, *args)

    def pause(self) -> None:
        """SIGSTOP; its workers run on."""
        self._paused = True

    def resume(self) -> None:
        """SIGCONT: everything that came meanwhile is found."""
        self._paused = False
        backlog, self._backlog = self._backlog, []
        for what, args in backlog:
            self._call(what, *args)
        if self.alive:
            self.turn()

    def die(self) -> None:
        """The process is gone, with its sockets."""
        self.alive = False
        self.world.listening -= {self._held, self._store}

    @property
    def now(self) -> float:
        return self.world.timeline.now

    def _report(self, kind: ReportKind, number: int, **fields: Any) -> None:
        self.session.send(make_round_report(kind, number, **fields), self.now)

    # -- the connection --------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """What connection.py does after anything happened."""
        if not self.alive or self._paused:
            return
        session, now = self.session, self.now
        for request in session.take_requests(now):
            self.world.network.send(self, request)
        for notice in session.take_log_lines():
            self.world.checks.say(self.node_id, f"notices: {notice}")
        fresh = session.take_directives()
        if fresh:
            self._fresh.extend(fresh)
            self._deliver()
        if session.finished and self._left:
            self._exit()
            return
        wakeup = session.next_wakeup()
        if wakeup is not None and (wakeup < self._wakes_at or self._wakes_at <= now):
            self._wakes_at = max(wakeup, now)
            self.after(self._wakes_at - now, self._wake, self._wakes_at)

    def _wake(self, moment: float) -> None:
        if self._wakes_at == moment:
            self._wakes_at = -1.0

    def receive(self, request: Request, answer: Answer) -> None:
        self._call(self._received, request, answer)

    def _received(self, request: Request, answer: Answer) -> None:
        told: object = answer
        if isinstance(answer, Problem):
            told = answer.body.get("directive")
        match told:
            case Directive(kind="start" | "stop", round=number) | {
                "kind": "start" | "stop",
                "round": int(number),
            }:
                self._newest_told = max(self._newest_told, number)
        if isinstance(answer, HetError):
            self.world.checks.say(self.node_id, f"{request.route} fails: {answer}")
        self.session.on_response(request, answer, self.now)

    def _deliver(self) -> None:
        """Hand directives over in order; a start only once its master has been reached."""
        while self._fresh and not self._trying:
            directive = self._fresh.popleft()
            start = directive.start
            if (
                start is None
                or start.master.node_id == self.node_id
                or directive.round == self._reached_round
            ):
                self._hand_over(directive)
            elif not self._fresh:
                self._trying = True
                self._try_master(directive, self.now + PREFLIGHT_S)

    def _try_master(self, directive: Directive, until: float) -> None:
        start = directive.start
        assert start is not None
        if not self._fresh:
            if self.world.reaches(self.machine, start.master.port):
                self._reached_round = directive.round
                self._hand_over(directive)
            elif self.now < until:
                self.after(0.3, self._try_master, directive, until)
                return
            else:
                self.world.note("master unreachable")
                number, why = directive.round, "timed out"
                self._report(ReportKind.MASTER_UNREACHABLE, number, message=why)
        self._trying = False
        self._deliver()

    def _hand_over(self, directive: Directive) -> None:
        self._inbox.append(directive)
        self.after(self._rng.uniform(0, 0.02) * self.link.slow, self._main)

    # -- the main thread -------------------------------------------------------------------------------------

    def _main(self) -> None:
        now = self.now
        if now < self._busy_until:
            self.after(self._busy_until - now, self._main)
        elif self._inbox:
            self._obey(self._inbox.popleft())
            self.after(0.0, self._main)

    def _obey(self, directive: Directive) -> None:
        if self._signalled and directive.kind is DirectiveKind.START and directive.round > self.round:
            return
        self.world.checks.say(
            self.node_id, f"obeys {directive.kind} {directive.round} ({directive.code}: {directive.why})"
        )
        match directive.kind:
            case DirectiveKind.START if directive.round == self.round:
                self._heed(directive)
            case DirectiveKind.START:
                self._start(directive)
            case DirectiveKind.STOP if directive.round <= self._after:
                pass
            case DirectiveKind.STOP:
                self.round = max(self.round, directive.round)
                self._ready_after_stop = True
                self._stop(directive.stop_timeout_s)
            case DirectiveKind.EXIT:
                self._exit_told = True
                self._stop(directive.stop_timeout_s)

    def _start(self, directive: Directive) -> None:
        world, scenario = self.world, self.world.scenario
        world.checks.acts_on_start(self.node_id, self.incarnation, directive, self._newest_told)
        assert directive.start is not None
        self.round = directive.round
        self._asked += 1
        self._snapshots.starts(directive)
        if directive.start.master.node_id == self.node_id:
            self._store, self._held = self._held, 0
        if not world.calm and self._rng.random() < scenario.fails / 5:
            world.checks.worker_failed(self.node_id, self.round, "cannot be started")
            failure = WorkerFailure(local_rank=-1, rank=-1, message="no such file")
            self._report(ReportKind.FAILED, self.round, failure=failure)
            return
        workers = make_workers(
            self.node_id, self.incarnation, self.round, self._rng, scenario, calm=world.calm
        )
        first = directive.start.rank_offset
        self.ranks = range(first, first + directive.start.slots)
        launch_s = self._rng.uniform(0.02, 0.4) * self.link.slow
        self._busy_until = world.timeline.now + launch_s
        self.workers, self.stopping = workers, False
        world.workers_start(self.machine, workers)
        self.after(launch_s, self._launched, workers)

    def _heed(self, directive: Directive) -> None:
        """News of the round; if it is about to end, workers may save, say so, and go on or exit."""
        workers, told = self.workers, directive.notice
        takes_notice = self.session.offer.takes_notice
        self.world.checks.heeds(self.node_id, self.incarnation, directive, takes_notice=takes_notice)
        if (
            workers is None
            or self.stopping
            or told is None
            or self._kindness.random() >= self.world.scenario.saves
        ):
            return
        exits = self._kindness.random() < 0.5
        self.after(self._kindness.uniform(0.01, 1.3 * told.left_s + 0.02), self._saved, workers, exits)
        self.after(told.left_s + FORGOTTEN_S, self._forgotten, workers)

    def _saved(self, workers: Workers, exits: bool) -> None:
        if workers is self.workers and not self.stopping and workers.alive and not workers.failed:
            self.world.note("workers have saved")
            self._report(ReportKind.READY_TO_STOP, workers.round)
            if exits:
                self.world.workers_saved(self.machine, workers)

    def _forgotten(self, workers: Workers) -> None:
        """They have ended for a stop that does not come."""
        if workers is self.workers and not workers.alive and not self.stopping:
            self.world.note("stop was forgotten")
            self._ready_after_stop = True
            self._workers_gone()

    def _launched(self, workers: Workers) -> None:
        self._report(ReportKind.STARTED, workers.round)
        self._snapshots.launched(workers)
        match workers.fate:
            case Fate.FAIL:
                self.world.timeline.at(workers.after_s, self.world.worker_fails, workers, "by itself")
            case Fate.SUCCEED:
                self.world.timeline.at(workers.after_s, self.world.workers_succeed, self.machine, workers)

    def worker_failed(self, workers: Workers) -> None:
        self._call(self._see_failure, workers)

    def _see_failure(self, workers: Workers) -> None:
        if workers is not self.workers or self.stopping:
            return
        failure = WorkerFailure(local_rank=0, rank=0, exit_code=1, message="Traceback: boom")
        if self._script.random() < HOPELESS:
            self.world.note("script is hopeless")
            failure = replace(failure, permanent=True)
        self._report(ReportKind.FAILED, workers.round, failure=failure)
        self._stop(self.world.stop_timeout_s)

    def workers_succeeded(self, workers: Workers) -> None:
        self._call(self._see_success, workers)

    def _see_success(self, workers: Workers) -> None:
        if workers is self.workers and not self.stopping:
            met = self._script.choice((None, None, 0, 1, 1000))
            must_meet = self._script.random() < 0.1
            self._report(ReportKind.SUCCEEDED, workers.round, met=met, must_meet=must_meet)
            self._workers_gone()

    # -- stopping --------------------------------------------------------------------------------------------

    def _stop(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after the grace."""
        workers = self.workers
        if workers is None:
            self._on_stopped()
        elif not workers.alive:
            self._workers_gone()
        elif not self.stopping:
            self.stopping = True
            if workers.term_s is not None and workers.term_s < grace_s:
                self.world.timeline.at(workers.term_s, self._workers_end, workers, "SIGTERM")
            self.after(grace_s, self._workers_end, workers, "SIGKILL")

    def _workers_end(self, workers: Workers, how: str) -> None:
        self.world.workers_end(self.machine, workers, how)
        self._call(self._see_end, workers)

    def _see_end(self, workers: Workers) -> None:
        if workers is self.workers:
            self._workers_gone()

    def _workers_gone(self) -> None:
        self.workers, self.stopping = None, False
        self._on_stopped()

    def _on_stopped(self) -> None:
        """What agent.py does when no workers are left."""
        if self.workers is not None:
            return
        if self._signalled or self._exit_told:
            if not self._left:
                self._left = True
                self._snapshots.leaves(self._goodbye)
        elif self._ready_after_stop:
            self._be_ready()

    def _goodbye(self) -> None:
        self.session.leave("its agent goes", self.now)
        self.after(LEAVE_S + 1.0, self._exit)

    def _be_ready(self) -> None:
        self._ready_after_stop, self._after = False, self.round
        self.world.listening.discard(self._store)
        self._store = 0
        if not self._held:
            self._held = self.world.new_port(self.machine)
        self._asked += 1
        self._snapshots.ready()
        self._not_ready = self._checked()
        self.session.set_ready(self.round, self._held, 0, self.now, self._not_ready)
        self.after(self._check.uniform(0.1, 5), self._check_again, self._asked)

    def _checked(self) -> str:
        """What the site's check of the node finds."""
        if self.world.calm or self._check.random() >= self.world.scenario.unfit:
            return ""
        self.world.note("node is not ready")
        return "node check failed"

    def _check_again(self, asked: int) -> None:
        if asked != self._asked or self._signalled or self._exit_told:
            return
        if (why := self._checked()) != self._not_ready:
            self._not_ready = why
            self.session.set_ready(self._after, self._held, 0, self.now, why)
        self.after(self._check.uniform(0.1, 5), self._check_again, asked)

    def give_up(self) -> None:
        """Stop the workers of a round that goes on, and join for another one."""
        self._ready_after_stop = True
        self._stop(self.world.stop_timeout_s)

    def sigterm(self) -> None:
        self._call(self._sigterm)

    def _sigterm(self) -> None:
        if self._signalled:
            return
        self._signalled = True
        runs = self.workers is not None and self.workers.alive and not self.stopping
        grace_s = self._grace.choice((None, 1.0, 5.0, 20.0)) if runs else None
        leaving = make_round_report(ReportKind.LEAVING, self.round, message="SIGTERM", grace_s=grace_s)
        self.session.announce_leave(leaving, self.now)
        if grace_s is None:
            self._stop(self.world.stop_timeout_s)
        else:
            self.world.note("stop is announced")
            self.after(1.1 * grace_s, self._stop, self.world.stop_timeout_s)

    def _exit(self) -> None:
        if self.alive:
            self.world.checks.say(self.node_id, "its agent exits")
            self.die()
            self.world.agent_exited(self.machine, self)

    @property
    def is_settled(self) -> bool:
        """Whether this agent does what a member of a running round does, and nothing else is on its way."""
        return not (self.stopping or self._ready_after_stop or self._inbox or self._fresh or self._trying)
