"""`POST /v1/groups/{g}/plan`; no sockets."""

import asyncio
from typing import Any

from hetrdzv.protocol import codec
from hetrdzv.protocol.plans import Plan
from tests.support.served import api, join, serving, two_nodes

PLAN = "/v1/groups/g/plan"


async def test_a_plan_changes_nothing() -> None:
    async with serving() as (service, _), api(service) as client:
        before = await two_nodes(service)
        found = codec.read(Plan, (await client.post(PLAN, json={"drain": "a"})).content, unknown="ignore")
        assert service.group("g") == before
        assert (found.state, found.round, found.stops) == ("waiting", 0, ("a", "b"))
        bodies: list[dict[str, Any]] = [{}, {"json": {}}, {"json": {"drain": None, "restart": False}}]
        for body in bodies:
            unchanged = (await client.post(PLAN, **body)).json()
            assert (unchanged["round"], unchanged["restarted"]) == (1, [])


async def test_wrong_requests_are_refused_by_name() -> None:
    async with serving() as (service, _), api(service) as client:
        await two_nodes(service)
        for body, status, detail in (
            ({"drain": "z"}, 404, "group 'g' has no node 'z'; its nodes: a, b"),
            ({"drain": ["a"]}, 422, "drain: Input should be a valid string"),
            ({"with": [{"slots": 1}]}, 422, "with: "),
        ):
            reply = await client.post(PLAN, json=body)
            assert (reply.status_code, reply.json()["detail"][: len(detail)]) == (status, detail)


async def test_several_plans_at_a_time() -> None:
    async with serving() as (service, _), api(service) as client:
        spec = {"min_nodes": 9, "max_nodes": 9}
        await asyncio.gather(*(service.execute("g", join(f"n{i}", **spec)) for i in range(9)))
        for reply in await asyncio.gather(*(client.post(PLAN, json={"drain": f"n{i}"}) for i in (3, 4))):
            assert (reply.json()["state"], reply.json()["reason"]["code"]) == ("waiting", "too_few_nodes")
