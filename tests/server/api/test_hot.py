"""What agents ask all the time is answered without Starlette, and as it answers it, whatever is wrong with it."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from hetrdzv.api import app
from hetrdzv.api.bound import Handlers, Table
from tests.support.served import HandClock, api, join, serving, two_nodes

JOIN = {"incarnation": "1", "slots": 2, "address": "10.0.0.1", "port": 29500}
STARTED = {"incarnation": "1", "round": 1, "kind": "started"}


@cache
def cold() -> Table:
    """The routes, with none that is hot."""
    found = Handlers()
    found.of = {replace(row.route, hot=False): row.handler for row in app.TABLE.rows}
    return Table([found])


async def both_ways(monkeypatch: pytest.MonkeyPatch, method: str, path: str, **request: Any) -> list[Any]:
    """What a request is answered as a hot one and by Starlette, and what it leaves behind."""
    replies = []
    for table in (app.TABLE, cold()):
        monkeypatch.setattr(app, "TABLE", table)
        async with serving(clock=HandClock()) as (service, _), api(service) as client:
            await two_nodes(service)
            await service.execute("waiting", join("a", min_nodes=2))
            reply = await client.request(method, f"/v1/groups/{path}", **request)
            state = (await client.get(f"/v1/groups/{path.split('/')[0]}")).json()
            nodes = [(one["node_id"], one["state"], one["incarnation"]) for one in state.get("nodes", [])]
            replies.append((reply.status_code, reply.json(), dict(reply.headers), nodes))
    return replies


def test_what_agents_ask_all_the_time_is_hot() -> None:
    assert {str(row.route).partition("/nodes/{node_id}")[::2] for row in app.TABLE.rows if row.route.hot} == {
        ("PUT /v1/groups/{group_id}", ""),
        ("GET /v1/groups/{group_id}", "/directive"),
        ("POST /v1/groups/{group_id}", "/directive"),
        ("POST /v1/groups/{group_id}", "/report"),
    }
    assert not any(row.route.hot for row in cold().rows)


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
    one, other = await both_ways(monkeypatch, method, f"{group}/nodes/a{path}", json=body)
    assert one == other


def without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != name}


@pytest.mark.parametrize(
    "query",
    [
        "",
        "wait=1",
        "incarnation=",
        "incarnation=..",
        "incarnation=1&wait=",
        "incarnation=1&wait=-1",
        "incarnation=1&wait=3601",
        "incarnation=1&wait=inf",
        "incarnation=1&incarnation=..",
        "incarnation=1&from=2",
        "incarnation=1;wait=1",
        "incarnation=1&after=" + "x" * 257,
        "incarnation=" + "x" * 129,
    ],
)
async def test_a_poll_that_is_wrong_is_refused_both_ways(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = await both_ways(monkeypatch, "GET", f"g/nodes/a/directive?{query}")
    assert one == other
    assert one[:1] == (422,)


@pytest.mark.parametrize(
    "query",
    [
        "incarnation=1&",
        "&incarnation=1",
        "incarnation=1&&wait=0",
        "incarnation=%31",
        "incarnation=2&incarnation=1&after=a+b",
        "incarnation=1&wait=1e0&after=x",
    ],
)
async def test_an_odd_poll_is_answered_both_ways(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = await both_ways(monkeypatch, "GET", f"g/nodes/a/directive?{query}")
    assert one == other
    assert one[1]["kind"] == "start"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "?wait=-1", JOIN, 422),
        ("PUT", "?wait=0&after=2", JOIN, 422),
        ("PUT", "", without(JOIN, "port"), 422),
        ("PUT", "", {**JOIN, "slots": 0}, 422),
        ("PUT", "", {**JOIN, "from_the_future": 1}, 422),
        ("PUT", "", [JOIN], 422),
        ("PUT", "", None, 422),
        ("PUT", "", {**JOIN, "slots": 1, "incarnation": "2", "spec": {"command": ["train.py"]}}, 409),
        ("POST", "/report?wait=1", STARTED, 422),
        ("POST", "/report", without(STARTED, "kind"), 422),
        ("POST", "/report", {**STARTED, "kind": "from_the_future"}, 422),
        ("POST", "/report", {**STARTED, "age_s": -1}, 422),
        ("POST", "/directive", {"incarnation": "1", "wait_s": -1}, 422),
    ],
)
async def test_a_body_that_is_wrong_is_refused_both_ways(
    method: str, path: str, body: object, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await both_ways(monkeypatch, method, f"g/nodes/a{path}", json=body)
    assert one == other
    assert one[0] == status, one
