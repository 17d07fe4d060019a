"""Programs of different versions of the API: what each side ignores, refuses and says of itself."""

import httpx
import pytest

from hetrdzv.api.reading import ignored
from hetrdzv.protocol.http import versions
from hetrdzv.protocol.states import DirectiveKind
from tests.support.served import api, serving, two_nodes

JOIN = {"incarnation": "i", "slots": 1, "address": "10.0.0.1", "port": 4000}
NODE = "/v1/groups/g/nodes/n"

NEWER = {"Het-Api-Version": "1", "Het-Api-Minor": str(versions.MINOR + 1)}
OTHERS = (
    {},
    {"Het-Api-Version": "1"},
    {"Het-Api-Version": "1", "Het-Api-Minor": str(versions.MINOR)},
    {"Het-Api-Minor": str(versions.MINOR + 1)},
)
"""A person, one who does not say which minor version, ourselves, and a person who copied half of the headers."""


def problem(response: httpx.Response, status: int, code: str) -> str:
    """Check problem details; returns what they say to people."""
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code), body
    return str(body["detail"])


async def test_a_minor_version_that_is_not_a_number() -> None:
    async with serving() as (service, _), api(service) as client:
        reply = await client.get("/v1/groups", headers={"Het-Api-Version": "1", "Het-Api-Minor": "x"})
        assert "Het-Api-Minor is not a number" in problem(reply, 400, "version_mismatch")


async def test_what_a_newer_client_adds_is_ignored_and_told_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ignored.cache_clear()
    body = {**JOIN, "colour": "green", "spec": {"min_nodes": 1, "size": "XL"}}
    async with serving() as (service, _), api(service) as client:
        for _ in range(2):
            reply = await client.put(f"{NODE}?colour=green", json=body, headers=NEWER)
            assert (reply.status_code, reply.json()["kind"]) == (200, "wait")
        assert service.group("g").spec.min_nodes == 1
        failure = {"local_rank": 0, "rank": 0, "exit_code": 1, "cause": "cosmic rays"}
        report = {"incarnation": "i", "round": 1, "kind": "failed", "failure": failure}
        reply = await client.post(f"{NODE}/report", json=report, headers=NEWER)
        assert problem(reply, 409, "stale_round"), "it was understood"
    warnings = [record.getMessage() for record in caplog.records if record.name == "hetrdzv.api.reading"]
    for what in ("query parameter 'colour'", "'colour' of a JoinRequest", "'spec.size' of a JoinRequest"):
        assert sum(what in text for text in warnings) == 1, what
    assert sum("'failure.cause' of a ReportRequest" in text for text in warnings) == 1


@pytest.mark.parametrize("headers", OTHERS)
async def test_a_typo_of_anybody_else_is_told(headers: dict[str, str]) -> None:
    async with serving() as (service, _), api(service) as client:
        for path, body in (
            (NODE, {**JOIN, "colour": "green"}),
            (NODE, {**JOIN, "spec": {"size": "XL"}}),
            (f"{NODE}?wiat=5", JOIN),
        ):
            reply = await client.put(path, json=body, headers=headers)
            assert "there is no such" in problem(reply, 422, "invalid_request")


async def test_wrong_values_of_a_newer_client_are_told_too() -> None:
    async with serving() as (service, _), api(service) as client:
        reply = await client.put(NODE, json={**JOIN, "slots": "two", "colour": "green"}, headers=NEWER)
        assert (
            problem(reply, 422, "invalid_request") == "slots: Input should be a valid integer (given: 'two')"
        )
        reply = await client.put(NODE, content="{", headers={**NEWER, "Content-Type": "application/json"})
        assert "it is not JSON" in problem(reply, 422, "invalid_request")
        reply = await client.put(NODE, json=[1], headers=NEWER)
        assert "it must be a JSON object" in problem(reply, 422, "invalid_request")


async def test_a_report_of_an_unknown_kind_changes_nothing_and_gets_the_directive() -> None:
    """A newer agent that is refused a report would give its job up."""
    report = {"incarnation": "1", "round": 1, "kind": "halfway", "progress": 0.5}
    async with serving() as (service, _), api(service) as client:
        before = await two_nodes(service)
        reply = await client.post("/v1/groups/g/nodes/a/report", json=report, headers=NEWER)
        assert (reply.status_code, reply.json()["kind"]) == (200, "start")
        assert service.group("g") == before
        del report["progress"]
        for headers in OTHERS:
            reply = await client.post("/v1/groups/g/nodes/a/report", json=report, headers=headers)
            assert "kind: Input should be 'started', " in problem(reply, 422, "invalid_request")
            assert reply.json()["field"] == "kind"


def test_a_new_kind_of_directive_has_to_be_asked_for() -> None:
    """An older agent must never get it: docs/operations.md, Upgrades."""
    of_1_0 = {"wait", "start", "stop", "exit"}
    assert set(DirectiveKind) == of_1_0, (
        "give the new kind a wants_... field in JoinRequest, then add it here"
    )
