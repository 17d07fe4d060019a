"""The short way for requests of agents: it answers as the ordinary routes do, and leaves unusual requests to those."""

import json
import re
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from hetrdzv.api.routes import short
from hetrdzv.api.routes.short import ShortRoutes
from tests.support.served import HandClock, api, join, serving, two_nodes

PATH = "/v1/groups/g/nodes/a/directive"
JSON = [(b"content-type", b"application/json")]
JOIN = {"incarnation": "1", "slots": 2, "address": "10.0.0.1", "port": 29500}
STARTED = {"incarnation": "1", "round": 1, "kind": "started"}


async def goes_long(
    path: str, query: bytes, method: str = "GET", body: bytes = b"", headers: list[tuple[bytes, bytes]] = JSON
) -> bool:
    """Whether a request is left to the long way, which must see all of it."""
    passed: list[Scope] = []
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope)
        assert (await receive())["body"] == body

    async def receive() -> Message:
        return messages.pop()

    async def send(message: Message) -> None:
        raise NotImplementedError

    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}
    try:
        await ShortRoutes(app)(scope, receive, send)
    except KeyError:  # nothing has assigned a service to this request
        return False
    return len(passed) == 1


@pytest.mark.parametrize(
    "query",
    [
        b"",
        b"wait=1",
        b"incarnation=",
        b"incarnation=..",
        b"incarnation=1&wait=",
        b"incarnation=1&wait=-1",
        b"incarnation=1&wait=1e3",
        b"incarnation=1&wait=3601",
        b"incarnation=1&wait=inf",
        b"incarnation=1&wait=1&wait=2",
        b"incarnation=1&incarnation=2",
        b"incarnation=1&from=2",
        b"incarnation=1&",
        b"&incarnation=1",
        b"incarnation=1&&wait=1",
        b"incarnation=%31",
        b"incarnation=1;wait=1",
        b"incarnation=1&after=a+b",
        b"incarnation=1&after=" + b"x" * 257,
        b"incarnation=" + b"x" * 129,
    ],
)
async def test_whatever_is_out_of_the_ordinary_goes_the_long_way(query: bytes) -> None:
    assert await goes_long(PATH, query)


@pytest.mark.parametrize(
    "query", [b"incarnation=1", b"wait=2.5&incarnation=1&after=1.wait.0.waiting", b"incarnation=1&after="]
)
async def test_a_plain_poll_goes_the_short_way(query: bytes) -> None:
    assert not await goes_long(PATH, query)
    assert await goes_long(PATH, query, "POST")
    assert await goes_long(PATH + "/", query)
    assert await goes_long("/v1/groups/../nodes/a/directive", query)


def without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != name}


@pytest.mark.parametrize(
    ("query", "body"),
    [
        (b"wait=-1", JOIN),
        (b"wait=1&after=2", JOIN),
        (b"incarnation=1", JOIN),
        (b"", without(JOIN, "port")),
        (b"", {**JOIN, "slots": 0}),
        (b"", {**JOIN, "from_the_future": 1}),
        (b"", {**JOIN, "spec": {"command": ["train.py"]}}),
        (b"", [JOIN]),
    ],
)
async def test_an_unusual_join_goes_the_long_way(query: bytes, body: object) -> None:
    assert await goes_long("/v1/groups/g/nodes/a", query, "PUT", json.dumps(body).encode())


@pytest.mark.parametrize(
    ("query", "body"),
    [
        (b"wait=1", STARTED),
        (b"", without(STARTED, "kind")),
        (b"", {**STARTED, "kind": "from_the_future"}),
        (b"", {**STARTED, "age_s": -1}),
    ],
)
async def test_an_unusual_report_goes_the_long_way(query: bytes, body: object) -> None:
    assert await goes_long("/v1/groups/g/nodes/a/report", query, "POST", json.dumps(body).encode())


@pytest.mark.parametrize(
    ("path", "method", "body"), [("", "PUT", JOIN), ("/report", "POST", STARTED)], ids=["join", "report"]
)
async def test_an_ordinary_request_goes_the_short_way(path: str, method: str, body: dict[str, Any]) -> None:
    path, data = "/v1/groups/g/nodes/a" + path, json.dumps(body).encode()
    assert not await goes_long(path, b"", method, data)
    assert await goes_long(path, b"", method, data[:-1])
    assert await goes_long(path, b"", method, b"")
    assert await goes_long(path, b"", method, b"[" * 100_000)
    assert await goes_long(path, b"", method, data, [])
    assert await goes_long(path, b"", method, data, [(b"content-type", b"text/plain")])


async def both_ways(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: dict[str, Any] | None = None
) -> list[Any]:
    """What a request is answered on the short way and on the long one, and what it leaves behind."""
    replies = []
    for pattern in (short._PATH, re.compile("none")):
        monkeypatch.setattr(short, "_PATH", pattern)
        async with serving(clock=HandClock()) as (service, _), api(service) as client:
            await two_nodes(service)
            await service.execute("waiting", join("a", min_nodes=2))
            reply = await client.request(method, f"/v1/groups/{path}", json=body)
            state = (await client.get(f"/v1/groups/{path.split('/')[0]}")).json()
            nodes = [(one["node_id"], one["state"], one["incarnation"]) for one in state.get("nodes", [])]
            replies.append((reply.status_code, reply.json(), dict(reply.headers), nodes))
    return replies


POLLS = ["incarnation=1", "incarnation=2", "wait=0&incarnation=1&after=x"]
JOINS: list[dict[str, Any]] = [
    {},
    {"incarnation": "2"},
    {"slots": 3},
    {"after_round": 7},
    {"spec": {"min_nodes": 3}},
    {"port": 0},
]
BOOM = {"local_rank": 0, "rank": 0, "exit_code": 3, "message": "boom"}
REPORTS: list[dict[str, Any]] = [
    {},
    {"round": 7},
    {"incarnation": "2"},
    {"kind": "succeeded"},
    {"kind": "failed", "age_s": 0.5, "failure": BOOM},
    {"kind": "leaving", "message": "SIGTERM"},
    {"kind": "no such kind"},
]


@pytest.mark.parametrize("group", ["g", "waiting", "nowhere"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        *(("GET", f"/directive?{query}", None) for query in POLLS),
        *(("PUT", "", JOIN | change) for change in JOINS),
        *(("POST", "/report", STARTED | change) for change in REPORTS),
    ],
)
async def test_both_ways_answer_the_same(
    group: str, method: str, path: str, body: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await both_ways(monkeypatch, method, f"{group}/nodes/a{path}", body)
    assert one == other
