"""Trying again, over HTTP: what a refusal says in fields, and what a node hears that comes after a cancel."""

from typing import Any

import httpx
import pytest

from hetrdzv.auth.tokens import Grant, Role, Tokens
from tests.support.served import api, serving, two_nodes

ADMIN, TEAM, AGENT = "the-token-of-an-admin", "the-token-of-a-team's-admin", "the-token-of-an-agent"
TOKENS = Tokens({ADMIN: Grant(Role.ADMIN), TEAM: Grant(Role.ADMIN, "g*"), AGENT: Grant(Role.AGENT)})


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def join(client: httpx.AsyncClient, incarnation: str, token: str = AGENT, **spec: object) -> Any:
    body = {"incarnation": incarnation, "slots": 1, "address": "10.0.0.1", "port": 1, "spec": spec}
    return (await client.put("/v1/groups/g/nodes/c", json=body, headers=bearer(token))).json()


async def test_a_conflict_has_fields() -> None:
    async with serving() as (service, _), api(service, tokens=TOKENS) as client:
        await two_nodes(service)
        problem = await join(client, "1", max_nodes=5, min_nodes=2)
        assert problem["code"] == "spec_conflict"
        found = problem["conflict"]
        assert found == {
            "differences": [{"name": "max_nodes", "group": "2", "given": "5"}],
            "nodes": ["a", "b"],
            "by_put": False,
        }
        await join(client, "1", max_nodes=5, min_nodes=2)  # its agent tries again
        events = [event.reason for event in service.history("g")[0]]
        assert [event.nodes for event in events if event.code == "node_refused"] == [("c",)]


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
        told = await join(client, "1")
        assert (told["kind"], told["outcome"], told["exit_code"]) == ("exit", "cancelled", 3)
        assert told["came_late"]
        assert (told["reason"]["code"], told["reason"]["data"]["by"]) == ("came_late", who)
        history = (await client.get("/v1/groups/g/events", headers=headers)).json()["events"]
        assert ("group_cancelled", {"by": who}) in [
            (one["reason"]["code"], one["reason"]["data"]) for one in history
        ]
        assert not any(token in one["reason"]["message"] for one in history for token in (ADMIN, TEAM, AGENT))
