"""`POST /v1/groups/{g}/plan`; no sockets."""

from typing import Any

from hetrdzv.protocol import codec
from hetrdzv.protocol.pages import Plan
from tests.support.served import api, serving, two_nodes

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
