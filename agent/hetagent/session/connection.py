"""The thread and the HTTP client around a session: sends its requests, hands its directives to the agent."""

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from hetagent.session import reports
from hetagent.session.dispatch import DirectiveDispatcher, DirectiveQueue
from hetagent.session.requests import Answer, R, Report, Request
from hetagent.session.session import LEAVE_S, Session
from hetagent.session.waiting import WaitLog
from hetrdzv.client.client import Client
from hetrdzv.protocol.directive import Directive, StacksAsked
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.progress import NodeProgress

LOOK_UP_S = 0.5
"""How much longer than its goodbye may take the thread is waited for (seconds): it may hang in a look-up."""

LEAVE_NOTICE_S = 1.0
"""After how long a goodbye says that it goes on (seconds)."""

LEAVE_LOOK_S = 0.05
"""How often to look whether somebody is in a hurry (seconds)."""


class ServerConnection:
    """A session in a thread of its own.

    Readable (`fileno`) while there are directives to take, and when an `ask` was answered. All other methods may be
    called from any thread. If the thread breaks, which is a bug, the agent is told to exit with 1.

    Args:
        make_client: makes the HTTP client, in the thread that uses it.
        log: shows one line.
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
        self._queue = DirectiveQueue()
        self._dispatcher = DirectiveDispatcher(session.node_id, self._queue, self._master_unreachable, log)
        self._thread = threading.Thread(target=self._main, name="hetagent-server", daemon=True)
        self._closing = False
        self._abandoned = False  # nobody takes directives any more
        self._error: Exception | None = None  # what broke the thread, or is about to
        self._on_question: Callable[[StacksAsked], None] = lambda asked: None
        self._on_member: Callable[[bool], None] = lambda is_member: None
        self._was_member = False
        self._asked: dict[Report[Any], Future[Any]] = {}
        self._waits = WaitLog(log)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def fileno(self) -> int:
        """A descriptor that is readable while there are directives to take."""
        return self._queue.fileno()

    def take(self) -> list[Directive]:
        """The directives that came since the last call, in order."""
        return self._queue.take()

    @property
    def handed_at(self) -> float:
        """When the last directive was handed over (monotonic seconds)."""
        return self._queue.put_at

    @property
    def broken(self) -> bool:
        """Whether the thread broke, so that the server will not hear from this node again."""
        return self._error is not None

    def hang_timeout_s(self) -> float | None:
        """The group's setting, as last received (seconds), or None."""
        return self._session.hang_timeout_s

    # -- from the agent --------------------------------------------------------------------------------------

    def offers(self, **fields: Any) -> None:
        """Change fields of what this node offers, from the next join on."""

        def change(now: float) -> None:
            self._session.offer = replace(self._session.offer, **fields)

        self._do(change)

    def ready(self, after_round: int, port: int, script_port: int, not_ready: str = "") -> None:
        """See `Session.ready`."""
        self._do(lambda now: self._session.ready(after_round, port, script_port, now, not_ready))

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
        answer: Future[R] = Future()

        def ask(now: float) -> None:
            self._asked[report] = answer
            self._session.ask(report, now)

        if not self._do(ask):
            answer.cancel()
        return answer

    def watch(
        self, sample: Callable[[], NodeProgress | None], on_question: Callable[[StacksAsked], None]
    ) -> None:
        """From now on, report how far the workers have come; see `Session.watch`.

        Args:
            sample: called in the connection's thread.
            on_question: called there with each question about workers; must not wait.
        """

        def watch(now: float) -> None:
            self._session.watch(sample)
            self._on_question = on_question

        self._do(watch)

    def push_progress(self) -> None:
        """The server has to know at once how far the workers have come."""
        self._do(lambda now: self._session.push_progress())

    def on_member(self, changed: Callable[[bool], None]) -> None:
        """Call it in the connection's thread whenever `Session.is_member` changes; before `start`."""
        self._on_member = changed

    def leaving(self, why: str, grace_s: float | None = None) -> None:
        """See `Session.leaving`."""
        self._do(lambda now: self._session.leaving(why, now, grace_s))

    def leave(
        self, why: str, timeout_s: float = LEAVE_S, is_hurried: Callable[[], bool] = lambda: False
    ) -> bool:
        """This node has left; returns when the server knows, or has not answered in time.

        Args:
            timeout_s: how long that may take (seconds).
            is_hurried: asked meanwhile: whether to wait no longer.

        Returns:
            whether the thread has ended; if not, it hangs in a look-up of the server's name.
        """
        if not self._thread.is_alive():
            return True
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
        return not self._thread.is_alive()

    def close(self) -> None:
        """Give the descriptor back; only after `leave`."""
        if self._thread.is_alive() or self._queue.closed:
            return
        self._loop.close()
        self._queue.close()

    def abandon(self, why: str) -> None:
        """This node has left, and its agent is gone: like `leave` and `close`, but without waiting."""
        self._abandoned = True
        self._do(lambda now: self._session.leave(why, now), last=True)
        self.close()  # if the thread has ended already

    def give_up(self, why: str) -> None:
        """There is no server any more and there will be none: the agent exits."""
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
            for answer in self._asked.values():
                answer.cancel()
            if self._abandoned:
                self._queue.close()

    def _break(self, error: Exception) -> None:
        """Make the agent exit, which would otherwise wait for ever."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        self._error = error
        self._log("".join(traceback.format_exception(error)).rstrip())
        what = f"{type(error).__name__}: {error}"
        why = f"the thread that talks to the server broke, which is a bug: {what}"
        self._queue.put(self._session.local_exit("broken", why))

    async def _run(self) -> None:
        async with self._make_client() as client, asyncio.TaskGroup() as tasks:
            dispatching = tasks.create_task(self._dispatcher.run())
            requests: set[asyncio.Task[None]] = set()
            while not (self._closing and self._session.finished):
                if self._error is not None:
                    raise self._error
                for request in self._session.requests(time.monotonic()):
                    task = tasks.create_task(self._send(client, request))
                    requests.add(task)
                    task.add_done_callback(requests.discard)
                self._pass_on()
                if self._closing and self._session.finished:
                    break  # the time for its goodbye was over just now
                wakeup = self._session.wakeup()
                timeout_s = None if wakeup is None else max(0.0, wakeup - time.monotonic())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._kick.wait(), timeout_s)
                self._kick.clear()
            for task in (dispatching, *requests):
                task.cancel()

    async def _send(self, client: Client, request: Request) -> None:
        answer: Answer
        try:
            answer = await request.send(client)
        except HetError as error:
            answer = error
        self._session.received(request, answer, time.monotonic())
        if isinstance(answer, Directive):
            self._log_notices()
            self._waits.update(answer, leaving=self._closing)
        self._kick.set()

    def _log_notices(self) -> None:
        for notice in self._session.notices():
            self._log(notice)

    def _pass_on(self) -> None:
        if self._session.is_member != self._was_member:
            self._was_member = not self._was_member
            self._on_member(self._was_member)
        self._log_notices()
        for directive in self._session.directives():
            self._dispatcher.add(directive)
        for question in self._session.questions():
            self._on_question(question)
        for report, outcome in self._session.answers():
            answer = self._asked.pop(report)
            if outcome is None:
                answer.cancel()
            elif isinstance(outcome, HetError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
            self._queue.wake()

    def _master_unreachable(self, round_number: int, why: str) -> None:
        self._session.send(reports.master_unreachable(round_number, why), time.monotonic())
        self._kick.set()
