"""Shares over HTTP: in joins and starts, when workers ask for new ones, after a failover, and in the state."""

import asyncio
from typing import Any

import httpx
import pytest

from hetrdzv.service.shares import worked_of
from hetrdzv.storage.base import Snapshot
from tests.support.served import FaultyStore, api, polled, serving, settled

GROUP = "/v1/groups/g"
NODES = f"{GROUP}/nodes"


async def join(client: httpx.AsyncClient, node_id: str, **more: Any) -> dict[str, Any]:
    offer: dict[str, Any] = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000}
    offer |= {"spec": {"min_nodes": 2, "max_nodes": 2}} | more
    reply = await client.put(f"{NODES}/{node_id}", json=offer)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


async def told(client: httpx.AsyncClient, node_id: str) -> dict[str, Any]:
    """A node's `start`."""
    body: dict[str, Any] = (await polled(client, node_id))["start"]
    return body


async def ask(client: httpx.AsyncClient, node_id: str, number: int = 1, **more: Any) -> httpx.Response:
    body = {"incarnation": "1", "round": 1, "number": number} | more
    return await client.post(f"{NODES}/{node_id}/shares", json=body)


async def works(client: httpx.AsyncClient, node_id: str, rank: int, busy: float, decision: int = 0) -> None:
    """An agent says how much of the time its worker has worked."""
    progress = {"round": 1, "decision": decision, "workers": [{"rank": rank, "busy": busy, "looks": 1000}]}
    reply = await client.post(f"{NODES}/{node_id}/directive", json={"incarnation": "1", "progress": progress})
    assert reply.status_code == 200, reply.text


async def group(client: httpx.AsyncClient) -> Any:
    return (await client.get(GROUP)).raise_for_status().json()


async def test_measured_speeds_are_in_every_start_and_in_the_state() -> None:
    async with serving() as (service, _), api(service) as client:
        await join(client, "a", slots=2, speeds=[30.0, 30])
        await join(client, "b", slots=2, speeds=[30.0, 7.5])
        assert (
            (await told(client, "a"))["shares"]
            == (await told(client, "b"))["shares"]
            == {"round": 1, "number": 0, "weights": [[3, 1.0], [1, 0.25]], "source": "measured"}
        )
        found = await group(client)
        current = found["current_round"]
        assert current["shares"] == {
            "round": 1,
            "number": 0,
            "weights": [[3, 1.0], [1, 0.25]],
            "source": "measured",
            "paces": {},
        }
        assert [(one["speeds"], one["weighed"]) for one in found["nodes"]] == [
            ([30.0, 30.0], False),
            ([30.0, 7.5], False),
        ]


async def test_equal_shares_cost_nothing() -> None:
    async with serving() as (service, _), api(service) as client:
        await join(client, "a")
        await join(client, "b")
        assert "shares" not in await told(client, "a")
        current = (await group(client))["current_round"]
        assert (current["shares"]["weights"], current["shares"]["source"]) == ([], "equal")


@pytest.mark.parametrize(
    ("weight", "source", "weights"), [(1.0, "by hand", None), (0.5, "by hand", [[1, 0.5], [1, 1.0]])]
)
async def test_a_weight_that_is_sent_was_given(weight: float, source: str, weights: object) -> None:
    async with serving() as (service, _), api(service) as client:
        await join(client, "a", weight=weight, speeds=[1.0])
        await join(client, "b", speeds=[4.0])
        assert (await told(client, "a")).get("shares", {}).get("weights") == weights
        found = await group(client)
        assert found["current_round"]["shares"]["source"] == source
        assert [one["weighed"] for one in found["nodes"]] == [True, False]


@pytest.mark.parametrize(
    ("speeds", "why"),
    [
        ([1.0], "speeds: there must be one for each of the 2 slots, not 1"),
        ([1.0, 0.0], "speeds.1: Input should be greater than or equal to 0.000000000001"),
        ([1.0, -1.0], "speeds.1"),
        ([1.0, "2"], "speeds.1: Input should be a valid number"),
        ("fast", "speeds: Input should be a valid array"),
    ],
)
async def test_bad_speeds_are_named(speeds: object, why: str) -> None:
    async with serving() as (service, _), api(service) as client:
        body = {"incarnation": "1", "slots": 2, "address": "10.0.0.1", "port": 4000, "speeds": speeds}
        reply = await client.put(f"{NODES}/a", json=body)
        assert reply.status_code == 422
        assert reply.json()["detail"].startswith(why), reply.text


async def test_all_nodes_get_what_the_first_brought_about_and_the_state_shows_it() -> None:
    async with serving() as (service, _), api(service) as client:
        await join(client, "a")
        await join(client, "b")
        await works(client, "a", 0, busy=0.25)
        assert (await group(client))["current_round"]["shares"]["paces"] == {}
        await works(client, "b", 1, busy=1.0)
        assert (await group(client))["current_round"]["shares"]["paces"] == {"0": 1.0, "1": 0.251}

        first = (await ask(client, "b")).json()
        assert first == {"round": 1, "number": 1, "weights": [[1, 1.0], [1, 0.251]], "source": "pace"}
        await works(client, "a", 0, busy=1.0)  # by the shares before, which counts for nothing any more
        assert (await ask(client, "a")).json() == (await ask(client, "b")).json() == first
        current = (await group(client))["current_round"]
        assert current["shares"] == {**first, "paces": {}}
        assert "shares" not in await told(client, "a"), "a start has the shares of the beginning"
        events = (await client.get(f"{GROUP}/events")).json()["events"]
        (text,) = [one["text"] for one in events if one["kind"] == "shares_changed"]
        assert "a (rank 0) gets 79.9% instead of 50.0%, b (rank 1) gets 20.1% instead of 50.0%" in text

        assert (await ask(client, "a", 2)).json()["weights"] == first["weights"], (
            "nothing is known of these yet"
        )
        await works(client, "a", 0, busy=1.0, decision=2)
        await works(client, "b", 1, busy=0.5, decision=2)
        assert (await ask(client, "a", 3)).json()["weights"] == [[1, 1.0], [1, 0.501]]


async def test_an_answer_is_committed_before_it_is_given_and_the_same_after_a_failover() -> None:
    store = FaultyStore()
    async with serving(store) as (service, _), api(service) as client:
        await join(client, "a")
        await join(client, "b")
        await works(client, "a", 0, busy=0.25)
        await works(client, "b", 1, busy=1.0)
        store.open.clear()
        asked = [asyncio.create_task(ask(client, node_id)) for node_id in "ab"]
        await settled(50)
        assert not any(one.done() for one in asked)
        store.commits.clear()
        store.open.set()
        answers = [(await one).json() for one in asked]
        assert answers[0] == answers[1]
        assert answers[0]["weights"] == [[1, 1.0], [1, 0.251]]
        puts = {
            key
            for batch in store.commits
            for key in batch.puts
            if key.startswith("groups/") and "events" not in key
        }
        assert puts == {"groups/g/round"}
        content: Snapshot = await store.load()
    async with serving(FaultyStore(content)) as (service, _), api(service) as client:
        await works(client, "a", 0, busy=1.0)
        await works(client, "b", 1, busy=0.25)
        assert (await ask(client, "b")).json() == answers[0]


async def test_who_may_not_ask_is_told_why() -> None:
    async with serving() as (service, _), api(service) as client:
        await join(client, "a")
        assert (await ask(client, "a")).json()["code"] == "stale_round", "none has formed"
        await join(client, "b")
        for more, status, code in (
            ({"round": 2}, 409, "stale_round"),
            ({"incarnation": "2"}, 409, "stale_incarnation"),
            ({"number": 2}, 409, "no_such_shares"),
            ({"number": 0}, 422, "invalid_request"),
        ):
            reply = await ask(client, "a", **more)  # type: ignore[arg-type]
            assert (reply.status_code, reply.json()["code"]) == (status, code), more
        assert (await ask(client, "c")).json()["code"] == "unknown_node"
        await client.post(f"{GROUP}/restart")
        assert (await ask(client, "a")).json()["code"] == "stale_round"


async def test_agents_that_do_not_say_how_much_their_workers_work_keep_their_shares() -> None:
    async with serving() as (service, _), api(service) as client:
        await join(client, "a", speeds=[1.0])
        await join(client, "b", speeds=[0.5])
        progress = {"round": 1, "workers": [{"rank": 0, "waiting": 0.9}]}
        await client.post(f"{NODES}/a/directive", json={"incarnation": "1", "progress": progress})
        assert (await ask(client, "a")).json() == {
            "round": 1,
            "number": 1,
            "weights": [[1, 1.0], [1, 0.5]],
            "source": "measured",
        }


async def test_what_the_workers_did_is_counted_once_for_all_who_ask_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []

    def count(seen: Any, number: int) -> Any:
        counted.append(number)
        return worked_of(seen, number)

    monkeypatch.setattr("hetrdzv.service.shares.worked_of", count)
    async with serving() as (service, _), api(service) as client:
        await join(client, "a")
        await join(client, "b")
        for rank, node_id in enumerate("ab"):
            await works(client, node_id, rank, 0.5)
        await asyncio.gather(*(ask(client, node_id) for node_id in "abab"))
        assert counted == [0]
        await ask(client, "a", 2)
        await ask(client, "a", 4)
        assert counted == [0, 1], "for a decision that cannot be made nothing is counted"
