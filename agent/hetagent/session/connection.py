"""The thread and the HTTP client around a session: sends its requests, hands its directives to the agent."""

import asyncio
import contextlib
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from hetagent.node.network import format_host_port
from hetagent.node.self_pipe import SelfPipe
from hetagent.session import preflight
from hetagent.session.requests import Answer, R, Report, Request, make_round_report
from hetagent.session.session import HURRIED_LEAVE_S, LEAVE_S, Session
from hetagent.session.wait_log import WaitLog
from hetrdzv.client.client import Client
from hetrdzv.protocol.directive import Directive, Member
from hetrdzv.protocol.errors import HetError
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
        session: any thread may read its attributes; its methods are for the connection's thread.
        on_member: called in the connection's thread whenever `Session.is_member` changes.
        handed_at: when the last directive was handed over (monotonic seconds).
        has_crashed: the thread broke: the server gets no more requests from this node.
    """

    def __init__(
        self,
        session: Session,
        make_client: Callable[[], Client],
        log: Callable[[str], None],
    ) -> None:
        self.session = session
        self.on_member: Callable[[bool], None] = lambda is_member: None
        self.handed_at = 0.0
        self._make_client = make_client
        self._log = log
        self._loop = asyncio.new_event_loop()
        self._has_news = asyncio.Event()
        self._directives: deque[Directive] = deque()  # for the agent
        self._waker = SelfPipe()
        self._preflight: asyncio.Task[None] | None = None  # of the newest start, if it is another's
        self._reached_round = 0  # the newest round whose master was reached
        self._thread = threading.Thread(target=self._run_thread, name="hetagent-server", daemon=True)
        self._calls: deque[Callable[[float], None]] = deque()  # for the thread
        self.has_crashed = False
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

    # -- from the agent --------------------------------------------------------------------------------------

    def update_offer(self, **fields: Any) -> None:
        """Change fields of what this node offers, from the next join on."""
        self._call_in_thread(lambda now: self.session.update_offer(**fields))

    def set_ready(self, after_round: int, port: int, script_port: int, not_ready: str = "") -> None:
        """See `Session.set_ready`."""
        self._call_in_thread(
            lambda now: self.session.set_ready(after_round, port, script_port, now, not_ready)
        )

    def send(self, report: Report[Any], since: float | None = None) -> None:
        """Send a report; `since`: when it became true (monotonic seconds) [now]."""
        self._call_in_thread(lambda now: self.session.send(report, now if since is None else since))

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
        if not self._call_in_thread(lambda now: self.session.send(report, now)):
            future.cancel()
        return future

    def push_progress(self) -> None:
        """See `Session.push_progress`."""
        self._call_in_thread(lambda now: self.session.push_progress())

    def announce_leave(self, report: Report[Any], *, workers_gone: bool = False) -> None:
        """See `Session.announce_leave`."""
        self._call_in_thread(lambda now: self.session.announce_leave(report, now, workers_gone=workers_gone))

    def leave(
        self, why: str, timeout_s: float = LEAVE_S, is_hurried: Callable[[], bool] = lambda: False
    ) -> None:
        """Say goodbye; returns once the server has accepted it, or has not answered in time.

        Args:
            timeout_s: how long that may take (seconds).
            is_hurried: polled meanwhile: whether it may take no longer than `HURRIED_LEAVE_S`.
        """
        timeout_s = min(timeout_s, HURRIED_LEAVE_S) if is_hurried() else timeout_s
        self._call_in_thread(lambda now: self.session.leave(why, now, timeout_s))
        began, is_logged = time.monotonic(), False
        while self._thread.is_alive():
            self._thread.join(LEAVE_LOOK_S)
            waited_s = time.monotonic() - began
            if waited_s >= (min(timeout_s, HURRIED_LEAVE_S) if is_hurried() else timeout_s) + LOOK_UP_S:
                return
            if waited_s >= LEAVE_NOTICE_S and not is_logged:
                is_logged = True
                what = f"telling the server that this node leaves, for at most {timeout_s:g} s"
                self._log(f"{what}; a second signal ends that")

    def close(self) -> None:
        """Give the descriptor back; only after `leave`."""
        if not self._thread.is_alive():
            self._loop.close()
            self._waker.close()

    def give_up(self, why: str) -> None:
        """The server is gone for good: have the agent exit."""
        self._call_in_thread(lambda now: self.session.give_up(why, "no server"))

    def _call_in_thread(self, call: Callable[[float], None]) -> bool:
        """Have the thread call it with the time; returns whether there still is a thread."""
        self._calls.append(call)
        try:
            self._loop.call_soon_threadsafe(self._has_news.set)
        except RuntimeError:  # the loop is closed: this agent has left already, or the thread broke
            return False
        return True

    # -- the thread ------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._run())
        except Exception as error:
            self._on_crash(error)
        finally:
            with contextlib.suppress(Exception):  # the one that has crashed
                self._run_queued_calls()  # those that came as the loop was being closed
            self.session.drop_reports()

    def _run_queued_calls(self) -> None:
        """Do what the agent has asked for."""
        while self._calls:
            self._calls.popleft()(time.monotonic())

    def _on_crash(self, error: Exception) -> None:
        """Make the agent exit, which would otherwise wait for ever."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        self.has_crashed = True
        self._log("".join(traceback.format_exception(error)).rstrip())
        what = f"{type(error).__name__}: {error}"
        self.session.give_up(f"the thread that talks to the server broke, which is a bug: {what}", "broken")
        for directive in self.session.take_directives():
            self._deliver_directive(directive)

    def _deliver_directive(self, directive: Directive) -> None:
        self.handed_at = time.monotonic()
        self._directives.append(directive)
        self._waker.wake()

    async def _run(self) -> None:
        async with self._make_client() as client, asyncio.TaskGroup() as tasks:
            while True:
                self._run_queued_calls()
                for request in self.session.take_requests(time.monotonic()):
                    tasks.create_task(self._send(client, request))
                self._handle_outputs(tasks)
                if self.session.finished:
                    break
                wakeup = self.session.next_wakeup()
                timeout_s = None if wakeup is None else max(0.0, wakeup - time.monotonic())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_news.wait(), timeout_s)
                self._has_news.clear()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    async def _send(self, client: Client, request: Request) -> None:
        answer: Answer
        try:
            answer = await request.send(client)
        except HetError as error:
            answer = error
        self.session.on_response(request, answer, time.monotonic())
        self._has_news.set()

    def _handle_outputs(self, tasks: asyncio.TaskGroup) -> None:
        if self.session.is_member != self._was_member:
            self._was_member = not self._was_member
            self.on_member(self._was_member)
        for line in self.session.take_log_lines():
            self._log(line)
        self._waits.update(self.session.newest_directive, leaving=self.session.is_leaving)
        for directive in self.session.take_directives():
            if self._preflight is not None:
                self._preflight.cancel()  # this one has overtaken that start
            start, own_id = directive.start, self.session.node_id
            if start is None or start.master.node_id == own_id or directive.round == self._reached_round:
                self._deliver_directive(directive)
            else:
                self._preflight = tasks.create_task(self._check_master(start.master, directive))

    async def _check_master(self, master: Member, start: Directive) -> None:
        """Hand a start to the agent once its master was reached, or report that it cannot be."""
        reason = await preflight.find_connect_error(master.address, master.port)
        if reason is None:
            self._reached_round = start.round
            self._deliver_directive(start)
            return
        what = f"{reason} ({format_host_port(master.address, master.port)})"
        self._log(f"cannot reach the master {master.node_id}: {what}; asking for another one")
        report = make_round_report(ReportKind.MASTER_UNREACHABLE, start.round, message=what)
        self.session.send(report, time.monotonic())
        self._has_news.set()
