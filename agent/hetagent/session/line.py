"""The thread and the client around a session: sends its requests, hands its directives to the agent."""

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
from hetagent.session.delivery import Delivery
from hetagent.session.mailbox import Mailbox
from hetagent.session.requests import Answer, Request
from hetagent.session.session import LEAVE_PATIENCE_S, Session
from hetagent.session.topics import Message, R
from hetagent.session.waiting import TICK_S, Waiting, never_live
from hetrdzv.client.client import Client
from hetrdzv.protocol.directive import DirectiveReply, StacksAsked
from hetrdzv.protocol.errors import HetError, Unreachable
from hetrdzv.protocol.facts.reasons import Stalls
from hetrdzv.protocol.rooms.progress import NodeProgress
from hetrdzv.protocol.rooms.stalls import whom
from hetrdzv.protocol.settings import DEFAULTS
from hetrdzv.protocol.states import DirectiveKind
from hetrdzv.protocol.texts.times import Clock
from hetrdzv.words.reasons import told

LEAVE_S = LEAVE_PATIENCE_S + 1.0
"""How long a goodbye may take (seconds)."""

UNHEARD_LEAVE_S = 0.5
"""How long a goodbye to a server that has never answered may take, or where somebody is in a hurry (seconds)."""

LEAVE_NEWS_S = 1.0
"""After how long a goodbye says that it goes on (seconds)."""

LEAVE_LOOK_S = 0.05
"""How often to look whether somebody is in a hurry (seconds)."""


class Line:
    """A session in a thread of its own.

    Readable (`fileno`) while there are directives to take, and when a question was answered. All other methods may be
    called from any thread. If the thread breaks, which is a bug, the agent is told to exit with 1.

    Args:
        make_client: makes the HTTP client, in the thread that uses it.
        tell: shows one line to the person at the terminal.
        show_live: see `Waiting`.
    """

    def __init__(
        self,
        session: Session,
        make_client: Callable[[], Client],
        tell: Callable[[str], None],
        show_live: Callable[[str, str], bool] = never_live,
    ) -> None:
        self._session = session
        self._make_client = make_client
        self._tell = tell
        self._loop = asyncio.new_event_loop()
        self._kick = asyncio.Event()
        self._mailbox = Mailbox(self._handed_over)
        self._delivery = Delivery(session.node_id, self._mailbox, self._master_unreachable, tell)
        self._thread = threading.Thread(target=self._main, name="hetagent-line", daemon=True)
        self._closing = False
        self._answered = False  # some server has
        self._hopeless = False  # no server will hear our goodbye
        self._abandoned = False  # nobody takes directives any more
        self._error: Exception | None = None  # what broke the thread, or is about to
        self._on_question: Callable[[StacksAsked], None] = lambda asked: None
        self._on_known: Callable[[bool], None] = lambda known: None
        self._was_known = False
        self._asked: dict[Message[Any], Future[Any]] = {}
        self._waiting = Waiting(tell, show_live)
        self._told_stall: object = None  # what was shown of the stall: who is waited for
        self._stop_timeout_s = DEFAULTS.stop_timeout_s

    def start(self) -> None:
        """Start talking to the server."""
        self._thread.start()

    def fileno(self) -> int:
        """A descriptor that is readable while there are directives to take."""
        return self._mailbox.fileno()

    def take(self) -> list[DirectiveReply]:
        """The directives that came since the last call, in order."""
        return self._mailbox.take()

    @property
    def handed_at(self) -> float:
        """When the last directive was handed over (monotonic seconds)."""
        return self._mailbox.put_at

    @property
    def broken(self) -> bool:
        """Whether the thread broke, so that no server will hear from this node again."""
        return self._error is not None

    # -- what the agent says ---------------------------------------------------------------------------------

    def offers(self, **fields: Any) -> None:
        """From the next join on, these fields of what this node offers to the group are others; see `Offer`."""

        def change(now: float) -> None:
            self._session.offer = replace(self._session.offer, **fields)

        self._do(change)

    def ready(self, after_round: int, port: int, script_port: int, not_ready: str = "") -> None:
        """Join, or ready for the next round: all workers of `after_round` are gone; see `Session.ready`."""
        self._do(lambda now: self._session.ready(after_round, port, script_port, now, not_ready))

    def change_readiness(self, not_ready: str) -> None:
        """Whether this node can take part has changed since `ready`; see `Session.change_readiness`."""
        self._do(lambda now: self._session.change_readiness(not_ready, now))

    def say(self, message: Message[Any], since: float | None = None) -> None:
        """Tell the server.

        Args:
            since: when it became true (monotonic seconds) [now].
        """
        self._do(lambda now: self._session.say(message, now if since is None else since))

    def ask(self, message: Message[R]) -> "Future[R]":
        """Tell the server, and hear its answer.

        Returns:
            the reply, or the server's refusal as an exception, in the line's thread; cancelled if the round is over, or
            there is no server any more.
        """
        answer: Future[R] = Future()

        def ask(now: float) -> None:
            self._asked[message] = answer
            self._session.ask(message, now)

        if not self._do(ask):
            answer.cancel()
        return answer

    def watch(
        self, sample: Callable[[], NodeProgress | None], on_question: Callable[[StacksAsked], None]
    ) -> None:
        """From now on, tell the server how far the workers have come; see `Session.watch`.

        Args:
            sample: called in the line's thread.
            on_question: called there with each question about workers; must not wait.
        """

        def watch(now: float) -> None:
            self._session.watch(sample)
            self._on_question = on_question

        self._do(watch)

    def tell(self) -> None:
        """The server has to know at once how far the workers have come."""
        self._do(lambda now: self._session.tell())

    def on_known(self, changed: Callable[[bool], None]) -> None:
        """Have it called in the line's thread when the server has this node, and when it no longer has; before `start`.

        Args:
            changed: gets whether it has; see `Session.known`.
        """
        self._on_known = changed

    def hang_timeout_s(self) -> float | None:
        """The group's setting, as last heard (seconds), or None."""
        return self._session.hang_timeout_s

    def leaving(self, why: str, grace_s: float | None = None) -> None:
        """This node is about to leave.

        Args:
            grace_s: for how much longer its workers run (seconds); None: they are being stopped, or there are none.
        """
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
        self._do(lambda now: self._session.leave(why, now), last=True)
        began_at = time.monotonic()
        until = began_at + (timeout_s if self._answered else min(timeout_s, UNHEARD_LEAVE_S))
        news_at: float | None = began_at + LEAVE_NEWS_S
        while self._thread.is_alive() and (left_s := until - time.monotonic()) > 0 and not is_hurried():
            self._thread.join(min(LEAVE_LOOK_S, left_s))
            if news_at is not None and time.monotonic() >= news_at:
                self._tell(
                    f"telling the server that this node leaves, for {timeout_s:g} s at most; press again to end"
                )
                news_at = None
        return not self._thread.is_alive()

    def close(self) -> None:
        """Give the descriptors back; only after `leave`."""
        if self._thread.is_alive() or self._mailbox.closed:
            return
        self._loop.close()
        self._mailbox.close()

    def abandon(self, why: str) -> None:
        """This node has left, and its agent is gone: like `leave` and `close`, but without waiting."""
        self._abandoned = True
        self._do(lambda now: self._session.leave(why, now), last=True)
        self.close()  # if the thread has ended already

    def give_up(self, why: str) -> None:
        """There is no server any more and there will be none: the agent exits."""
        self._hopeless = True
        self._exit("no server", why)

    def _do(self, what: Callable[[float], None], *, last: bool = False) -> bool:
        """Have the thread do it; returns whether there still is a thread."""

        def run() -> None:
            try:
                what(time.monotonic())
            except Exception as error:
                self._error = error
            self._closing = self._closing or last
            if last:
                self._waiting.over()
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
                runner.run(self._talk())
        except Exception as error:
            self._break(error)
        finally:
            for answer in self._asked.values():
                answer.cancel()
            if self._abandoned:
                self._mailbox.close()

    def _break(self, error: Exception) -> None:
        """Make the agent exit, which would otherwise wait for ever."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        self._error = error
        self._waiting.over()
        self._tell("".join(traceback.format_exception(error)).rstrip())
        what = f"{type(error).__name__}: {error}"
        self._exit("broken", f"the thread that talks to the server broke, which is a bug: {what}")

    def _exit(self, code: str, why: str) -> None:
        """Tell the agent to exit, on behalf of no server."""
        exit_ = DirectiveReply(
            kind=DirectiveKind.EXIT,
            version=code,
            round=0,
            code=code,
            why=why,
            poll_s=0.0,
            lease_s=DEFAULTS.lease_s,
            stop_timeout_s=self._stop_timeout_s,
            max_disconnect_s=DEFAULTS.max_disconnect_s,
            exit_code=1,
        )
        self._mailbox.put(exit_)

    async def _talk(self) -> None:
        async with self._make_client() as client, asyncio.TaskGroup() as tasks:
            delivering = tasks.create_task(self._delivery.run())
            requests: set[asyncio.Task[None]] = set()
            while not (self._closing and (self._session.finished or self._hopeless)):
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
                if self._waiting.tick():
                    timeout_s = TICK_S if timeout_s is None else min(timeout_s, TICK_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._kick.wait(), timeout_s)
                self._kick.clear()
            self._waiting.over()
            for task in (delivering, *requests):
                task.cancel()

    async def _send(self, client: Client, request: Request) -> None:
        answer: Answer
        try:
            answer = await request.send(client)
        except HetError as error:
            answer = error
        if not isinstance(answer, Unreachable):
            self._answered = True
        else:
            self._waiting.pause()
            self._hopeless = self._hopeless or (self._closing and not self._answered)
        self._session.received(request, answer, time.monotonic())
        if isinstance(answer, DirectiveReply):
            self._stop_timeout_s = answer.stop_timeout_s
            self._tell_notices()
            self._tell_wait(answer)
            self._tell_stall(answer)
        self._kick.set()

    def _tell_notices(self) -> None:
        for notice in self._session.notices():
            self._tell(notice)

    def _pass_on(self) -> None:
        if self._session.known != self._was_known:
            self._was_known = not self._was_known
            self._on_known(self._was_known)
        self._tell_notices()
        for directive in self._session.directives():
            self._delivery.add(directive)
        for question in self._session.questions():
            self._on_question(question)
        for message, outcome in self._session.answers():
            answer = self._asked.pop(message)
            if outcome is None:
                answer.cancel()
            elif isinstance(outcome, HetError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
            self._mailbox.wake()

    def _tell_wait(self, answer: DirectiveReply) -> None:
        """Show what the group waits for."""
        if answer.kind == "wait" and not self._closing:
            self._waiting.waits(answer)
        else:
            self._waiting.over()

    def _tell_stall(self, answer: DirectiveReply) -> None:
        """Show who is waited for in the round that runs, and that it goes on."""
        if answer.kind != "start":
            self._told_stall = None
        elif answer.code != "stalled":
            if self._told_stall is not None:
                self._tell(f"round {answer.round} goes on")
            self._told_stall = None
        else:
            stalls = answer.reason if isinstance(answer.reason, Stalls) else None
            news = (whom(stalls.facts), stalls.known) if stalls is not None else answer.why
            if news != self._told_stall:
                self._told_stall = news
                self._tell(told(answer.reason, answer.why, Clock(answer.clock)))

    def _handed_over(self, directive: DirectiveReply) -> None:
        """The agent has been handed a directive; a hook for subclasses."""

    def _master_unreachable(self, round_number: int, why: str) -> None:
        self._session.say(reports.master_unreachable(round_number, why), time.monotonic())
        self._kick.set()
