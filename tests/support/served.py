"""Runs the service in this process, on a store that fails or waits on command, and its API without sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import httpx

from hetrdzv.api.app import create_app
from hetrdzv.auth.tokens import FULL_GRANT, Tokens
from hetrdzv.core.commands import Join, Report
from hetrdzv.core.model import Group
from hetrdzv.protocol.states import ReportKind
from hetrdzv.service import service as service_module
from hetrdzv.service.clock import BEAT_INTERVAL_S, ServedClock
from hetrdzv.service.service import Service
from hetrdzv.storage.base import MemoryStore, RecordChanges, StoreContent

NEVER_S = 3600.0
"""Longer than any test (seconds)."""


class FaultyStore(MemoryStore):
    """A store in memory whose next commits and loads can be made to fail or wait."""

    def __init__(self, content: StoreContent | None = None) -> None:
        super().__init__()
        if content is not None:
            self._records, self._clock = dict(content.records), content.clock
        self.failures: list[Exception] = []
        self.is_written = False  # what fails is written all the same
        self.load_failures: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()
        self.commits: list[RecordChanges] = []

    async def load(self) -> StoreContent:
        if self.load_failures:
            raise self.load_failures.pop(0)
        return await super().load()

    async def commit(self, changes: RecordChanges, clock: float) -> None:
        await self.open.wait()
        failures, self.failures = self.failures[:1], self.failures[1:]
        if self.is_written or not failures:
            self.commits.append(changes)
            await super().commit(changes, clock)
        for failure in failures:
            raise failure

    @property
    def content(self) -> StoreContent:
        """All that is stored, even after the store was closed."""
        return StoreContent(dict(self._records), self._clock)

    @property
    def keys(self) -> set[str]:
        """The keys that are stored."""
        return set(self._records)


class HandClock:
    """A monotonic clock that tests advance (seconds)."""

    def __init__(self) -> None:
        self.at = 1000.0

    def make(self, base: float) -> ServedClock:
        return ServedClock(base, lambda: self.at)

    def pass_by(self, service: Service, seconds: float) -> None:
        """Advance beat by beat."""
        while seconds > 0:
            self.at += min(seconds, BEAT_INTERVAL_S)
            seconds -= BEAT_INTERVAL_S
            service.leases.begin_beat()
            service.leases.find_expired_groups()


@asynccontextmanager
async def serving(
    store: FaultyStore | None = None, clock: HandClock | None = None, **options: Any
) -> AsyncIterator[tuple[Service, FaultyStore]]:
    """Run a service; yields it and its store. With a clock that is moved by hand, beats are, too."""
    store = store or FaultyStore()
    beat_s = service_module.BEAT_INTERVAL_S
    if clock is not None and beat_s == BEAT_INTERVAL_S:  # unless the test has its own
        beat_s = NEVER_S
    with mock.patch.object(service_module, "BEAT_INTERVAL_S", beat_s):
        service = Service(store, clock.make if clock is not None else ServedClock, **options)
        await service.start()
        try:
            yield service, store
        finally:
            store.open.set()
            await service.close()


@asynccontextmanager
async def api(service: Service, token: str | None = None, **access: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service's API."""
    if token is not None:
        access["tokens"] = Tokens({token: FULL_GRANT})
    transport = httpx.ASGITransport(create_app(service, **access))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def ask_raw(app: Any, path: str, messages: list[Any], method: str = "PUT") -> list[Any]:
    """Put the messages as the body of a request, which then waits; returns the messages of the reply."""

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.get_running_loop().create_future()

    replies: list[Any] = []

    async def send(message: Any) -> None:
        replies.append(message)

    names = {"host": "localhost", "content-length": "900", "content-type": "application/json"}
    headers = [(name.encode(), value.encode()) for name, value in names.items()]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    await app(scope | {"headers": headers}, receive, send)
    return replies


async def polled(client: httpx.AsyncClient, node_id: str, after: str | None = None) -> dict[str, Any]:
    """What a node of group g is told, once it is not what `after` names."""
    query = {"incarnation": "1"} | ({} if after is None else {"after": after, "wait": "60"})
    body: dict[str, Any] = (await client.get(f"/v1/groups/g/nodes/{node_id}/directive", params=query)).json()
    return body


def join(node_id: str, incarnation: str = "1", after_round: int = 0, **spec: object) -> Join:
    return Join(
        node_id=node_id,
        incarnation=incarnation,
        slots=1,
        address="10.0.0.1",
        port=4000,
        after_round=after_round,
        spec=spec,
    )


def started(node_id: str, round_number: int = 1, incarnation: str = "1") -> Report:
    return Report(node_id=node_id, incarnation=incarnation, round=round_number, kind=ReportKind.STARTED)


async def settled(turns: int = 20) -> None:
    """Let tasks run until they wait for time to pass."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def two_nodes(service: Service, group_id: str = "g", **settings: Any) -> Group:
    """Make a group that runs round 1 on nodes a and b."""
    await service.execute(group_id, join("a", min_nodes=2, max_nodes=2, **settings))
    await service.execute(group_id, join("b"))
    await service.execute(group_id, started("a"))
    return await service.execute(group_id, started("b"))
