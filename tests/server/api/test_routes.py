"""The replies of the routes; no sockets."""

import asyncio
from typing import Any

import httpx
import pytest

from hetrdzv.api.views import MIN_ITEMS_FOR_THREAD
from hetrdzv.auth.tokens import Grant, Role, Tokens
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Directive, Shares
from hetrdzv.service.service import MAX_REFUSALS_IN_HISTORY, Service
from tests.support.served import FaultyStore, api, join, polled, serving, settled, two_nodes

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
        starts = [codec.parse_json(Directive, r.content, unknown="ignore") for r in (await first, second)]
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
        many = 2 * MIN_ITEMS_FOR_THREAD
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
        await service.on_poll_disconnect("g", "a", "1")
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


# -- a launcher's daemon on another node ---------------------------------------------------------------------


ORTED = ["orted", "-mca", "orte_hnp_uri", "1.0;tcp://10.0.0.1:5000"]
ASKED = {"master": "a", "incarnation": "1", "round": 1, "words": ORTED}


async def two_ready(client: httpx.AsyncClient) -> None:
    """Round 1 on nodes a, the master, and b."""
    offer: dict[str, Any] = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000}
    offer |= {"wants_members": True, "wants_daemon": True, "spec": {"min_nodes": 2, "max_nodes": 2}}
    for node_id in "ab":
        assert (await client.put(f"{NODES}/{node_id}", json=offer)).status_code == 200


async def test_the_open_poll_of_the_member_is_answered_with_its_daemon() -> None:
    async with serving() as (service, _), api(service) as client:
        await two_ready(client)
        before = {node_id: await polled(client, node_id) for node_id in "ab"}
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
async def test_a_daemon_that_is_refused(node_id: str, change: dict[str, Any], status: int, code: str) -> None:
    async with serving() as (service, _), api(service) as client:
        await two_ready(client)
        reply = await client.post(f"{NODES}/{node_id}/daemon", json=ASKED | change)
        assert (reply.status_code, reply.json()["code"]) == (status, code)
        assert ("directive" in reply.json()) is (code == "stale_round")
        assert "daemon" not in (await polled(client, "b"))["start"]


# -- trying again: what a refusal says in fields, and what a node hears after a cancel -----------------------


ADMIN, TEAM, AGENT = "the-token-of-an-admin", "the-token-of-a-team's-admin", "the-token-of-an-agent"
TOKENS = Tokens({ADMIN: Grant(Role.ADMIN), TEAM: Grant(Role.ADMIN, "g*"), AGENT: Grant(Role.AGENT)})


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def join_later(client: httpx.AsyncClient, incarnation: str, token: str = AGENT, **spec: object) -> Any:
    body = {"incarnation": incarnation, "slots": 1, "address": "10.0.0.1", "port": 1, "spec": spec}
    return (await client.put("/v1/groups/g/nodes/c", json=body, headers=bearer(token))).json()


def refused_nodes(service: Service) -> list[str]:
    """Who was refused, as the history of the group says."""
    events = [event.reason for event in service.history("g")[0]]
    return [event.nodes[0] for event in events if event.code == "node_refused"]


async def test_a_conflict_has_fields_and_the_history_names_the_first_refused_nodes_once() -> None:
    async with serving() as (service, store), api(service, tokens=TOKENS) as client:
        await two_nodes(service)
        problem = await join_later(client, "1", max_nodes=5, min_nodes=2)
        assert problem["code"] == "spec_conflict"
        found = problem["conflict"]
        assert found == {
            "differences": [{"name": "max_nodes", "group": "2", "given": "5"}],
            "nodes": ["a", "b"],
            "by_put": False,
        }
        await join_later(client, "1", max_nodes=5, min_nodes=2)  # its agent tries again
        assert refused_nodes(service) == ["c"]
    async with serving(FaultyStore(store.content)) as (service, _), api(service, tokens=TOKENS) as client:
        await join_later(client, "1", max_nodes=5, min_nodes=2)
        assert refused_nodes(service) == ["c"]
        body = offer(spec={"max_nodes": 6})  # many nodes are started again with another flag, at once
        others = (client.put(f"{NODES}/n{number}", json=body, headers=bearer(AGENT)) for number in range(20))
        assert {reply.status_code for reply in await asyncio.gather(*others)} == {409}
        assert len(refused_nodes(service)) == MAX_REFUSALS_IN_HISTORY


@pytest.mark.parametrize(
    ("access", "who"),
    [
        ({"tokens": TOKENS, "token_sent": ADMIN}, "an admin at 127.0.0.1"),
        ({"tokens": TOKENS, "token_sent": TEAM}, "an admin of g* at 127.0.0.1"),
        ({"token_sent": ""}, "someone at 127.0.0.1"),
    ],
)
async def test_who_comes_after_a_cancel_hears_who_it_was(access: dict[str, Any], who: str) -> None:
    headers = bearer(access.pop("token_sent"))
    async with serving() as (service, _), api(service, **access) as client:
        await two_nodes(service)
        cancelled = (await client.post("/v1/groups/g/cancel", headers=headers)).json()
        assert (cancelled["reason"]["code"], cancelled["reason"]["data"]["by"]) == ("group_cancelled", who)
        assert not any(token in cancelled["reason"]["message"] for token in (ADMIN, TEAM, AGENT))
        told = await join_later(client, "1")
        assert (told["reason"]["code"], told["reason"]["data"]["by"]) == ("joined_too_late", who)
