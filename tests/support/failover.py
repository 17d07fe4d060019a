"""Runs several real servers on one etcd cluster, with nodes that talk to whichever server leads."""

import asyncio
import http.client
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, Self, TypeVar

from hetrdzv.client.client import Client
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import Unreachable
from hetrdzv.protocol.progress import PollRequest
from hetrdzv.protocol.requests import JoinRequest, ReportRequest, SpecFields
from hetrdzv.protocol.states import ReportKind
from tests.support.etcd import EtcdCluster
from tests.support.servers import Hetserver

T = TypeVar("T")

WAIT_S = 20.0
LEASE_S = 3
"""hetserver's default."""

FAILOVER_S = LEASE_S + 2.5
"""Longer than a failover takes, even on a busy machine: see docs/operations.md."""

SPEC = {"min_nodes": 2, "max_nodes": 2, "lease_s": 5}


class Servers:
    """Servers on one etcd cluster.

    Args:
        prefix: under which they keep their state.
        count: how many.
    """

    def __init__(self, etcd: EtcdCluster, prefix: str, count: int) -> None:
        self.all = [Hetserver(etcd.url(prefix)) for _ in range(count)]
        self.urls = [server.url for server in self.all]

    def heal(self) -> None:
        """Restart those that are not running, and wait until one leads."""
        self.restart()
        self.leader()

    def restart(self) -> None:
        """Restart those that are not running."""
        gone = [server for server in self.all if server.process.poll() is not None]
        for server in gone:
            if server.process.stdin is not None:
                server.process.stdin.close()
        with ThreadPoolExecutor() as pool:
            list(pool.map(Hetserver.start, gone))

    def leader(self) -> Hetserver:
        """Wait until one leads; returns it."""
        return self.await_leader()[0]

    def await_leader(self, but: Hetserver | None = None) -> tuple[Hetserver, float]:
        """Wait until one answers requests about groups; returns it, and when it first did (monotonic seconds)."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            for server in self.others(but):
                if get(server, "/v1/groups", timeout_s=1.0)[0] == 200:
                    return server, time.monotonic()
            time.sleep(0.01)
        raise AssertionError("nobody leads:\n" + "\n".join(server.log for server in self.all))

    def others(self, leader: Hetserver | None) -> list[Hetserver]:
        return [server for server in self.all if server is not leader]


@contextmanager
def serving(etcd: EtcdCluster, prefix: str, count: int) -> Iterator[Servers]:
    servers = Servers(etcd, prefix, count)
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        for started in [pool.submit(server.__enter__) for server in servers.all]:
            stack.push(started.result())
        yield servers
        for server in servers.all:
            assert "Traceback" not in server.log, server.log


def get(server: Hetserver, path: str, timeout_s: float = WAIT_S) -> tuple[int, dict[str, str], Any]:
    """Send a GET; returns status, headers and JSON. The status is 0 if there was no answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)) as connection:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            return 0, {}, None


class Node:
    """As much of an agent as these tests need: it joins, then polls.

    Attributes:
        told: every directive that differed from the one before.
    """

    def __init__(self, client: Client, group: str, node_id: str) -> None:
        self.told: list[Directive] = []
        self._news = asyncio.Event()
        self._client = client
        self._group = group
        self._node_id = node_id

    async def join(self, after_round: int = 0) -> None:
        request = JoinRequest(
            incarnation="1",
            slots=1,
            address="10.0.0.1",
            port=4000,
            after_round=after_round,
            spec=SpecFields(**SPEC),
        )
        self._note(await _until_served(lambda: self._client.join(self._group, self._node_id, request)))

    async def report(self, kind: ReportKind, round_number: int) -> None:
        request = ReportRequest(incarnation="1", round=round_number, kind=kind)
        self._note(await _until_served(lambda: self._client.report(self._group, self._node_id, request)))

    async def until(self, kind: str, round_number: int) -> None:
        """Wait for a directive of a kind for a round."""
        async with asyncio.timeout(WAIT_S):
            while (self.told[-1].kind, self.told[-1].round) != (kind, round_number):
                await self.news()

    async def news(self) -> None:
        """Wait for a directive that no earlier call has waited for."""
        await self._news.wait()
        self._news.clear()

    async def poll(self) -> None:
        while True:
            last, began = self.told[-1].version, time.monotonic()
            request = PollRequest(incarnation="1", after=last, wait_s=2.5)
            self._note(await _until_served(partial(self._client.poll, self._group, self._node_id, request)))
            if self.told[-1].version == last:
                await asyncio.sleep(max(0.0, began + 0.1 - time.monotonic()))

    def _note(self, directive: Directive) -> None:
        if not self.told or directive.version != self.told[-1].version:
            self.told.append(directive)
            self._news.set()


async def _until_served(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while no server leads, as an agent does."""
    pause_s = 0.1
    while True:
        try:
            return await call()
        except Unreachable:
            await asyncio.sleep(pause_s)
            pause_s = min(1.0, pause_s * 2)


class Job:
    """A group in round 1 on nodes a and b, which poll like agents until the block ends."""

    numbers = itertools.count()

    def __init__(self, servers: Servers) -> None:
        self.group_id = f"g{next(self.numbers)}"
        self.client = Client(servers.urls)
        self._clients = [Client(servers.urls) for _ in "ab"]
        self.a, self.b = self.nodes = [
            Node(client, self.group_id, name) for client, name in zip(self._clients, "ab", strict=True)
        ]
        self._polls: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(node.join() for node in self.nodes))
        self._polls = [asyncio.ensure_future(node.poll()) for node in self.nodes]
        for node in self.nodes:
            await node.until("start", 1)
        await asyncio.gather(*(node.report(ReportKind.STARTED, 1) for node in self.nodes))
        assert (await self.group())["state"] == "running"
        return self

    async def __aexit__(self, *_: object) -> None:
        for poll in self._polls:
            assert not poll.done(), poll.result()
            poll.cancel()
        await asyncio.gather(*self._polls, return_exceptions=True)
        await asyncio.gather(*(client.aclose() for client in (self.client, *self._clients)))

    async def group(self) -> dict[str, Any]:
        """The group, without what changes with time."""
        async with asyncio.timeout(WAIT_S):
            group = await _until_served(lambda: self.client.group(self.group_id))
        shown: dict[str, Any] = json.loads(codec.to_json(group, nulls=True))
        del shown["clock"]
        for node in shown["nodes"]:
            node.pop("heard_s_ago", None)
        return shown

    async def goes_on(self, for_s: float = SPEC["lease_s"] + 1.2) -> None:
        """No node is declared lost within more than a lease; then the job succeeds."""
        await asyncio.sleep(for_s)
        group = await self.group()
        assert (group["state"], group["round"], group["restarts"]) == ("running", 1, 0)
        await self.end()
        assert [
            [(told.kind, told.round) for told in node.told if told.kind != "wait"] for node in self.nodes
        ] == [[("start", 1), ("exit", 1)]] * 2

    async def end(self) -> None:
        for node in self.nodes:
            await node.report(ReportKind.SUCCEEDED, self.nodes[0].told[-1].round)
        for node in self.nodes:
            await node.until("exit", node.told[-1].round)
        assert (await self.group())["state"] == "succeeded"
