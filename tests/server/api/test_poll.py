"""The fast route for polls: it answers as the ordinary route does, and leaves unusual polls to that."""

import pytest
from starlette.types import Message, Receive, Scope, Send

from hetrdzv.api.routes import poll
from hetrdzv.api.routes.poll import PollRoute
from tests.support.served import api, join, serving, two_nodes

PATH = "/v1/groups/g/nodes/a/directive"


async def goes_long(path: str, query: bytes, method: str = "GET") -> bool:
    """Whether a request is left to the long way."""
    passed: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope)

    async def channel(*_: Message) -> Message:
        raise NotImplementedError

    scope = {"type": "http", "method": method, "path": path, "query_string": query}
    try:
        await PollRoute(app)(scope, channel, channel)
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


@pytest.mark.parametrize("group", ["g", "waiting", "nowhere"])
@pytest.mark.parametrize("query", ["incarnation=1", "incarnation=2", "wait=0&incarnation=1&after=x"])
async def test_both_ways_answer_the_same(group: str, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (service, _), api(service) as client:
        await two_nodes(service)
        await service.execute("waiting", join("a", min_nodes=2))
        path = f"/v1/groups/{group}/nodes/a/directive?{query}"
        short = await client.get(path)
        with monkeypatch.context() as patch:
            patch.setattr(poll, "_plain_poll", lambda scope: None)
            long = await client.get(path)
        assert (short.status_code, short.json(), dict(short.headers)) == (
            long.status_code,
            long.json(),
            dict(long.headers),
        )
