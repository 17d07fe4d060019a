"""The replies of the routes; no sockets."""

import asyncio
from typing import Any

import httpx

from hetrdzv.api.views import LARGE
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Directive, Shares
from tests.support.served import api, join, serving, settled, two_nodes

NODES = "/v1/groups/g/nodes"


def offer(incarnation: str = "1", **more: object) -> dict[str, object]:
    return {"incarnation": incarnation, "slots": 2, "address": "10.0.0.1", "port": 4000, **more}


async def begun(request: Any) -> "asyncio.Task[httpx.Response]":
    """A request that is on its way."""
    task = asyncio.get_running_loop().create_task(request)
    await settled(50)
    return task


async def test_a_join_that_waits_costs_one_request() -> None:
    async with serving() as (service, _), api(service) as client:
        spec = {"min_nodes": 2, "max_nodes": 2}
        first = await begun(client.put(f"{NODES}/a?wait=60", json=offer(spec=spec, weight=1.0)))
        assert not first.done()
        second = await client.put(
            f"{NODES}/b?wait=60", json=offer(slots=4, speeds=[4.0] * 4)
        )  # of an older agent
        starts = [codec.read(Directive, r.content, unknown="ignore") for r in (await first, second)]
        assert [(s.kind, s.round) for s in starts] == [("start", 1)] * 2
        places = [s.start for s in starts if s.start is not None]
        assert [(p.group_rank, p.rank_offset, p.slots, p.world_size) for p in places] == [
            (0, 0, 2, 6),
            (1, 2, 4, 6),
        ]
        assert places[0].master == places[1].master
        assert places[0].shares == places[1].shares == Shares(round=1, weights=((6, 1.0),))
        found = (await client.get("/v1/groups/g")).json()
        assert found["current_round"]["shares"] == {"round": 1, "weights": [[6, 1.0]]}
        assert [one["weight"] for one in found["nodes"]] == [1.0, None]


async def test_a_large_group_is_shown_with_and_without_its_nodes() -> None:
    async with serving() as (service, _), api(service) as client:
        many = 2 * LARGE
        spec = {"min_nodes": many, "max_nodes": many}
        await asyncio.gather(*(service.execute("g", join(f"n{i}", **spec)) for i in range(many)))
        whole = (await client.get("/v1/groups/g")).json()
        names = [node["node_id"] for node in whole["nodes"]]
        assert names == [f"n{i}" for i in range(many)]
        assert len(whole["current_round"]["members"]) == many
        directive = await client.get(f"{NODES}/n150/directive", params={"incarnation": "1"})
        assert directive.json()["kind"] == "start"
        assert len(directive.content) < 1000, "whatever the size of the round"
        none = (await client.get("/v1/groups/g", params={"nodes": "none"})).json()
        assert (none["nodes"], none["current_round"]["members"]) == ([], [])
        assert none["counts"] == whole["counts"]
        assert (await client.get("/v1/groups/g", params={"nodes": "some"})).status_code == 422


async def test_a_replaced_agent_is_refused_everywhere() -> None:
    async with serving() as (service, _), api(service) as client:
        await service.execute("g", join("a", min_nodes=2))
        version = (await client.get(f"{NODES}/a/directive", params={"incarnation": "1"})).json()["version"]
        query = {"incarnation": "1", "after": version, "wait": 60}
        poll = await begun(client.get(f"{NODES}/a/directive", params=query))
        reply = await client.put(f"{NODES}/a", json=offer("2"))
        assert (reply.status_code, reply.json()["code"]) == (409, "node_id_in_use")
        assert "10.0.0.1" in reply.json()["detail"]
        assert "--node-id" in reply.json()["detail"]
        assert not poll.done()
        await service.on_poll_cut("g", "a", "1")
        assert (await client.put(f"{NODES}/a", json=offer("2"))).status_code == 200
        report = {"incarnation": "1", "round": 1, "kind": "started"}
        for reply in (
            await poll,
            await client.get(f"{NODES}/a/directive", params={"incarnation": "1"}),
            await client.post(f"{NODES}/a/report", json=report),
            await client.delete(f"{NODES}/a", params={"incarnation": "1"}),
            await client.put(f"{NODES}/a", json=offer("1")),
        ):
            assert (reply.status_code, reply.json()["code"]) == (409, "stale_incarnation")


async def test_reports_change_the_group_and_are_answered_with_the_directive() -> None:
    async with serving() as (service, _), api(service) as client:
        await two_nodes(service)
        assert (await client.get("/v1/groups/g")).json()["unreachable"] == []
        stale = await client.post(
            f"{NODES}/a/report", json={"incarnation": "1", "round": 0, "kind": "succeeded"}
        )
        body = stale.json()
        assert (stale.status_code, body["code"], body["directive"]["kind"]) == (409, "stale_round", "start")
        report = {"incarnation": "1", "round": 1, "kind": "master_unreachable", "message": "timed out"}
        reply = await client.post(f"{NODES}/b/report", json=report)
        assert (reply.status_code, reply.json()["kind"]) == (200, "stop")
        failure = {"local_rank": 0, "rank": 0, "exit_code": 1, "message": "Traceback: boom"}
        report |= {"kind": "failed", "age_s": 0.5, "failure": failure}
        assert (await client.post(f"{NODES}/a/report", json=report)).json()["kind"] == "stop"
        group = (await client.get("/v1/groups/g")).json()
        assert group["unreachable"] == [["b", "a"]]
        assert [node["state"] for node in group["nodes"]] == ["stopping", "stopping"]
        assert group["nodes"][0]["failure"]["message"] == "Traceback: boom"


async def test_groups_are_made_listed_restarted_and_forgotten() -> None:
    async with serving() as (service, _), api(service) as client:
        made = (await client.put("/v1/groups/g", json={"min_nodes": 2, "command": ["a", "b"]})).json()
        assert (made["state"], made["spec"]["command"]) == ("waiting", ["a", "b"])
        assert (await client.put("/v1/groups/g", json={"min_nodes": 2})).status_code == 200
        conflict = await client.put("/v1/groups/g", json={"min_nodes": 3})
        assert (conflict.status_code, conflict.json()["code"]) == (409, "spec_conflict")
        assert "min_nodes=3" in conflict.json()["detail"]
        (line,) = (await client.get("/v1/groups")).json()["groups"]
        assert (line["group_id"], line["reason"]["data"]["missing"]) == ("g", 2)
        assert (await client.post("/v1/groups/g/restart")).status_code == 409
        assert (await client.post("/v1/groups/g/cancel")).json()["state"] == "cancelled"
        assert (await client.post("/v1/groups/g/restart")).json()["job"] == 2
        assert (await client.delete("/v1/groups/g")).status_code == 204
        assert (await client.get("/v1/groups")).json() == {"groups": []}


async def test_a_spare_that_does_not_fit_says_why() -> None:
    async with serving() as (service, _), api(service) as client:
        for name, slots in (("a", 2), ("b", 1)):
            spec = {"world_size_multiple": 2, "last_call_s": 0}
            body = {"incarnation": "i", "slots": slots, "address": "10.0.0.1", "port": 4000, "spec": spec}
            await client.put(f"/v1/groups/g/nodes/{name}", json=body)
        nodes = {node["node_id"]: node for node in (await client.get("/v1/groups/g")).json()["nodes"]}
    assert (nodes["b"]["state"], nodes["a"]["reason"]) == ("spare", None)
    assert (nodes["b"]["reason"]["code"], nodes["b"]["reason"]["data"]) == ("world_not_larger", {})
