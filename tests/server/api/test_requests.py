"""What the API refuses, and its error messages; no sockets."""

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from hetrdzv.api import middleware
from hetrdzv.api.app import create_app
from hetrdzv.protocol.bounds import MAX_BODY_BYTES
from hetrdzv.protocol.states import GroupState
from tests.support.served import api, ask_raw, serving, settled, two_nodes

JOIN = {"incarnation": "i", "slots": 1, "address": "10.0.0.1", "port": 4000}
NODE = "/v1/groups/g/nodes/n"


def problem(response: httpx.Response, status: int, code: str, field: str | None = None) -> str:
    """Check problem details; returns what they say to people."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["het-api-version"] == "1"
    body = response.json()
    assert (body["status"], body["code"], body.get("field")) == (status, code, field), body
    assert body["title"]
    return str(body["detail"])


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"slots": 0}, "slots", "greater than or equal to 1 (given: 0)"),
        ({"slots": "4"}, "slots", "valid integer"),
        ({"incarnation": "a b"}, "incarnation", "pattern"),
        ({"address": None}, "address", "valid string"),
        ({"labels": {str(n): "" for n in range(65)}}, "labels", "at most 64"),
        ({"weight": 1e7}, "weight", "less than or equal to 1000000"),
        ({"wants_command": 1}, "wants_command", "valid boolean"),
        ({"spec": {"command": ["x" * 16_385]}}, "spec.command.0", "at most 16384"),
        ({"slots": 0, "port": "x"}, "slots", "(given: 0); also wrong: port"),
    ],
)
async def test_a_field_of_a_join_that_is_wrong_is_named(
    change: dict[str, Any], field: str, says: str
) -> None:
    async with serving() as (service, _), api(service) as client:
        detail = problem(await client.put(NODE, json=JOIN | change), 422, "invalid_request", field)
        assert detail.startswith(f"{field}: ")
        assert says in detail
        assert list(service.groups()) == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ((3, 2, None, None, 1), "max_nodes is 2, below min_nodes, which is 3"),
        ((1, None, 9, 8, 1), "max_world_size is 8, below min_world_size, which is 9"),
        ((9, None, None, 8, 1), "min_nodes is 9, but max_world_size is 8, and a node has at least "),
        ((1, None, None, 3, 4), "world_size_multiple is 4, but max_world_size is 3"),
        ((1, 1, 1025, None, 1), "min_world_size is 1025, but max_nodes is 1, and a node has at "),
    ],
)
async def test_bounds_that_contradict_each_other_are_named(spec: tuple[int, ...], says: str) -> None:
    names = ("min_nodes", "max_nodes", "min_world_size", "max_world_size", "world_size_multiple")
    bounds = {name: value for name, value in zip(names, spec, strict=True) if value is not None}
    async with serving() as (service, _), api(service) as client:
        for response in (
            await client.put("/v1/groups/g", json=bounds),
            await client.put(NODE, json={**JOIN, "spec": bounds}),
        ):
            assert problem(response, 422, "invalid_spec", says.split()[0]).startswith(says)
        assert list(service.groups()) == []


WHOLE = json.dumps(JOIN | {"labels": {"x": "X"}, "weight": 7})


@pytest.mark.parametrize(
    ("content", "kind", "status", "field", "says"),
    [
        ("", "application/json", 422, "body", "it is missing"),
        ("{", "application/json", 422, "body", "it is not JSON"),
        ("[]", "application/json", 422, "body", "it must be a JSON object"),
        ("null", "application/json", 422, "body", "it must be a JSON object"),
        (WHOLE, "text/plain", 422, "body", "sent with Content-Type: application/json"),
        (WHOLE.replace("X", "\\ud800"), "application/json", 422, "body", "hex escape"),
        (WHOLE.replace("7", "NaN"), "application/json", 422, "weight", "less than or equal"),
        (WHOLE.replace("7", "1e999"), "application/json", 422, "weight", "less than or equal"),
        (b"\xff\xfe{}", "application/json", 422, "body", "it is not JSON"),
        ("[" * 100_000, "application/json", 413, "body", "values"),
        ('{"slots": ' + "1" * 5000 + "}", "application/json", 422, "body", ""),
    ],
)
async def test_a_body_that_is_none_is_refused(
    content: str | bytes, kind: str, status: int, field: str, says: str
) -> None:
    async with serving() as (service, _), api(service) as client:
        reply = await client.put(NODE, content=content, headers={"Content-Type": kind})
        code = "body_too_large" if status == 413 else "invalid_request"
        assert says in problem(reply, status, code, field)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/groups/a%20b", "group_id"),
        ("/v1/groups/g%0A", "group_id"),
        ("/v1/groups/g/nodes/a:b/directive?incarnation=i", "node_id"),
        ("/v1/groups/g/nodes/n/directive", "incarnation"),
        ("/v1/groups/g/nodes/n/directive?incarnation=i&wait=nan", "wait"),
        ("/v1/groups/g/nodes/n/directive?incarnation=i&after=" + "x" * 257, "after"),
        ("/v1/groups/g/events?after=-1", "after"),
    ],
)
async def test_an_id_or_a_parameter_that_is_wrong_is_named(path: str, field: str) -> None:
    async with serving() as (service, _), api(service) as client:
        assert field in problem(await client.get(path), 422, "invalid_request", field)


async def test_routes_and_methods_that_do_not_exist() -> None:
    async with serving() as (service, _), api(service) as client:
        for path in ("/v2/groups", "/v1/groups/", "/v1", "/v1/groups/g/nodes"):
            assert "see /docs for all routes" in problem(await client.get(path), 404, "no_such_route")
        for method, path in (("POST", "/v1/groups"), ("GET", "/v1/groups/g/cancel"), ("OPTIONS", NODE)):
            reply = await client.request(method, path)
            assert method in problem(reply, 405, "method_not_allowed")
            assert reply.headers["allow"]
            assert "access-control-allow-origin" not in reply.headers


async def test_what_a_newer_agent_adds_is_ignored() -> None:
    body = {**JOIN, "colour": "green", "spec": {"min_nodes": 1, "size": "XL"}}
    async with serving() as (service, _), api(service) as client:
        reply = await client.put(f"{NODE}?colour=green", json=body)
        assert (reply.status_code, reply.json()["kind"]) == (200, "wait")
        assert service.group("g").spec.min_nodes == 1
        failure = {"local_rank": 0, "rank": 0, "exit_code": 1, "cause": "cosmic rays"}
        report = {"incarnation": "i", "round": 1, "kind": "failed", "failure": failure}
        problem(await client.post(f"{NODE}/report", json=report), 409, "stale_round")  # it was understood


# -- what every request passes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("0", "the client is older"),
        ("2", "this server is older"),
        ("one", "not a number"),
        ("", "not a number"),
        ("-1", "not a number"),
        ("9" * 5000, "not a number"),
        (b"\xb2", "not a number"),
    ],
)
async def test_another_api_version_is_told_who_is_older(version: str | bytes, says: str) -> None:
    async with serving() as (service, _), api(service) as client:
        headers = [(b"Het-Api-Version", version.encode() if isinstance(version, str) else version)]
        reply = await client.get("/v1/groups", headers=headers)
        assert says in problem(reply, 400, "version_mismatch")
        assert (await client.get("/healthz", headers=headers)).status_code == 200
        ours = await client.get("/v1/groups", headers={"Het-Api-Version": "01"})
        assert (ours.status_code, ours.headers.get_list("het-api-version")) == (200, ["1"])


@pytest.mark.parametrize(
    "authorization",
    [None, "Bearer ", "sesame", "Basic c2VzYW1l", "Bearer sesam", "Bearer ses\xe4me", "Bearer sesame sesame"],
)
async def test_a_request_without_the_token_is_refused(
    authorization: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving() as (service, _), api(service, token="sesame") as client:
        headers = [] if authorization is None else [(b"Authorization", authorization.encode("latin-1"))]
        reply = await client.put(NODE, json=JOIN, headers=headers)
        problem(reply, 401, "unauthorized")
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "sesame" not in reply.text + caplog.text
        assert list(service.groups()) == []
        for path in ("/v1/nowhere", "/openapi.json/", "/healthz/", "/docs/x", "/"):
            assert (await client.get(path)).status_code == 401, path


async def test_a_request_with_the_token_comes_through_whatever_its_host() -> None:
    async with serving() as (service, _), api(service, token="sesame") as client:
        for scheme in ("Bearer", "bearer", "BEARER"):
            headers = {"Authorization": f"{scheme} sesame", "Host": "rdzv.example", "Origin": "http://x"}
            assert (await client.put("/v1/groups/g", json={}, headers=headers)).status_code == 200
        for path in ("/healthz", "/readyz"):
            assert (await client.get(path)).status_code == 200, path


async def test_a_foreign_host_name_is_refused_without_a_token() -> None:
    async with serving() as (service, _), api(service) as client:
        for host in ("evil.example", "evil.example:29400"):
            reply = await client.get("/v1/groups", headers={"Host": host})
            assert "--token-file" in problem(reply, 403, "foreign_host")
        for host in ("127.0.0.1:29400", "[::1]:29400", "localhost"):
            assert (await client.get("/v1/groups", headers={"Host": host})).status_code == 200
        assert (await client.get("/healthz", headers={"Host": "evil.example"})).status_code == 200
    async with serving() as (service, _), api(service, any_host=True) as client:
        assert (await client.get("/v1/groups", headers={"Host": "evil.example"})).status_code == 200


@pytest.mark.parametrize("any_host", [False, True])
async def test_a_foreign_page_gives_no_orders(any_host: bool) -> None:
    """A form on any page can POST to localhost, with a Host that is right."""
    async with serving() as (service, _), api(service, any_host=any_host) as client:
        await two_nodes(service)
        for origin in ("http://evil.example", "null", "http://localhost:1", "http://[", ""):
            reply = await client.post("/v1/groups/g/cancel", headers={"Origin": origin})
            assert "browser requests from other sites" in problem(reply, 403, "foreign_host")
        for origin in ("http://localhost", "HTTP://LOCALHOST"):
            reply = await client.post("/v1/groups/g/nodes/a/drain", headers={"Origin": origin})
            assert reply.status_code == 200


async def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_so() -> None:
    async def in_chunks() -> Any:
        for _ in range(20):
            yield b" " * (MAX_BODY_BYTES // 16)

    async with serving() as (service, _), api(service) as client:
        large = b" " * (MAX_BODY_BYTES + 1)
        headers = {"Content-Type": "application/json"}
        assert "1048577" in problem(
            await client.put(NODE, content=large, headers=headers), 413, "body_too_large", "body"
        )
        problem(await client.put(NODE, content=in_chunks(), headers=headers), 413, "body_too_large", "body")
        fits = json.dumps(JOIN).encode().rjust(MAX_BODY_BYTES)
        assert (await client.put(NODE, content=fits, headers=headers)).status_code == 200


async def test_a_body_that_ends_with_its_connection_is_not_taken_for_whole() -> None:
    async with serving() as (service, _):
        whole = json.dumps(JOIN).encode()
        messages = [{"type": "http.request", "body": whole, "more_body": True}, {"type": "http.disconnect"}]
        assert await ask_raw(create_app(service), NODE, messages) == []
        assert list(service.groups()) == []


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_TIMEOUT_S", 0.05)
    async with serving() as (service, _):
        for begun in ([], [{"type": "http.request", "body": b"{", "more_body": True}]):
            start, body = await ask_raw(create_app(service), NODE, begun)
            assert (start["status"], json.loads(body["body"])["code"]) == (408, "request_too_slow")
            assert (b"connection", b"close") in start["headers"]


async def test_a_bug_is_a_problem_too_and_says_nothing_of_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (service, _), api(service) as client:
        monkeypatch.setattr(service, "groups", lambda: 1 / 0)
        detail = problem(await client.get("/v1/groups"), 500, "error")
        assert detail == "the server failed on this request; its log says more"
        assert "ZeroDivisionError" in caplog.text


async def test_the_docs_need_nothing_from_elsewhere_and_name_every_route() -> None:
    async with serving() as (service, _), api(service) as client:
        page = await client.get("/docs")
        document = (await client.get("/openapi.json")).json()
        assert "HTTPValidationError" not in document["components"]["schemas"]
        assert page.headers["content-type"].startswith("text/html")
        for scheme in ("http:", "https:", "//", "<script", "<link", "@import"):
            assert scheme not in page.text
        for path, operations in document["paths"].items():
            for method in operations:
                assert f"<summary>{method.upper()} {path}</summary>" in page.text
        for name in document["components"]["schemas"]:
            assert f"<summary>{name}</summary>" in page.text


async def test_a_join_that_waited_while_its_client_hung_up_is_dropped_a_report_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that is behind does not work for clients that have gone and ask again; what was reported is true."""
    monkeypatch.setattr("hetrdzv.service.polls.polls.MAX_CONCURRENT_COMMANDS", 1)
    report = {"incarnation": "1", "round": 1, "kind": "master_unreachable", "message": "timed out"}

    def sent(body: dict[str, Any], *more: dict[str, Any]) -> list[Any]:
        return [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}, *more]

    async with serving() as (service, store):
        await two_nodes(service)
        app, nodes, hung_up = create_app(service), "/v1/groups/g/nodes", {"type": "http.disconnect"}
        store.open.clear()
        asking = []
        for request in (
            (f"{nodes}/c", sent(JOIN), "PUT"),
            (f"{nodes}/d", sent(JOIN, hung_up), "PUT"),
            (f"{nodes}/b", sent(JOIN | {"incarnation": "1", "after_round": 1}, hung_up), "PUT"),
            (f"{nodes}/a/report", sent(report, hung_up), "POST"),
        ):
            asking.append(asyncio.ensure_future(ask_raw(app, *request)))
            await settled(50)
        store.open.set()
        await asyncio.gather(*asking)
        group = service.group("g")
        assert set(group.nodes) == {"a", "b", "c"}
        assert group.state is not GroupState.RUNNING
        assert group.nodes["b"].disconnected_at is None, "the server is late"
