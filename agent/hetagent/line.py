"""The thread and sockets around a session: sends what it wants sent, hands its directives to the agent."""

import asyncio
import contextlib
import os
import re
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from hetagent import preflight
from hetagent.network import host_port
from hetagent.requests import Request
from hetagent.session import DEFAULT_LEASE_S, DEFAULT_MAX_DISCONNECT_S, DEFAULT_STOP_TIMEOUT_S, Session
from hetrdzv.client import Client
from hetrdzv.errors import HetError, Unreachable
from hetrdzv.wire import DirectiveKind, DirectiveReply, FailureFields

WAIT_NEWS_S = 5.0
"""While a node waits, changes of the reason are told at most this often (seconds)."""

UNHEARD_LEAVE_S = 0.5
"""How long a goodbye may take at most to a server that has never answered (seconds)."""


class Line:
    """A session that lives in a thread of its own.

    Readable (`fileno`) when there are directives to take. All other methods may be called from any thread.
    Should the thread break, which is a bug, the agent is told to exit with 1.

    Args:
        make_client: opens the HTTP client, in the thread that uses it.
        tell: shows one line to the person at the terminal.
    """

    def __init__(
        self, session: Session, make_client: Callable[[], Client], tell: Callable[[str], None]
    ) -> None:
        self._session = session
        self._make_client = make_client
        self._tell = tell
        self._node_id = session.node_id
        self._loop = asyncio.new_event_loop()
        self._kick = asyncio.Event()
        self._fresh: deque[DirectiveReply] = deque()
        self._fresh_came = asyncio.Event()
        self._news: deque[DirectiveReply] = deque()
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._main, name="hetagent-line", daemon=True)
        self._closing = False
        self._answered = False  # some server has
        self._hopeless = False  # none will hear our goodbye
        self._abandoned = False  # nobody takes directives any more
        self._error: Exception | None = None  # what broke the thread, or is about to
        self._handed_round = 0  # of the newest start that was handed over
        self._daemons: dict[tuple[int, str], Future[str | None]] = {}
        self._told_wait = ("", 0.0)
        self._stop_timeout_s = DEFAULT_STOP_TIMEOUT_S

    def start(self) -> None:
        """Begin to talk."""
        self._thread.start()

    def fileno(self) -> int:
        """A descriptor that is readable while there are directives to take."""
        return self._read_fd

    def take(self) -> list[DirectiveReply]:
        """The directives that came since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 4096)
        taken = []
        while self._news:
            taken.append(self._news.popleft())
        return taken

    @property
    def broken(self) -> bool:
        """Whether the thread broke, so that no server will hear from this node any more."""
        return self._error is not None

    # -- what the agent says ---------------------------------------------------------------------------------

    def ready(self, after_round: int, port: int, script_port: int) -> None:
        """Join, or ready for the next round: all workers of `after_round` are gone."""
        self._say(lambda now: self._session.ready(after_round, port, script_port, now))

    def started(self, round_number: int) -> None:
        """All local workers were started."""
        self._say(lambda now: self._session.started(round_number, now))

    def succeeded(self, round_number: int) -> None:
        """All local workers ended with status 0."""
        self._say(lambda now: self._session.succeeded(round_number, now))

    def failed(self, round_number: int, failure: FailureFields, seen_at: float) -> None:
        """A local worker failed; `seen_at` is when that was seen (monotonic seconds)."""
        self._say(lambda now: self._session.failed(round_number, failure, seen_at))

    def start_daemon(self, round_number: int, node_id: str, words: Sequence[str]) -> "Future[str | None]":
        """This node is the round's master, and another member is to run a daemon.

        Returns:
            why it is not run, None when the server has taken it on; cancelled when there is no server any more.
        """
        answer: Future[str | None] = Future()

        def say(now: float) -> None:
            former = self._daemons.setdefault((round_number, node_id), answer)
            if former is not answer:
                answer.set_result(f"{node_id} was given a daemon in round {round_number} already")
                return
            self._session.start_daemon(round_number, node_id, words, now)

        if not self._say(say):
            answer.cancel()
        return answer

    def leaving(self, why: str) -> None:
        """This node is going away, its workers may still run."""
        self._say(lambda now: self._session.leaving(why, now))

    def leave(self, why: str, timeout_s: float) -> bool:
        """This node is gone; returns when the server knows, or gave no answer in time.

        Returns:
            whether the thread has ended; else it hangs in a look-up of the server's name.
        """
        if not self._thread.is_alive():
            return True
        self._say(lambda now: self._session.leave(why, now), last=True)
        self._thread.join(timeout_s if self._answered else min(timeout_s, UNHEARD_LEAVE_S))
        return not self._thread.is_alive()

    def close(self) -> None:
        """Give the descriptors back; only after `leave`."""
        if self._thread.is_alive() or self._read_fd < 0:
            return
        self._loop.close()
        self._close_pipe()

    def _close_pipe(self) -> None:
        for fd in (self._read_fd, self._write_fd):
            os.close(fd)
        self._read_fd = self._write_fd = -1

    def abandon(self, why: str) -> None:
        """This node is gone, and its agent too: as `leave` and `close`, waiting for nothing, in any thread."""
        self._abandoned = True
        self._say(lambda now: self._session.leave(why, now), last=True)
        self.close()  # where the thread has ended already

    def give_up(self, why: str) -> None:
        """There is no server any more, and none will come: the agent exits with 1."""
        self._hopeless = True
        self._exit("no server", why)

    def _say(self, what: Callable[[float], None], *, last: bool = False) -> bool:
        """Have the thread do it; returns whether there still is one."""

        def run() -> None:
            try:
                what(time.monotonic())
            except Exception as error:
                self._error = error
            self._closing = self._closing or last
            self._kick.set()

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:  # the loop is closed: the agent has left already, or the thread broke
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
            for answer in self._daemons.values():
                answer.cancel()
            if self._abandoned:
                self._close_pipe()

    def _break(self, error: Exception) -> None:
        """Make the agent exit, since it would wait for ever."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        self._error = error
        self._tell("".join(traceback.format_exception(error)).rstrip())
        what = f"{type(error).__name__}: {error}"
        self._exit("broken", f"the thread that talks to the server broke, which is a bug: {what}")

    def _exit(self, reason: str, why: str) -> None:
        """Say to the agent what no server says."""
        exit_ = DirectiveReply(
            kind=DirectiveKind.EXIT,
            version=reason,
            round=0,
            reason=reason,
            why=why,
            poll_s=0.0,
            lease_s=DEFAULT_LEASE_S,
            stop_timeout_s=self._stop_timeout_s,
            max_disconnect_s=DEFAULT_MAX_DISCONNECT_S,
            exit_code=1,
        )
        self._hand_over(exit_)

    async def _talk(self) -> None:
        async with self._make_client() as client, asyncio.TaskGroup() as tasks:
            delivering = tasks.create_task(self._deliver())
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
                    break  # its goodbye's time was over just now
                wakeup = self._session.wakeup()
                timeout_s = None if wakeup is None else max(0.0, wakeup - time.monotonic())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._kick.wait(), timeout_s)
                self._kick.clear()
            for task in (delivering, *requests):
                task.cancel()

    async def _send(self, client: Client, request: Request) -> None:
        answer: DirectiveReply | HetError | None
        try:
            answer = await request.send(client)
        except HetError as error:
            answer = error
        if not isinstance(answer, Unreachable):
            self._answered = True
        elif self._closing and not self._answered:
            self._hopeless = True
        self._session.received(request, answer, time.monotonic())
        if isinstance(answer, DirectiveReply):
            self._stop_timeout_s = answer.stop_timeout_s
            self._tell_notices()
            self._tell_wait(answer)
        self._kick.set()

    def _tell_notices(self) -> None:
        for notice in self._session.notices():
            self._tell(notice)

    def _pass_on(self) -> None:
        self._tell_notices()
        for directive in self._session.directives():
            self._fresh.append(directive)
            self._fresh_came.set()
        for answer in self._session.daemon_answers():
            self._daemons.pop((answer.round, answer.node_id)).set_result(answer.refusal)

    def _tell_wait(self, answer: DirectiveReply) -> None:
        """Say what the group waits for, when that has changed by more than its seconds."""
        if answer.kind != "wait":
            self._told_wait = ("", 0.0)
            return
        gist, now = re.sub(r"\d+ s\b", "", answer.why), time.monotonic()
        if gist != self._told_wait[0] and now - self._told_wait[1] >= WAIT_NEWS_S:
            self._told_wait = (gist, now)
            self._tell(f"waiting: {answer.why}")

    async def _deliver(self) -> None:
        """Hand over directives in order; a start only once its master has been reached."""
        while True:
            await self._fresh_came.wait()
            self._fresh_came.clear()
            while self._fresh:
                directive = self._fresh.popleft()
                if await self._is_due(directive):
                    self._hand_over(directive)

    async def _is_due(self, directive: DirectiveReply) -> bool:
        """Whether to hand it over: not a start whose master is out of reach, or that is over already."""
        start = directive.start
        if start is None or start.master.node_id == self._node_id or directive.round == self._handed_round:
            return True
        if self._fresh:
            return False
        trying = asyncio.ensure_future(preflight.reachable(start.master.address, start.master.port))
        newer = asyncio.ensure_future(self._fresh_came.wait())
        await asyncio.wait({trying, newer}, return_when=asyncio.FIRST_COMPLETED)
        newer.cancel()
        if self._fresh:
            trying.cancel()
            return False
        reason = await trying
        if reason is not None:
            what = f"{reason} ({host_port(start.master.address, start.master.port)})"
            self._tell(f"cannot reach the master {start.master.node_id}: {what}; asking for another one")
            self._session.master_unreachable(directive.round, what, time.monotonic())
            self._kick.set()
        return reason is None

    def _hand_over(self, directive: DirectiveReply) -> None:
        if directive.start is not None:
            self._handed_round = directive.round
        self._news.append(directive)
        with contextlib.suppress(BlockingIOError):
            if self._write_fd >= 0:
                os.write(self._write_fd, b"!")
