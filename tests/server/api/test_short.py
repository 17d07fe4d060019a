"""The short way for requests of agents: it answers as the ordinary routes do, and leaves unusual requests to those."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from hetrdzv.api.routes import short
from hetrdzv.api.routes.short import ShortRoutes
from hetrdzv.service.service import Service
from tests.support.served import api, join, serving, two_nodes

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
    request: Callable[[str], Any], group: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Any]:
    """The replies to a request of a node of a group (see `several`), on the short way and on the long one."""
    replies = []
    for way in ("short", "long"):
        with monkeypatch.context() as patch:
            if way == "long":
                patch.setattr(short, "_PATH", short.re.compile("none"))
            async with serving() as (service, _), api(service) as client:
                await several(service)
                reply = await getattr(client, request(group)[0])(*request(group)[1:2], **request(group)[2])
                state = client.get(f"/v1/groups/{group}")
                nodes = [
                    {name: one[name] for name in ("node_id", "state", "incarnation")}
                    for one in (await state).json().get("nodes", [])
                ]
                replies.append((reply.status_code, reply.json(), dict(reply.headers), nodes))
    return replies[0], replies[1]


async def several(service: Service) -> None:
    """Group `g` starts its first round, `waiting` waits for a second node, `nowhere` is not there."""
    await two_nodes(service)
    await service.execute("waiting", join("a", min_nodes=2))


@pytest.mark.parametrize("group", ["g", "waiting", "nowhere"])
@pytest.mark.parametrize("query", ["incarnation=1", "incarnation=2", "wait=0&incarnation=1&after=x"])
async def test_both_ways_answer_a_poll_the_same(
    group: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poll(group: str) -> Any:
        return "get", f"/v1/groups/{group}/nodes/a/directive?{query}", {}

    one, other = await both_ways(poll, group, monkeypatch)
    assert one == other


@pytest.mark.parametrize("group", ["g", "waiting", "nowhere"])
@pytest.mark.parametrize(
    "change",
    [{}, {"incarnation": "2"}, {"slots": 3}, {"after_round": 7}, {"spec": {"min_nodes": 3}}, {"port": 0}],
)
async def test_both_ways_answer_a_join_the_same(
    group: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(group: str) -> Any:
        return "put", f"/v1/groups/{group}/nodes/a", {"json": JOIN | change}

    one, other = await both_ways(put, group, monkeypatch)
    assert one == other


@pytest.mark.parametrize("group", ["g", "waiting", "nowhere"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"round": 7},
        {"incarnation": "2"},
        {"kind": "succeeded"},
        {
            "kind": "failed",
            "age_s": 0.5,
            "failure": {"local_rank": 0, "rank": 0, "exit_code": 3, "message": "boom"},
        },
        {"kind": "leaving", "message": "SIGTERM"},
        {"kind": "no such kind"},
    ],
)
async def test_both_ways_answer_a_report_the_same(
    group: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def post(group: str) -> Any:
        return "post", f"/v1/groups/{group}/nodes/a/report", {"json": STARTED | change}

    one, other = await both_ways(post, group, monkeypatch)
    assert one == other
