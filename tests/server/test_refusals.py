"""Who looks at a group sees which nodes were refused lately."""

from typing import Any

import httpx

from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import Conflict, Difference
from hetrdzv.protocol.reasons.reason import MOST_CHARACTERS
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.service.refusals import LATELY_S, MOST, MOST_GROUPS, Refusals
from tests.support.served import HandClock, api, serving


async def joins(client: httpx.AsyncClient, node_id: str, **more: Any) -> int:
    body = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 29500, "role": "default", **more}
    return (await client.put(f"/v1/groups/g/nodes/{node_id}", json=body)).status_code


async def warnings(client: httpx.AsyncClient) -> list[str]:
    return [one["message"] for one in (await client.get("/v1/groups/g")).json()["warnings"]]


async def test_a_refused_node_is_told_of_for_a_while() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _), api(service) as client:
        assert await joins(client, "a", spec={"min_nodes": 2}, script="train.py") == 200
        assert await warnings(client) == []
        assert await joins(client, "b", spec={"min_nodes": 2}, script="other.py") == 409
        said = "b is refused, since it gave script=other.py, and the group has script=train.py"
        assert await warnings(client) == [said]
        clock.pass_by(service, 5)
        assert await warnings(client) == [said]
        assert await joins(client, "b", spec={"min_nodes": 2}, script="train.py") == 200
        assert await warnings(client) == [], "it has joined after all"
        assert await joins(client, "c", spec={"min_nodes": 2}, script="other.py") == 409
        assert len(await warnings(client)) == 1
        clock.pass_by(service, LATELY_S)
        assert await warnings(client) == []


async def test_a_deleted_group_leaves_no_refusals_to_the_next_one_of_its_name() -> None:
    async with serving() as (service, _), api(service) as client:
        assert (await client.put("/v1/groups/g", json={"min_nodes": 2, "command": ["train.py"]})).is_success
        assert await joins(client, "b", spec={"min_nodes": 3}) == 409
        assert len(await warnings(client)) == 1
        assert (await client.delete("/v1/groups/g")).is_success
        assert (await client.put("/v1/groups/g", json={"min_nodes": 2})).is_success
        assert await warnings(client) == []


def group(group_id: str) -> Group:
    return Group(group_id=group_id, spec=GroupSpec())


def test_however_many_are_refused_a_few_are_kept() -> None:
    refusals = Refusals(lambda: 100.0)
    conflict = Conflict(differences=(Difference("command", "x" * 9_000, "y" * 9_000),) * 9)
    for number in range(MOST_GROUPS + 1):
        refusals.record_refusal(f"g{number}", "a", conflict)
    for number in (*range(9), 5):
        refusals.record_refusal("g9", f"n{number}", conflict)
    assert refusals.recent_refusals(group("g0")) == ()
    assert len(refusals.recent_refusals(group("g1"))) == 1, "however many there are of another group"
    told = refusals.recent_refusals(group("g9"))
    assert [one.nodes for one in told] == [("n6",), ("n7",), ("n8",), ("n5",)]
    assert len(told) == MOST
    assert all(len(one.message) <= MOST_CHARACTERS for one in told)
