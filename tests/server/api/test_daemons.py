"""The master's agent has another node run orted: through the API, committed, and after a failover."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.served import api, polled, serving, settled

NODES = "/v1/groups/g/nodes"
ORTED = ["orted", "-mca", "orte_hnp_uri", "1.0;tcp://10.0.0.1:5000"]
ASKED = {"master": "a", "incarnation": "1", "round": 1, "words": ORTED}


async def begin(client: httpx.AsyncClient) -> None:
    """Round 1 on nodes a, the master, and b."""
    offer: dict[str, Any] = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000}
    offer |= {"wants_members": True, "wants_daemon": True, "spec": {"min_nodes": 2, "max_nodes": 2}}
    for node_id in "ab":
        assert (await client.put(f"{NODES}/{node_id}", json=offer)).status_code == 200


async def test_the_open_poll_of_the_member_is_answered_with_its_daemon() -> None:
    async with serving() as (service, _), api(service) as client:
        await begin(client)
        before = {node_id: await polled(client, node_id) for node_id in "ab"}
        assert [
            {name: place[name] for name in ("node_id", "group_rank", "rank_offset", "slots", "address")}
            for place in before["b"]["start"]["members"]
        ] == [
            {"node_id": "a", "group_rank": 0, "rank_offset": 0, "slots": 1, "address": "10.0.0.1"},
            {"node_id": "b", "group_rank": 1, "rank_offset": 1, "slots": 1, "address": "10.0.0.1"},
        ]
        polls = [asyncio.create_task(polled(client, node_id, before[node_id]["version"])) for node_id in "ba"]
        await settled(50)
        for _ in range(2):  # its answer may have been lost
            reply = await client.post(f"{NODES}/b/daemon", json=ASKED)
            assert (reply.status_code, reply.json() | {"clock": before["a"]["clock"]}) == (200, before["a"])
        told = await polls[0]
        assert (told["kind"], told["round"], told["code"]) == ("start", 1, "daemon")
        assert told["start"] == before["b"]["start"] | {"daemon": ORTED}
        assert not polls[1].done()
        polls[1].cancel()
        events = (await client.get("/v1/groups/g/events")).json()["events"]
        assert [
            (one["reason"]["code"], one["reason"]["nodes"], one["reason"]["round"]) for one in events[-1:]
        ] == [("daemon_started", ["a"], 1)]


@pytest.mark.parametrize(
    ("node_id", "change", "status", "code"),
    [
        ("b", {"round": 2}, 409, "stale_round"),
        ("x", {}, 404, "not_found"),
        ("b", {"words": ["sh", "-c", "orted"]}, 409, "refused"),
        ("b", {"words": ["orted", "x" * 32_769]}, 422, "invalid_request"),
        ("b", {"words": ["orted"] * 1025}, 422, "invalid_request"),
    ],
)
async def test_what_is_refused(node_id: str, change: dict[str, Any], status: int, code: str) -> None:
    async with serving() as (service, _), api(service) as client:
        await begin(client)
        reply = await client.post(f"{NODES}/{node_id}/daemon", json=ASKED | change)
        assert (reply.status_code, reply.json()["code"]) == (status, code)
        assert ("directive" in reply.json()) is (code == "stale_round")
        assert "daemon" not in (await polled(client, "b"))["start"]
