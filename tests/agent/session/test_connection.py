"""The thread around a session: what it says arrives, what comes is handed over in order, and no end is silent."""

import asyncio
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self

import pytest
from tests.agent.torchrun.driver import directive as any_directive
from tests.agent.workers.test_store import start as store_start
from tests.support.cluster import wait_for

from hetagent.launch.mpi.mpirun import DAEMON
from hetagent.session import preflight
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import Report
from hetagent.session.session import Session
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import HetError, Problem, Unreachable
from hetrdzv.protocol.progress import PollRequest
from hetrdzv.protocol.requests import DaemonRequest, JoinRequest
from hetrdzv.protocol.routes import Route


def directive(kind: str, round_number: int = 0) -> Directive:
    return any_directive(kind, round_number, version=f"{kind}.{round_number}")


def start(round_number: int, master: str = "a", address: str = "127.0.0.1", port: int = 1) -> Directive:
    of = store_start(master, port, address).start
    return replace(directive("start", round_number), start=of)


class FakeClient:
    """A server with one thing to say, that can be away or broken."""

    def __init__(self) -> None:
        self.says = directive("wait")
        self.fails: Exception | None = None
        self.hangs = False
        self.asked: list[tuple[str, Any]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def _answer(self, what: str, detail: Any = None) -> Directive:
        self.asked.append((what, detail))
        while self.hangs:  # noqa: ASYNC110 (set from another thread)
            await asyncio.sleep(0.01)
        if self.fails is not None:
            raise self.fails
        return self.says

    async def join(self, group: str, node: str, request: Any) -> Directive:
        return await self._answer("join", request)

    async def poll(self, group: str, node: str, request: PollRequest) -> Directive:
        until = time.monotonic() + request.wait_s
        while self.says.version == request.after and self.fails is None and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return await self._answer("poll")

    async def ask(self, route: Route[Any], group: str, node: str, body: Any) -> Directive:
        return await self._answer(route.path.rpartition("/")[2], body)

    async def leave(self, group: str, node: str, *, incarnation: str, reason: str) -> None:
        await self._answer("leave", reason)

    def heard(self, what: str) -> list[Any]:
        return [detail for name, detail in self.asked if name == what]


class Talk:
    """A line to a fake server, and what it told the person at the terminal."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.told: list[str] = []
        offer = JoinRequest(incarnation="1", slots=1, address="127.0.0.1", port=1)
        session = Session("job", "a", offer, Random(1))
        client = lambda: self.client  # noqa: E731
        self.line = ServerConnection(session, client, self.told.append)  # type: ignore[arg-type]

    def begin(self) -> None:
        self.line.start()
        self.line.set_ready(0, 1000, 1001)

    def news(self, timeout_s: float = 10.0) -> list[Directive]:
        """What comes next; nothing within the time gives []."""
        if not select.select([self.line], [], [], timeout_s)[0]:
            return []
        return self.line.take_directives()

    def next(self) -> Directive:
        (found,) = self.news()
        return found


@pytest.fixture
def talk() -> Iterator[Talk]:
    made = Talk()
    yield made
    made.client.hangs = False
    made.line.leave("the test is over", 10.0)
    made.line.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "hetagent-server"]


def test_a_start_waits_until_the_master_is_reached(talk: Talk) -> None:
    with socket.socket() as master:
        master.bind(("127.0.0.1", 0))
        talk.begin()
        talk.next()
        talk.client.says = start(1, "b", port=master.getsockname()[1])
        assert talk.news(0.2) == []
        master.listen()
        assert talk.next().kind == "start"


def test_a_stop_overtakes_a_start_whose_master_does_not_answer(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = threading.Event()

    async def silence(address: str, port: int) -> str | None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return None

    monkeypatch.setattr(preflight, "find_connect_error", silence)
    talk.begin()
    talk.next()
    talk.client.says = start(1, "b")
    assert talk.news(0.1) == []
    talk.client.says = directive("stop", 1)
    assert talk.next().kind == "stop"
    assert cancelled.wait(5)
    assert not talk.client.heard("report")


def test_without_any_server_the_agent_exits_and_no_goodbye_is_tried(talk: Talk) -> None:
    talk.begin()
    talk.next()
    talk.client.fails = Unreachable("no server answers (x: connection refused)")
    talk.line.give_up("the server is gone")
    last = wait_for(lambda: [one for one in talk.news() if one.kind == "exit"])[0]
    assert (last.why, last.exit_code, last.stop_timeout_s) == ("the server is gone", 1, 30.0)
    before = time.monotonic()
    talk.line.leave("x", 5.0)
    assert time.monotonic() - before < 5.0
    talk.line.close()
    talk.line.give_up("late")  # harmless


def test_whoever_is_in_a_hurry_does_not_wait_for_one_that_is_away(talk: Talk) -> None:
    """A failover may be under way, so it is waited for long, and said; a second Ctrl-C ends that."""
    talk.begin()
    talk.next()
    talk.client.hangs = True
    waits = lambda: any("telling the server that this node leaves" in text for text in talk.told)  # noqa: E731
    talk.line.leave("its agent got SIGINT", 60.0, waits)
    assert talk.told[-1].endswith("for 60 s at most; press again to end")
    talk.client.hangs = False


# -- questions ---------------------------------------------------------------------------------------------


def daemon() -> Report[Directive]:
    return Report(DAEMON, partial(DaemonRequest, master="a", round=1, words=("orted",)), to="b")


def test_what_the_agent_asks_is_answered_refused_or_cancelled(talk: Talk) -> None:
    talk.client.says = start(1)
    talk.begin()
    talk.next()
    assert talk.line.ask(daemon()).result(10) == talk.client.says
    assert [(one.round, one.incarnation) for one in talk.client.heard("daemon")] == [(1, "1")]
    talk.client.fails = Problem(409, "refused", "it runs another one", {})
    refused = talk.line.ask(daemon()).exception(10)
    assert isinstance(refused, HetError)
    assert str(refused) == "it runs another one"
    talk.client.fails = Unreachable("no server answers")
    waiting = talk.line.ask(daemon())
    talk.line.leave("over", 10.0)
    assert waiting.cancelled()
    talk.line.close()
    assert talk.line.ask(daemon()).cancelled()
