"""The thread and the HTTP client around a session: sends its requests, hands its directives to the agent."""

import asyncio
import contextlib
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from hetagent.node.network import host_port
from hetagent.node.self_pipe import SelfPipe
from hetagent.session import preflight
from hetagent.session.requests import Answer, R, Report, Request, round_report
from hetagent.session.session import LEAVE_S, Session
from hetagent.session.waiting import WaitLog
from hetrdzv.client.client import Client
from hetrdzv.protocol.directive import Directive, Member, OutputQuery
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.progress import NodeProgress
from hetrdzv.protocol.states import ReportKind

LOOK_UP_S = 0.5
"""How much longer to wait for the thread than for its goodbye (seconds): it may hang in a DNS look-up."""

LEAVE_NOTICE_S = 1.0
"""A goodbye that takes longer than this is logged (seconds)."""

LEAVE_LOOK_S = 0.05
"""How often to check whether somebody is in a hurry (seconds)."""


class ServerConnection:
    """A session in a thread of its own.

    Readable (`fileno`) while there are directives to take, and when an `ask` was answered. All other methods may be
    called from any thread. If the thread breaks (a bug), the agent gets a directive to exit with 1.

    Args:
        make_client: makes the HTTP client, in the thread that uses it.
        log: shows one line.

    Attributes:
        handed_at: when the last directive was handed over (monotonic seconds).
    """

    def __init__(
        self,
        session: Session,
        make_client: Callable[[], Client],
        log: Callable[[str], None],
    ) -> None:
        self._session = session
        self._make_client = make_client
        self._log = log
        self._loop = asyncio.new_event_loop()
        self._kick = asyncio.Event()
        self.handed_at = 0.0
        self._directives: deque[Directive] = deque()  # for the agent
        self._waker = SelfPipe()
        # of the newest start, if its master is another node
        self._preflight: asyncio.Task[None] | None = None
        self._reached_round = 0  # the newest round whose master was reached
        self._thread = threading.Thread(target=self._main, name="hetagent-server", daemon=True)
        self._closing = False
        self._error: Exception | None = None  # what broke the thread, or is about to
        self._on_member: Callable[[bool], None] = lambda is_member: None
        self._was_member = False
        self._waits = WaitLog(log)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def fileno(self) -> int:
        """A descriptor that is readable while there are directives to take."""
        return self._waker.fileno()

    def take_directives(self) -> list[Directive]:
        """The directives that came since the last call, in order."""
        self._waker.clear()
        return [self._directives.popleft() for _ in range(len(self._directives))]

    @property
    def has_crashed(self) -> bool:
        """Whether the thread broke: the server gets no more requests from this node."""
        return self._error is not None

    @property
    def is_server_away(self) -> bool:
        """See `Session.is_server_away`."""
        return self._session.is_server_away

    def hang_timeout_s(self) -> float | None:
        """The group's setting, as last received (seconds), or None."""
        return self._session.hang_timeout_s

    # -- from the agent --------------------------------------------------------------------------------------

    def update_offer(self, **fields: Any) -> None:
        """Change fields of what this node offers, from the next join on."""

        def change(now: float) -> None:
            self._session.offer = replace(self._session.offer, **fields)

        self._do(change)

    def set_ready(self, after_round: int, port: int, script_port: int, not_ready: str = "") -> None:
        """See `Session.set_ready`."""
        self._do(lambda now: self._session.set_ready(after_round, port, script_port, now, not_ready))

    def change_readiness(self, not_ready: str) -> None:
        """See `Session.change_readiness`."""
        self._do(lambda now: self._session.change_readiness(not_ready, now))

    def send(self, report: Report[Any], since: float | None = None) -> None:
        """Send a report; `since`: when it became true (monotonic seconds) [now]."""
        self._do(lambda now: self._session.send(report, now if since is None else since))

    def ask(self, report: Report[R]) -> "Future[R]":
        """Send a report whose reply is wanted.

        Returns:
            the reply, or the server's refusal as an exception, in the connection's thread; cancelled if the round is
            over, or there is no server any more.
        """
        future: Future[R] = Future()

        def answered(answer: Any) -> None:
            if answer is None:
                future.cancel()
            elif isinstance(answer, HetError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
            self._waker.wake()

        report.answered = answered
        if not self._do(lambda now: self._session.send(report, now)):
            future.cancel()
        return future

    def set_progress_source(
        self, sample: Callable[[], NodeProgress | None], on_question: Callable[[OutputQuery], None]
    ) -> None:
        """From now on, report how far the workers have come; see `Session`.

        Args:
            sample, on_question: called in the connection's thread; must not wait.
        """
        self._session.sample, self._session.on_question = sample, on_question

    def push_progress(self) -> None:
        """See `Session.push_progress`."""
        self._do(lambda now: self._session.push_progress())

    def on_membership_change(self, changed: Callable[[bool], None]) -> None:
        """Call it in the connection's thread whenever `Session.is_member` changes; before `start`."""
        self._on_member = changed

    def announce_leave(self, why: str, grace_s: float | None = None) -> None:
        """See `Session.announce_leave`."""
        self._do(lambda now: self._session.announce_leave(why, now, grace_s))

    def part(self, report: Report[Directive]) -> None:
        """See `Session.part`."""
        self._do(lambda now: self._session.part(report, now))

    @property
    def may_be_member(self) -> bool:
        """See `Session`."""
        return self._session.may_be_member

    @property
    def newest_directive(self) -> Directive:
        """See `Session`."""
        return self._session.newest_directive

    def leave(
        self, why: str, timeout_s: float = LEAVE_S, is_hurried: Callable[[], bool] = lambda: False
    ) -> None:
        """Say goodbye; returns once the server has accepted it, or has not answered in time.

        Args:
            timeout_s: how long that may take (seconds).
            is_hurried: polled meanwhile: whether to stop waiting.
        """
        self._do(lambda now: self._session.leave(why, now, timeout_s), last=True)
        notice_at = time.monotonic() + LEAVE_NOTICE_S
        until = time.monotonic() + timeout_s + LOOK_UP_S
        while self._thread.is_alive() and (left_s := until - time.monotonic()) > 0 and not is_hurried():
            self._thread.join(min(LEAVE_LOOK_S, left_s))
            if time.monotonic() >= notice_at:
                self._log(
                    f"telling the server that this node leaves, for {timeout_s:g} s at most; press again to end"
                )
                notice_at = until

    def close(self) -> None:
        """Give the descriptor back; only after `leave`."""
        if not self._thread.is_alive():
            self._loop.close()
            self._waker.close()

    def give_up(self, why: str) -> None:
        """The server is gone for good: have the agent exit."""
        self._do(lambda now: self._session.give_up(why, "no server"))

    def _do(self, what: Callable[[float], None], *, last: bool = False) -> bool:
        """Have the thread do it; returns whether there still is a thread."""

        def run() -> None:
            try:
                what(time.monotonic())
            except Exception as error:
                self._error = error
            self._closing = self._closing or last
            self._kick.set()

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:  # the loop is closed: this agent has left already, or the thread broke
            return False
        return True

    # -- the thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._run())
        except Exception as error:
            self._break(error)
        finally:
            self._session.drop_reports()

    def _break(self, error: Exception) -> None:
        """Make the agent exit, which would otherwise wait for ever."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        self._error = error
        self._log("".join(traceback.format_exception(error)).rstrip())
        what = f"{type(error).__name__}: {error}"
        self._session.give_up(f"the thread that talks to the server broke, which is a bug: {what}", "broken")
        for directive in self._session.take_directives():
            self._hand(directive)

    def _hand(self, directive: Directive) -> None:
        self.handed_at = time.monotonic()
        self._directives.append(directive)
        self._waker.wake()

    async def _run(self) -> None:
        async with self._make_client() as client, asyncio.TaskGroup() as tasks:
            while True:
                if self._error is not None:
                    raise self._error
                for request in self._session.requests(time.monotonic()):
                    tasks.create_task(self._send(client, request))
                self._pass_on(tasks)
                if self._closing and self._session.finished:
                    break
                wakeup = self._session.next_wakeup()
                timeout_s = None if wakeup is None else max(0.0, wakeup - time.monotonic())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._kick.wait(), timeout_s)
                self._kick.clear()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    async def _send(self, client: Client, request: Request) -> None:
        answer: Answer
        try:
            answer = await request.send(client)
        except HetError as error:
            answer = error
        self._session.on_response(request, answer, time.monotonic())
        if isinstance(answer, Directive):
            self._log_notices()
            self._waits.update(answer, leaving=self._session.is_leaving)
        self._kick.set()

    def _log_notices(self) -> None:
        for notice in self._session.take_log_lines():
            self._log(notice)

    def _pass_on(self, tasks: asyncio.TaskGroup) -> None:
        if self._session.is_member != self._was_member:
            self._was_member = not self._was_member
            self._on_member(self._was_member)
        self._log_notices()
        for directive in self._session.take_directives():
            if self._preflight is not None:
                self._preflight.cancel()  # this one has overtaken that start
            start, own_id = directive.start, self._session.node_id
            if start is None or start.master.node_id == own_id or directive.round == self._reached_round:
                self._hand(directive)
            else:
                self._preflight = tasks.create_task(self._reach(start.master, directive))

    async def _reach(self, master: Member, start: Directive) -> None:
        """Hand a start to the agent once its master was reached, or report that it cannot be."""
        reason = await preflight.find_connect_error(master.address, master.port)
        if reason is None:
            self._reached_round = start.round
            self._hand(start)
            return
        what = f"{reason} ({host_port(master.address, master.port)})"
        self._log(f"cannot reach the master {master.node_id}: {what}; asking for another one")
        report = round_report(ReportKind.MASTER_UNREACHABLE, start.round, message=what)
        self._session.send(report, time.monotonic())
        self._kick.set()
