"""What an agent that leaves does for the others, with a real process that serves; tests/e2e has the whole of it."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import httpx
import pytest
from tests.agent.rig import soon
from tests.agent.snapshots.node.standin import part
from tests.agent.workers.test_store import start

from hetagent.node.network import hold_port
from hetagent.node.processes.identity import Identity
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import Report
from hetagent.snapshots.node import handover as handovers
from hetagent.snapshots.node.handover import SERVES_S, Handover
from hetagent.snapshots.node.server import SnapshotServer
from hetrdzv.client.client import Client
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import Problem, StaleIncarnation, Unreachable
from hetrdzv.protocol.requests import ReportRequest
from hetrdzv.protocol.routes import Route, Routes
from hetrdzv.protocol.snapshots import HeldSnapshot, Holdings
from hetrdzv.protocol.states import DirectiveKind, ReportKind

IDENTITY = Identity("g", "a", "1234")


class Others:
    """A server that says whether other nodes go on, and a line to it."""

    def __init__(self) -> None:
        self.says: str | Exception = "serves"
        self.reports: list[ReportRequest] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def ask(self, route: Route[Any], *given: Any, **query: str) -> Directive:
        assert given[:2] == ("g", "a")
        if route is Routes.report:
            self.reports.append(given[2])
        else:
            assert query == {"incarnation": "1234"}
        return self._answer()

    def _answer(self) -> Directive:
        if isinstance(self.says, Exception):
            raise self.says
        kind = DirectiveKind.EXIT if self.says == "left" else DirectiveKind.WAIT
        return replace(start("a", 4), kind=kind, code=self.says, start=None)

    def send(self, report: Report[Any]) -> None:
        self.reports.append(cast(ReportRequest, report.body(incarnation="1234", age_s=0.0)))


class Node:
    """A node that holds a snapshot, and leaves after round 3."""

    def __init__(self, path: Path) -> None:
        self.said: list[str] = []
        self.others = Others()
        hold = lambda: hold_port("127.0.0.1", None)  # noqa: E731
        self.serving = SnapshotServer(path, hold, lambda: "127.0.0.1", self.said.append)
        part(path, 1, (3, 120))
        self.serving.start()
        self.fetched()  # it has started
        line, connect = cast(ServerConnection, self.others), lambda: cast(Client, self.others)
        self.handover = Handover(IDENTITY, line, self.serving, connect, self.said.append)

    def holdings(self, step: int = 120, number: int = 3, **more: Any) -> Holdings:
        held = HeldSnapshot(round=number, step=step, world_size=2, **({"sharded": True} | more))
        return Holdings(origin="o", port=self.serving.port, key="k", held=(held,))

    def fetched(self) -> None:
        key = {"Authorization": f"Bearer {self.serving.key}"}
        url = f"http://127.0.0.1:{self.serving.port}/3-120/shared.bin"
        assert httpx.get(url, headers=key, trust_env=False, timeout=60).status_code == 200

    def finishes(self, hurried: threading.Event | None = None, *, patient: bool = True) -> float:
        """Returns how long that takes (seconds)."""
        began = time.monotonic()
        is_hurried = hurried.is_set if hurried is not None else lambda: False
        self.handover.wait(is_hurried, patient=patient)
        return time.monotonic() - began


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(handovers, "ASK_S", 0.05)
    made = Node(tmp_path)
    yield made
    made.serving.close()


def begins(node: Node, until: float | None = None, *, alone: bool = False, **more: Any) -> bool:
    return node.handover.announce(3, "its agent got SIGTERM", node.holdings(**more), until, alone=alone)


def test_it_says_what_it_serves_and_waits_until_the_others_have_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handovers, "ASK_S", 0.05)
    assert begins(node)
    (report,) = node.others.reports
    assert (report.kind, report.round, report.message) == (ReportKind.PARTING, 3, "its agent got SIGTERM")
    assert (report.snapshots, report.serves_s) == (node.holdings(), SERVES_S)
    assert node.said == [
        "the other nodes load what only this one has of step 120, for 60 s at most; Ctrl-C leaves at once"
    ]
    finishing = threading.Thread(target=node.finishes)
    finishing.start()
    time.sleep(0.5)
    node.fetched()
    assert finishing.is_alive(), "others may need it"
    node.others.says = "left"
    soon(lambda: not finishing.is_alive(), "the end")


@pytest.mark.parametrize("answer", ["left", Problem(409, StaleIncarnation.code, "")])
def test_it_stays_for_nobody_who_is_not_there(node: Node, answer: str | Exception) -> None:
    node.others.says = answer
    assert begins(node)
    assert node.finishes() < 30


def test_whoever_is_in_a_hurry_does_not_wait(node: Node) -> None:
    hurried = threading.Event()
    hurried.set()
    assert begins(node)
    assert node.finishes(hurried) < 30
    assert [(one.kind, one.serves_s) for one in node.others.reports[1:]] == [(ReportKind.PARTING, 0.0)]


def test_it_stays_no_longer_than_it_may(node: Node) -> None:
    node.others.says = Unreachable("no server")
    assert begins(node, time.monotonic() + 0.5, number=2), "a round ago: it may be nowhere else"
    (report,) = node.others.reports
    assert report.serves_s is not None
    assert 0 < report.serves_s <= 0.5
    assert 0.1 < node.finishes() < 30


def test_while_a_server_takes_over_it_still_serves_and_leaves_time_for_the_disk(node: Node) -> None:
    node.others.says = Unreachable("no server")
    assert node.finishes(patient=False) < 0.4, "nobody needs this node"
    assert begins(node, time.monotonic() + 20)
    threading.Timer(0.5, setattr, (node.others, "says", "left")).start()
    assert 0.4 < node.finishes(patient=False) < 8
    assert len(node.others.reports) == 1, "not that it serves no more"
    node.others.says = Unreachable("no server")
    assert begins(node, time.monotonic() + 4)
    assert 1 < node.finishes(patient=False) < 3


@pytest.mark.parametrize("in_a_hurry", [True, False])
def test_a_resolver_that_hangs_keeps_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch, in_a_hurry: bool
) -> None:
    monkeypatch.setattr(handovers, "ASK_S", 0.1)
    answered, hurried = threading.Event(), threading.Event()

    ask = node.others.ask

    async def hang(route: Route[Any], *given: Any, **query: str) -> Directive:
        if route is Routes.report:
            return await ask(route, *given)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: answered.wait(20) and node.others._answer())

    monkeypatch.setattr(node.others, "ask", hang)
    assert begins(node, None if in_a_hurry else time.monotonic() + 0.5)
    if in_a_hurry:
        threading.Timer(0.5, hurried.set).start()
    try:
        assert 0.3 < node.finishes(hurried) < 10
    finally:
        answered.set()


def test_what_others_have_is_not_served(node: Node) -> None:
    assert not begins(node, sharded=False)
    assert not begins(node, time.monotonic() - 1)
    assert not node.handover.announce(3, "", Holdings(), None, alone=False)
    assert (node.others.reports, node.said) == ([], [])
    assert node.finishes() < 0.1
    assert begins(node, sharded=False, alone=True), "others may wait for it"
    node.serving.close()
    assert not begins(node)
