"""`POST /v1/groups/{g}/plan`; no sockets."""

import asyncio
from typing import Any

from hetrdzv.protocol import codec
from hetrdzv.protocol.reasons import departures, ends
from hetrdzv.protocol.requests.plans import Plan
from hetrdzv.service import plans
from hetrdzv.settings import Limits
from tests.support.served import api, join, serving, two_nodes

PLAN = "/v1/groups/g/plan"


async def test_a_plan_is_what_then_happens_and_changes_nothing() -> None:
    async with serving() as (service, _), api(service) as client:
        before = await two_nodes(service)
        reply = await client.post(PLAN, json={"add": [{"slots": 4, "node_id": "c"}], "drain": ["a"]})
        found = codec.read(Plan, reply.content, unknown="ignore")
        assert service.group("g") == before
        assert [(one.node_id, one.rank_offset, one.was_offset) for one in found.members] == [
            ("c", 0, None),
            ("b", 4, 1),
        ]
        assert (found.state, found.round, found.was_round, found.world_size) == ("running", 2, 1, 5)
        assert (found.ended, found.clock > 0) == (ends.node_leaving("a", departures.drained()), True)
        assert (found.master, found.restarted, found.stops, found.moves) == ("c", ("b",), ("a",), ("b",))
        assert [(one.node_id, one.slots, one.reason) for one in found.gone] == [
            ("a", 1, departures.drained())
        ]


async def test_without_a_change_it_is_what_is_there() -> None:
    async with serving() as (service, _), api(service) as client:
        await two_nodes(service)
        bodies: list[dict[str, Any]] = [
            {},
            {"json": {}},
            {"json": {"add": [], "remove": [], "restart": False}},
        ]
        for body in bodies:
            found = (await client.post(PLAN, **body)).json()
            assert (found["round"], found["ended"], found["restarted"]) == (1, None, [])


WRONG: list[tuple[Any, int, str]] = [
    ({"remove": ["z"]}, 404, "group 'g' has no node 'z'; its nodes: a, b"),
    ({"drain": ["z"]}, 404, "group 'g' has no node 'z'; its nodes: a, b"),
    ({"add": [{"slots": 1, "node_id": "a"}]}, 409, "the plan adds node 'a', but group 'g' has it"),
    ({"add": [{"slots": 0}]}, 422, "add.0.slots: Input should be greater than or equal to 1"),
    ({"add": [{"slots": True}]}, 422, "add.0.slots: Input should be a valid integer"),
    ({"add": [{"slots": 1, "node_id": "../x"}]}, 422, "add.0.node_id: String should match pattern"),
    ({"add": [{}]}, 422, "add.0.slots: it is missing"),
    ({"with": [{"slots": 1}]}, 422, "with: "),
    ({"restart": "yes"}, 422, "restart: Input should be a valid boolean"),
    ({"remove": "a"}, 422, "remove: Input should be a valid array"),
    ({"add": [{"slots": 1}] * 3}, 409, "the plan gives group 'g' 5 nodes, but it may have 4: use"),
    (
        {"add": [{"slots": 1}] * 4, "remove": ["a"] * 3},
        409,
        "the plan gives group 'g' 5 nodes, but it may have 4: use",
    ),
]
"""Bodies, each with the status and the beginning of the detail of what is answered."""


async def test_wrong_requests_are_refused_by_name() -> None:
    async with serving(limits=Limits(max_nodes_per_group=4)) as (service, _), api(service) as client:
        await two_nodes(service)
        for body, status, detail in WRONG:
            reply = await client.post(PLAN, json=body)
            assert (reply.status_code, reply.json()["detail"][: len(detail)]) == (status, detail)


async def test_large_groups_are_planned_one_at_a_time_beside_the_loop() -> None:
    async with serving() as (service, _), api(service) as client:
        many = plans.TINY + 1
        spec = {"min_nodes": many, "max_nodes": many}
        await asyncio.gather(*(service.execute("g", join(f"n{i}", **spec)) for i in range(many)))
        replies = await asyncio.gather(*(client.post(PLAN, json={"remove": [f"n{i}"]}) for i in (3, 4)))
        for reply in replies:
            assert reply.json()["state"] == "waiting"
            ready = reply.json()["reason"]
            assert (ready["code"], ready["data"]) == ("too_few_nodes", {"missing": 1, "ready": many - 1})
