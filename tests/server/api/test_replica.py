"""The application of one of several servers: redirects, and replies that a deposed leader withholds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from hetrdzv.api.app import create_app
from hetrdzv.auth.tokens import FULL_GRANT, Tokens
from hetrdzv.core.commands import PutSpec
from hetrdzv.protocol.errors import HetError, NoLeader, NotLeader, ServerStopping
from hetrdzv.protocol.replies import ReadyReply
from hetrdzv.service.service import Service
from hetrdzv.storage.base import NothingWritten
from tests.support.served import FaultyStore, api, ask_raw, serving, settled, two_nodes

LEADER = "http://leader:29400"
POLL = "/v1/groups/g/nodes/a/directive?incarnation=1&wait=30"


class FakeReplica:
    """A replica that does as it is told.

    Attributes:
        error: why nobody answers here; None: the service does.
        deposed: whether nothing may be told any more.
    """

    def __init__(self, service: Service) -> None:
        self.answering = service
        self.error: HetError | None = None
        self.deposed = False

    def service(self) -> Service:
        if self.error is not None:
            raise self.error
        return self.answering

    def may_send_reply(self, service: Service) -> bool:
        return service is self.answering and not self.deposed

    def status(self) -> ReadyReply:
        if isinstance(self.error, NotLeader):
            return ReadyReply(status="ready", role="follower", leader=self.error.leader)
        return replace(self.service().status(), role="leader", leader="http://me:1")

    def begin_stop(self) -> None: ...


@asynccontextmanager
async def replica(
    token: str | None = None,
) -> AsyncIterator[tuple[FakeReplica, httpx.AsyncClient, FaultyStore]]:
    async with serving() as (service, store):
        fake = FakeReplica(service)
        transport = httpx.ASGITransport(
            create_app(fake, tokens=Tokens({token: FULL_GRANT}) if token else None)
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield fake, client, store


@pytest.mark.parametrize(
    "target",
    ["/v1/groups", "/v1/groups/g?x=1&y=%2F", "/v1/groups/g/nodes/n%2Fm/report", "/v1/groups/%0d%0aX-Evil:1"],
)
async def test_a_follower_points_to_the_leader(target: str) -> None:
    async with replica() as (fake, client, _):
        fake.error = NotLeader(f"ask {LEADER}", LEADER)
        for method in ("GET", "PUT", "POST", "DELETE"):
            reply = await client.request(method, target, content=b"x" * 1000)
            assert (reply.status_code, reply.json()["code"]) == (307, "not_leader")
            assert reply.headers["location"] == LEADER + target
            assert "x-evil" not in reply.headers


async def test_a_page_of_a_follower_is_one_of_the_leader() -> None:
    async with replica() as (fake, client, _):
        fake.error = NotLeader(f"ask {LEADER}", LEADER)
        for path in ("/", "/groups/g?rows=all"):
            reply = await client.get(path)
            assert (reply.status_code, reply.headers["location"]) == (307, LEADER + path)
        for path in ("/sign-in", "/static/page.css"):
            assert (await client.get(path)).status_code == 200


async def test_who_may_not_ask_is_not_told_who_leads() -> None:
    async with replica(token="secret") as (fake, client, _):
        fake.error = NotLeader(f"ask {LEADER}", LEADER)
        reply = await client.get("/v1/groups")
        assert reply.status_code == 401
        assert "location" not in reply.headers
        reply = await client.get("/v1/groups", headers={"Authorization": "Bearer secret"})
        assert reply.status_code == 307


@pytest.mark.parametrize("error", [NoLeader("none leads"), ServerStopping("it stops")])
async def test_while_nobody_answers_it_says_when_to_ask_again(error: HetError) -> None:
    async with replica() as (fake, client, _):
        fake.error = error
        for path in ("/v1/groups", "/readyz"):
            reply = await client.get(path)
            assert (reply.status_code, reply.json()["code"]) == (503, error.code)
            assert reply.headers["retry-after"] == "1"
        assert (await client.get("/healthz")).status_code == 200


async def test_a_server_that_cannot_store_is_degraded_and_goes_on_answering() -> None:
    """With a 503 it would be taken out of its Kubernetes Service, and its polls with it."""
    async with serving() as (service, store), api(service) as client:
        assert (await client.put("/v1/groups/secret-name", json={})).status_code == 200
        for failing in (True, False):
            store.failures = [NothingWritten("no room for secret-name")] * failing
            reply = await client.post("/v1/groups/secret-name/cancel")
            assert reply.status_code == (503 if failing else 200)
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (200, "degraded" if failing else "ready")
            assert "secret-name" not in ready.text
            assert f"hetrdzv_commits_failing {float(failing)}" in (await client.get("/metrics")).text
            assert (await client.get("/v1/groups/secret-name")).status_code == 200


async def test_a_deposed_leader_does_not_say_what_it_had_to_say() -> None:
    async with replica() as (fake, client, store):
        store.open.clear()
        put = asyncio.ensure_future(client.put("/v1/groups/g", json={}))
        await settled()
        fake.deposed = True
        store.open.set()
        reply = await put
        assert (reply.status_code, reply.json()["code"]) == (503, "leader_lost")
        assert reply.headers["retry-after"] == "1"
        assert "state" not in reply.json()
        stranger = POLL.replace("nodes/a", "nodes/nobody")  # a refusal tells of a group, too
        for path in ("/v1/groups", "/v1/groups/g", "/v1/groups/none", "/v1/groups/g/events", stranger):
            assert (await client.get(path)).json()["code"] == "leader_lost"


async def test_an_open_poll_of_a_deposed_leader_is_refused_at_once() -> None:
    async with replica() as (fake, client, _):
        await two_nodes(fake.answering)
        version = (await client.get(POLL.replace("wait=30", "wait=0"))).json()["version"]
        poll = asyncio.ensure_future(client.get(f"{POLL}&after={version}"))
        await settled()
        assert not poll.done()
        fake.deposed = True
        fake.answering.begin_stop()
        reply = await asyncio.wait_for(poll, 1.0)
        assert (reply.status_code, reply.json()["code"]) == (503, "leader_lost")


async def test_a_request_that_a_deposed_and_stopping_server_gives_up_is_answered() -> None:
    """uvicorn cancels what is still running after its grace period."""
    async with serving() as (service, store):
        fake = FakeReplica(service)
        await service.execute("g", PutSpec({}))
        store.open.clear()
        asking = asyncio.ensure_future(ask_raw(create_app(fake), "/v1/groups/g", [], "DELETE"))
        await settled()
        fake.deposed = True
        asking.cancel()
        sent = await asking
        assert [message.get("status") for message in sent] == [503, None]
        assert b"server_stopping" in sent[1]["body"]
