"""A planned stop through the API: open polls are answered, agents of any age, a failover, what people see."""

import asyncio
from typing import Any

import httpx

from hetrdzv.storage.base import Snapshot
from tests.support.served import FaultyStore, api, polled, serving, settled

NODES = "/v1/groups/g/nodes"
SPEC = {"min_nodes": 2, "max_nodes": 2, "notice_s": 600.0}


async def begin(client: httpx.AsyncClient, **more: Any) -> None:
    """Round 1 runs on node a, whose agent takes notice, and on node b, whose agent does not."""
    offer: dict[str, Any] = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000}
    offer |= {"spec": SPEC | more}
    for node_id in "ab":
        takes = {"takes_notice": True} if node_id == "a" else {}
        assert (await client.put(f"{NODES}/{node_id}", json=offer | takes)).status_code == 200
    for node_id in "ab":
        await report(client, node_id, "started")


async def report(client: httpx.AsyncClient, node_id: str, kind: str) -> dict[str, Any]:
    body = {"incarnation": "1", "round": 1, "kind": kind}
    reply: dict[str, Any] = (await client.post(f"{NODES}/{node_id}/report", json=body)).json()
    return reply


async def test_who_takes_notice_is_told_at_once_and_an_older_agent_only_of_the_stop() -> None:
    async with serving() as (service, _), api(service) as client:
        await begin(client)
        before = {node_id: await polled(client, node_id) for node_id in "ab"}
        polls = {n: asyncio.create_task(polled(client, n, before[n]["version"])) for n in "ab"}
        await settled(50)
        group = (await client.post("/v1/groups/g/restart")).json()
        assert (group["state"], group["reason"]["code"]) == ("running", "stop_announced")
        assert group["reason"]["nodes"] == ["a"]
        notice = group["current_round"]["notice"]
        assert (notice["kind"], notice["reason"]["code"]) == ("restarted", "restart_requested")
        assert 590 < notice["left_s"] <= 600
        told = await polls["a"]
        assert (told["kind"], told["code"], told["start"]) == ("start", "notice", before["a"]["start"])
        assert told["notice"]["kind"] == "restarted"
        await settled(50)
        assert not polls["b"].done()
        assert (await report(client, "a", "ready_to_stop"))["kind"] == "stop"
        over = (await client.get("/v1/groups/g")).json()["current_round"]
        assert (over["ended"]["code"], over["ended"]["round"]) == ("restart_requested", 1)
        assert (await polls["b"])["kind"] == "stop"


async def test_it_outlives_the_server_and_each_word_costs_one_small_record() -> None:
    store = FaultyStore()
    async with serving(store) as (service, _), api(service) as client:
        await begin(client, min_nodes=1)
        await client.post("/v1/groups/g/cancel")
        version = (await polled(client, "a"))["version"]
        content: Snapshot = await store.load()
    store = FaultyStore(content)
    async with serving(store) as (service, _), api(service) as client:
        told = await polled(client, "a")
        assert (told["version"], told["notice"]["kind"]) == (version, "cancelled")
        store.commits.clear()
        assert (await report(client, "a", "ready_to_stop"))["outcome"] == "cancelled"
        puts = {key for batch in store.commits for key in batch.puts if "events" not in key}
        over = "groups/g/rounds/000000000001"
        assert puts == {"groups/g/nodes/a", "groups/g/group", "groups/g/round", over}


async def test_a_group_of_older_agents_is_stopped_at_once() -> None:
    async with serving() as (service, _), api(service) as client:
        offer = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000, "spec": SPEC}
        for node_id in "ab":
            await client.put(f"{NODES}/{node_id}", json=offer)
        for node_id in "ab":
            await report(client, node_id, "started")
        group = (await client.post("/v1/groups/g/restart")).json()
        assert group["state"] == "waiting"
