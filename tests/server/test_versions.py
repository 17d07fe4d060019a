"""Programs of different versions: what each side ignores and refuses."""

import httpx
import pytest

from hetrdzv.protocol.states import DirectiveKind
from tests.support.served import api, serving, two_nodes

JOIN = {"incarnation": "i", "slots": 1, "address": "10.0.0.1", "port": 4000}
NODE = "/v1/groups/g/nodes/n"


def problem(response: httpx.Response, status: int, code: str) -> str:
    """Check problem details; returns what they say to people."""
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code), body
    return str(body["detail"])


async def test_what_a_newer_agent_adds_is_ignored() -> None:
    body = {**JOIN, "colour": "green", "spec": {"min_nodes": 1, "size": "XL"}}
    async with serving() as (service, _), api(service) as client:
        reply = await client.put(f"{NODE}?colour=green", json=body)
        assert (reply.status_code, reply.json()["kind"]) == (200, "wait")
        assert service.group("g").spec.min_nodes == 1
        failure = {"local_rank": 0, "rank": 0, "exit_code": 1, "cause": "cosmic rays"}
        report = {"incarnation": "i", "round": 1, "kind": "failed", "failure": failure}
        reply = await client.post(f"{NODE}/report", json=report)
        assert problem(reply, 409, "stale_round"), "it was understood"


async def test_wrong_values_of_an_agent_are_refused() -> None:
    async with serving() as (service, _), api(service) as client:
        reply = await client.put(NODE, json={**JOIN, "slots": "two", "colour": "green"})
        assert "slots: Input should be a valid integer" in problem(reply, 422, "invalid_request")
        await two_nodes(service)
        report = {"incarnation": "1", "round": 1, "kind": "halfway"}
        reply = await client.post("/v1/groups/g/nodes/a/report", json=report)
        assert "kind: Input should be 'started', " in problem(reply, 422, "invalid_request")


@pytest.mark.parametrize("path", ["/v1/groups/g", "/v1/groups/g/plan"])
async def test_a_typo_of_a_person_is_refused(path: str) -> None:
    async with serving() as (service, _), api(service) as client:
        await two_nodes(service)
        reply = await client.request("POST" if path.endswith("plan") else "PUT", path, json={"size": "XL"})
        assert "there is no such field" in problem(reply, 422, "invalid_request")
        assert reply.json()["field"] == "size"


def test_a_new_kind_of_directive_has_to_be_asked_for() -> None:
    """An older agent must never get it: docs/operations.md, Upgrades."""
    of_1_0 = {"wait", "start", "stop", "exit"}
    assert set(DirectiveKind) == of_1_0, (
        "give the new kind a wants_... field in JoinRequest, then add it here"
    )
