"""Snapshots over HTTP: in joins and starts, while a round runs, after a failover, for people; and never a key."""

import json
from typing import Any

import httpx
import pytest

from tests.support.served import api, serving

GROUP = "/v1/groups/g"
NODES = f"{GROUP}/nodes"
KEY = "the-key-of-a-node"


def held(step: int, of: int = 1, **more: Any) -> dict[str, Any]:
    return {"round": of, "step": step, "world_size": 2, "whole": True, "size": 1_500_000_000} | more


def inventory(*what: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"port": 7000, "key": KEY, "held": list(what), **more}


async def join(client: httpx.AsyncClient, node_id: str, **more: Any) -> dict[str, Any]:
    offer: dict[str, Any] = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000}
    spec = {"min_nodes": 2, "max_nodes": 2, "restart_wait_s": 0}
    offer |= {"spec": spec, "snapshots": inventory()} | more
    reply = await client.put(f"{NODES}/{node_id}", json=offer)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


async def told(client: httpx.AsyncClient, node_id: str) -> dict[str, Any]:
    """A node's `start`."""
    reply = await client.get(f"{NODES}/{node_id}/directive", params={"incarnation": "1"})
    body: dict[str, Any] = reply.json()["start"]
    return body


async def declare(client: httpx.AsyncClient, node_id: str, what: dict[str, Any], of: int = 1) -> Any:
    body = {"incarnation": "1", "round": of, "inventory": what}
    return await client.post(f"{NODES}/{node_id}/snapshots", json=body)


async def report(client: httpx.AsyncClient, node_id: str, kind: str, of: int = 1, **more: Any) -> None:
    body = {"incarnation": "1", "round": of, "kind": kind} | more
    (await client.post(f"{NODES}/{node_id}/report", json=body)).raise_for_status()


async def fail(client: httpx.AsyncClient, of: int, what: dict[str, Any]) -> None:
    """A round fails, and both nodes come again with what they hold."""
    failure = {"local_rank": 0, "rank": 0, "exit_code": 1, "message": "ValueError: loss is nan"}
    await report(client, "a", "failed", of, failure=failure)
    for name in "ab":
        await join(client, name, after_round=of, snapshots=what)


async def begin(client: httpx.AsyncClient) -> str:
    """Both nodes run round 1; returns the name of the job."""
    for name in "ab":
        await join(client, name)
    for name in "ab":
        await report(client, name, "started")
    origin = (await told(client, "a"))["origin"]
    assert (await told(client, "b"))["origin"] == origin
    return str(origin)


async def test_members_hear_what_is_complete_and_the_next_round_begins_from_it() -> None:
    async with serving() as (service, _), api(service) as client:
        origin = await begin(client)
        assert "snapshot" not in await told(client, "a")
        stale = await declare(client, "a", inventory(origin=origin), of=2)
        assert (stale.status_code, stale.json()["code"]) == (409, "stale_round")
        sharded = {"sharded": True}
        part = {"ranks": [{"rank": 0, "digest": "d0"}], **sharded}
        reply = await declare(client, "a", inventory(held(8, **part), origin=origin))
        assert (reply.status_code, reply.json()) == (200, {})
        part = {"ranks": [{"rank": 1, "digest": "d1"}], **sharded}
        reply = await declare(client, "b", inventory(held(8, **part), origin=origin))
        assert reply.json()["copy"]["source"]["ranks"] == [{"rank": 0, "digest": "d0"}]
        both = {"ranks": [{"rank": 0, "digest": "d0"}, {"rank": 1, "digest": "d1"}], **sharded}
        for name in "ab":
            reply = await declare(client, name, inventory(held(8, **both), origin=origin))
        assert reply.json() == {"complete": {"round": 1, "step": 8}}
        assert (await client.get(GROUP)).json()["snapshot"]["safe"] == {"round": 1, "step": 8, "origin": None}
        await fail(client, 1, inventory(held(5), origin=origin, reached=7))
        snapshot = (await told(client, "b"))["snapshot"]
        assert (snapshot["round"], snapshot["step"], snapshot["lost"]) == (1, 5, 2)
        source = {"address": "10.0.0.1", "port": 7000, "key": KEY, "whole": True, "ranks": []}
        assert snapshot["sources"] == [{"node_id": name, **source} for name in "ba"]


async def everything_shown(client: httpx.AsyncClient) -> str:
    """All that people can see of a group."""
    paths = [GROUP, "/v1/groups", f"{GROUP}/events", f"{GROUP}/snapshots", "/metrics"]
    replies = [(await client.get(path)).raise_for_status().text for path in (*paths, "/groups/g", "/")]
    replies.append((await client.post(f"{GROUP}/plan", json={"drain": "b"})).raise_for_status().text)
    return "\n".join(replies)


async def test_keys_are_told_to_members_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with serving() as (service, store), api(service) as client:
        origin = await begin(client)
        both = inventory(held(8), origin=origin, reached=9)
        await declare(client, "a", both)
        for number in (1, 2, 3):
            await fail(client, number, both)
        await client.put(f"{NODES}/c", json={"incarnation": "1", "snapshots": both})
        assert KEY in json.dumps(await told(client, "a"))
        stored = "\n".join(value.decode() for value in store.content.records.values())
        assert stored.count(KEY) > 2, "both nodes and the round"
        shown = await everything_shown(client)
        assert KEY not in shown
        assert KEY not in caplog.text
        assert "step 8 of round 1" in shown
        assert "have: 1 step lost" in shown
