"""Recorded conversations of each release (recording.py), held by today's server and client.

There is no release yet, so today's own are recorded, which shows that recording and replaying works.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hetrdzv.client import Client
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import Problem
from hetrdzv.protocol.requests.daemon import DaemonRequest
from hetrdzv.protocol.requests.joining import JoinRequest, SpecFields
from hetrdzv.protocol.requests.reports import ReportRequest
from tests.server.recording import STORIES, Exchange, load, record, server_of

FIXTURES = Path(__file__).with_name("fixtures")
TODAY = "today"
VERSIONS = [*sorted(path.name for path in FIXTURES.glob("*")), TODAY]
CONVERSATIONS = [(version, story) for version in VERSIONS for story in STORIES]

FREE = {
    "why",
    "text",
    "detail",
    "message",
    "title",
    "ended",
    "at",
    "after_s",
    "ago_s",
    "heard_s_ago",
    "ended_s_ago",
    "clock",
    "until",
    "since",
    "ends_at",
    "version",
}
"""Fields whose values may change: what people read, times, and what is opaque. Types may not."""


def differences(recorded: Any, found: Any, where: str = "") -> Iterator[str]:
    """What a reply lacks of a recorded one. It may have more fields."""
    match recorded, found:
        case dict(), dict() if where.endswith(".time"):
            return  # what took no time is left out
        case dict(), dict():
            for name, value in recorded.items():
                if name not in found:
                    yield f"{where}.{name} is missing"
                else:
                    yield from differences(value, found[name], f"{where}.{name}")
        case list(), list() if len(recorded) == len(found):
            for number, pair in enumerate(zip(recorded, found, strict=True)):
                yield from differences(*pair, f"{where}[{number}]")
        case _ if type(recorded) is not type(found):
            yield f"{where} is {found!r}, and was {recorded!r}"
        case _ if recorded != found and where.rpartition(".")[2] not in FREE:
            yield f"{where} is {found!r}, and was {recorded!r}"


@cache
def conversation(version: str, story: str) -> list[Exchange]:
    """The exchanges of a story as they were recorded."""
    if version == TODAY:
        with ThreadPoolExecutor(1) as thread:  # a loop runs in this one
            return thread.submit(lambda: asyncio.run(record(story))).result()
    return load(FIXTURES / version / f"{story}.json")


# -- today's server --------------------------------------------------------------------------------------------


async def read(response: httpx.Response, exchange: Exchange) -> tuple[Any, Any]:
    """A recorded reply and today's, comparable."""
    kind = response.headers.get("content-type", "")
    content = await response.aread()
    if "json" in kind:
        return exchange.reply, json.loads(content)
    if exchange.target == "/metrics":
        return metrics_of(exchange.reply), metrics_of(content.decode())
    return exchange.reply or "", content.decode()


def metrics_of(text: str) -> dict[str, str]:
    """The type of each metric in Prometheus' text format."""
    return {family.name: family.type for family in text_string_to_metric_families(text)}


@pytest.mark.parametrize(("version", "story"), CONVERSATIONS)
async def test_todays_server_answers_as_that_of_the_release(version: str, story: str) -> None:
    """An agent of that release gets what it got then: fields, types, and values that do not speak to people."""
    wrong = []
    renamed: dict[str, str] = {}  # versions of directives, which come back in later requests
    async with server_of(story) as server, httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
        for number, exchange in enumerate(conversation(version, story)):
            target = exchange.target
            for old, new in renamed.items():
                target = target.replace(f"after={old}", f"after={new}")
            async with http.stream(
                exchange.method, target, headers=exchange.headers, content=exchange.body or None
            ) as response:
                recorded, found = await read(response, exchange)
            told = [
                *differences(exchange.status, response.status_code, "status"),
                *differences(exchange.reply_headers, dict(response.headers), "headers"),
                *differences(recorded, found),
            ]
            wrong += [f"{number}: {exchange.method} {exchange.target}: {one}" for one in told]
            if isinstance(recorded, dict) and {"kind", "version"} <= recorded.keys() & found.keys():
                renamed[recorded["version"]] = found["version"]
    assert not wrong, "\n".join(wrong)


# -- today's client --------------------------------------------------------------------------------------------

JOIN = JoinRequest(incarnation="a1", slots=2, address="10.0.0.1", port=4001)
REPORT = ReportRequest(incarnation="a1", round=1, kind="started")
DAEMON = DaemonRequest(master="a", incarnation="a1", round=1, words=("orted",))

CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    r"GET /v1/groups": lambda client: client.groups(),
    r"GET /v1/groups/\w+": lambda client: client.group("g"),
    r"PUT /v1/groups/\w+": lambda client: client.put("g", SpecFields()),
    r"DELETE /v1/groups/\w+": lambda client: client.delete("g"),
    r"POST /v1/groups/[\w-]+/restart": lambda client: client.restart("g"),
    r"POST /v1/groups/[\w-]+/cancel": lambda client: client.cancel("g"),
    r"GET /v1/groups/\w+/events": lambda client: client.events("g"),
    r"PUT /v1/groups/[\w-]+/nodes/\w+": lambda client: client.join("g", "a", JOIN),
    r"DELETE /v1/groups/\w+/nodes/\w+": lambda client: client.leave("g", "a", incarnation="a1"),
    r"GET /v1/groups/\w+/nodes/\w+/directive": lambda client: client.directive("g", "a", "a1"),
    r"POST /v1/groups/\w+/nodes/\w+/report": lambda client: client.report("g", "a", REPORT),
    r"POST /v1/groups/\w+/nodes/\w+/daemon": lambda client: client.start_daemon("g", "a", DAEMON),
    r"POST /v1/groups/\w+/nodes/\w+/drain": lambda client: client.drain("g", "a"),
    r"POST /v1/groups/\w+/nodes/\w+/undrain": lambda client: client.undrain("g", "a"),
}


def call_of(exchange: Exchange) -> Callable[[Client], Awaitable[object]] | None:
    """The method of the client that asks for what was asked; None: people's requests only."""
    asked = f"{exchange.method} {exchange.target.partition('?')[0]}"
    return next((call for pattern, call in CALLS.items() if re.fullmatch(pattern, asked)), None)


def answering(exchange: Exchange) -> httpx.AsyncClient:
    """An HTTP client that gets the recorded reply, whatever is asked."""
    content = "" if exchange.reply is None else json.dumps(exchange.reply)
    response = httpx.Response(exchange.status, headers=exchange.reply_headers, content=content)
    return httpx.AsyncClient(transport=httpx.MockTransport(lambda _: response))


@pytest.mark.parametrize(("version", "story"), CONVERSATIONS)
async def test_todays_client_understands_the_server_of_the_release(version: str, story: str) -> None:
    understood = set()
    for exchange in conversation(version, story):
        call = call_of(exchange)
        if call is None:
            continue
        async with Client(["http://h:1"]) as client:
            await client._http.aclose()
            client._http = answering(exchange)
            if exchange.status >= 400:
                with pytest.raises(Problem) as caught:
                    await call(client)
                error = caught.value
                assert (error.status, error.code) == (exchange.status, exchange.reply["code"])
                assert str(error) == exchange.reply["detail"]
                continue
            reply = await call(client)
        understood.add(call)
        if is_dataclass(reply):
            assert list(differences(exchange.reply, json.loads(codec.write(reply, nulls=True)))) == []
        else:
            assert (reply, exchange.reply) == (None, None)
    assert understood


def test_the_stories_use_every_route_that_clients_have() -> None:
    for version in VERSIONS:
        used = {call_of(exchange) for story in STORIES for exchange in conversation(version, story)}
        assert set(CALLS.values()) <= used, version


def test_differences_are_found() -> None:
    recorded = {"a": 1, "why": "x", "b": [{"c": None}], "d": 1.0}
    assert list(differences(recorded, {"a": 1, "why": "y", "b": [{"c": None, "e": 1}], "d": 1.0})) == []
    assert list(differences(recorded, {"a": 2, "why": 1, "b": [{}], "d": 1})) == [
        ".a is 2, and was 1",
        ".why is 1, and was 'x'",
        ".b[0].c is missing",
        ".d is 1, and was 1.0",
    ]
