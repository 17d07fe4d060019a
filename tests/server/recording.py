"""Records what clients and servers of one version of the API say to each other, for test_compatibility.py.

Run it at every release, the first of which is 0.2.0, in the checkout of that release, and check the files in:

    .venv/bin/python -m tests.server.recording tests/server/fixtures/0.2.0

Every story is a file: a real client talks to a real hetserver, and each request with its reply is an `Exchange`.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from hetrdzv.client import Client
from hetrdzv.protocol import states
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.requests.daemon import DaemonRequest
from hetrdzv.protocol.requests.joining import JoinRequest, SpecFields
from hetrdzv.protocol.requests.reports import ReportRequest
from tests.support.servers import Hetserver

TOKENS = "adminadmin admin\nagentagent agent group=team-*\nreadreadread read\n"
"""A token file of the server in the story about tokens."""

KEPT = {"accept", "authorization", "content-type", "het-api-version", "het-api-minor", "last-event-id"}
"""Headers of requests that are recorded; the others are the HTTP library's."""

KEPT_OF_REPLIES = KEPT | {"cache-control", "location", "retry-after", "www-authenticate"}


@dataclass
class Exchange:
    """A request and its reply.

    Attributes:
        target: path and query.
        body: of the request, as it was sent.
        reply: JSON where it is that, else text; of an event stream what was read of it.
    """

    method: str
    target: str
    headers: dict[str, str]
    body: str
    status: int = 0
    reply_headers: dict[str, str] = field(default_factory=dict)
    reply: Any = None


class Recorder(httpx.AsyncBaseTransport):
    """Sends requests over the network and keeps them with their replies."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self._network = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = Exchange(
            request.method,
            request.url.raw_path.decode(),
            _only(KEPT, request.headers),
            (await request.aread()).decode(),
        )
        self.exchanges.append(exchange)
        response = await self._network.handle_async_request(request)
        exchange.status = response.status_code
        exchange.reply_headers = _only(KEPT_OF_REPLIES, response.headers)
        if text := (await response.aread()).decode():
            exchange.reply = text
            with suppress(ValueError):
                exchange.reply = json.loads(text)
        return response

    async def aclose(self) -> None:
        await self._network.aclose()


def _only(names: set[str], headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower() in names}


class Talk:
    """What a story is told with: a client, and requests by hand, as of curl."""

    def __init__(self, client: Client, http: httpx.AsyncClient) -> None:
        self.client = client
        self._http = http

    async def raw(self, method: str, path: str, content: str | None = None, **headers: str) -> None:
        """Send a request as a person would, or a program that is not ours."""
        if content is not None:
            headers = {"content-type": "application/json", **headers}
        request = self._http.build_request(
            method,
            path,
            content=content,
            headers={name.replace("_", "-"): text for name, text in headers.items()},
        )
        await self._http.send(request)

    async def refused(self, call: Awaitable[object]) -> None:
        """Make a call that the server refuses."""
        try:
            await call
        except HetError:
            return
        raise AssertionError("it was not refused")


def offer(incarnation: str, slots: int, port: int, after_round: int = 0, **more: Any) -> "JoinRequest":
    """What a node joins with."""
    return JoinRequest(
        incarnation=incarnation,
        slots=slots,
        address="10.0.0.1" if slots == 2 else "10.0.0.2",
        port=port,
        after_round=after_round,
        **more,
    )


def told(incarnation: str, number: int, kind: str, **more: Any) -> "ReportRequest":
    """A report of an agent."""
    return ReportRequest(incarnation=incarnation, round=number, kind=states.ReportKind(kind), **more)


# -- stories -------------------------------------------------------------------------------------------------


async def job(talk: Talk) -> None:
    """A job of two nodes: a failure, a restart, a daemon, a node that leaves; success."""
    client = talk.client
    for path in ("/healthz", "/readyz", "/metrics"):
        await talk.raw("GET", path)
    spec = SpecFields(min_nodes=2, max_nodes=2, last_call_s=0, lease_s=600, command=("train.py", "--x"))
    await client.put("g", spec)
    await client.put("g", SpecFields(min_nodes=2))
    wants = {"wants_command": True, "wants_members": True, "wants_daemon": True}
    more = {"labels": {"rack": "1"}, "device": {"gpu": "A100"}, "role": "trainer", **wants}
    await client.join("g", "a", offer("a1", 2, 4001, script_port=4002, spec=spec, **more))
    await client.directive("g", "a", "a1")
    await client.join("g", "b", offer("b1", 1, 4003, **more), wait_s=5.0)
    await client.directive("g", "a", "a1", after="of another version", wait_s=5.0)
    daemon = DaemonRequest(master="a", incarnation="a1", round=1, words=("orted", "-mca", "x", "y"))
    await talk.refused(client.start_daemon("g", "unknown", daemon))
    await talk.refused(client.start_daemon("g", "b", replace(daemon, words=("sh",))))
    not_master = replace(daemon, master="b", incarnation="b1")
    await talk.refused(client.start_daemon("g", "a", not_master))
    await client.start_daemon("g", "b", daemon)
    last = await client.directive("g", "b", "b1")
    await client.report("g", "a", told("a1", 1, "started"))
    await client.report("g", "b", told("b1", 1, "started", age_s=0.5))
    await client.directive("g", "b", "b1", after=last.version, wait_s=0.05)
    await client.groups()
    await client.group("g")
    failure = Failure(local_rank=0, rank=2, exit_code=7, message="Traceback: no memory")
    await client.report("g", "b", told("b1", 1, "failed", age_s=0.1, failure=failure))
    await client.directive("g", "a", "a1")
    await client.join("g", "b", offer("b1", 1, 4003, 1, **more))
    await client.group("g")
    await client.join("g", "a", offer("a1", 2, 4001, 1, **more))
    await talk.refused(client.report("g", "b", told("b1", 1, "started")))
    await client.report("g", "a", told("a1", 2, "started"))
    await client.report("g", "b", told("b1", 2, "leaving", message="SIGTERM"))
    await client.leave("g", "b", incarnation="b1", reason="SIGTERM")
    await client.join("g", "a", offer("a1", 2, 4001, 2, **more))
    await client.group("g")
    await client.join("g", "b", offer("b2", 1, 4003, **more))
    await client.report("g", "a", told("a1", 3, "started"))
    await client.report("g", "b", told("b2", 3, "started"))
    await client.report("g", "b", told("b2", 3, "succeeded"))
    await client.report("g", "a", told("a1", 3, "succeeded"))
    await client.directive("g", "b", "b2")
    await client.leave("g", "a", incarnation="a1")
    await client.leave("g", "b", incarnation="b2")
    await client.group("g")
    await client.events("g", after=3)


async def people(talk: Talk) -> None:
    """What people do: restart, drain, undrain, cancel, delete; a master that is not reached; a group that fails."""
    client = talk.client
    await client.groups()
    await client.put("g", SpecFields(min_nodes=2, max_nodes=2, last_call_s=0, max_restarts=0, lease_s=600))
    await client.join("g", "a", offer("a1", 2, 4001))
    await client.join("g", "b", offer("b1", 1, 4003))
    await client.report("g", "b", told("b1", 1, "master_unreachable", message="no route to host"))
    await client.join("g", "a", offer("a1", 2, 4001, 1))
    await client.join("g", "b", offer("b1", 1, 4003, 1))
    await client.group("g")
    await client.restart("g")
    await client.join("g", "a", offer("a1", 2, 4001, 2))
    await client.join("g", "b", offer("b1", 1, 4003, 2))
    await client.drain("g", "b")
    await client.directive("g", "b", "b1")
    await client.leave("g", "b", incarnation="b1")
    await client.undrain("g", "b")
    await client.join("g", "a", offer("a1", 2, 4001, 3))
    await client.join("g", "b", offer("b2", 1, 4003))
    failure = Failure(local_rank=-1, rank=-1, signal="SIGSEGV")
    await client.report("g", "b", told("b2", 4, "failed", failure=failure))
    await client.join("g", "b", offer("b2", 1, 4003, 4))
    await client.join("g", "a", offer("a1", 2, 4001, 4))
    await client.directive("g", "a", "a1")
    await client.group("g")
    await client.put("h", SpecFields())
    await client.cancel("h")
    await client.join("h", "a", offer("a1", 2, 4001))
    await client.delete("h")


async def errors(talk: Talk) -> None:
    """Requests that are refused, by agents and by hand."""
    client, raw = talk.client, talk.raw
    node = "/v1/groups/g/nodes/a"
    body = '{"incarnation": "a1", "slots": 2, "address": "10.0.0.1", "port": 4001}'
    await client.put("g", SpecFields(min_nodes=1, max_nodes=1, last_call_s=0, lease_s=600))
    await client.join("g", "a", offer("a1", 2, 4001))
    await talk.refused(client.group("unknown"))
    await talk.refused(client.directive("g", "unknown", "i"))
    await talk.refused(client.join("g", "a", offer("a2", 2, 4001)))
    await talk.refused(client.report("g", "a", told("a2", 1, "started")))
    await talk.refused(client.put("g", SpecFields(max_restarts=9)))
    await talk.refused(client.put("h", SpecFields(min_nodes=3, max_nodes=2)))
    await talk.refused(client.delete("g"))
    await raw("PUT", node, body.replace("port", "prot"))
    await raw("PUT", node, body.replace("2", '"two"'))
    await raw("PUT", node, body.replace("4001", '4001, "colour": 1'))
    await raw("PUT", node, body, het_api_version="1")
    await raw("PUT", node, "{")
    await raw("PUT", f"{node}?wiat=5", body, het_api_version="1")
    await raw("GET", f"{node}/directive")
    await raw("POST", f"{node}/report", '{"incarnation": "a1", "round": 1, "kind": "bored"}')
    await raw("GET", "/v1/nothing")
    await raw("PATCH", "/v1/groups/g")
    for version in ("2", "0", "one"):
        await raw("GET", "/v1/groups", het_api_version=version)


async def tokens(talk: Talk) -> None:
    """Who may do what: the client has the token of agents of `team-*`."""
    client = talk.client
    await talk.raw("GET", "/v1/groups")
    await talk.raw("GET", "/v1/groups", authorization="Bearer wrong")
    await talk.raw("GET", "/v1/groups", authorization="Bearer readreadread")
    await client.join("team-a", "a", offer("a1", 2, 4001))
    await client.groups()
    await talk.refused(client.join("other", "a", offer("a1", 2, 4001)))
    await talk.refused(client.cancel("team-a"))
    await talk.raw("POST", "/v1/groups/team-a/cancel", authorization="Bearer adminadmin")


STORIES: Mapping[str, Callable[[Talk], Awaitable[None]]] = {
    "job": job,
    "people": people,
    "errors": errors,
    "tokens": tokens,
}


@asynccontextmanager
async def server_of(story: str) -> AsyncIterator[Hetserver]:
    """A server as a story needs it."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "tokens")
        file.write_text(TOKENS)
        file.chmod(0o600)
        with Hetserver(token_file=file if story == "tokens" else None) as server:
            yield server


async def record(story: str) -> list[Exchange]:
    """Tell a story to a server; the exchanges."""
    async with server_of(story) as server:
        recorder = Recorder()
        token = "agentagent" if story == "tokens" else None
        async with (
            Client([server.url], token=token) as client,
            httpx.AsyncClient(transport=recorder, base_url=server.url) as http,
        ):
            headers = client._http.headers
            await client._http.aclose()
            client._http = httpx.AsyncClient(transport=recorder, headers=headers)
            await STORIES[story](Talk(client, http))
        return recorder.exchanges


def load(file: Path) -> list[Exchange]:
    """The exchanges in a file."""
    return [Exchange(**exchange) for exchange in json.loads(file.read_text(encoding="utf-8"))]


def main() -> None:
    """Record every story into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for story in STORIES:
        exchanges = asyncio.run(record(story))
        text = json.dumps([asdict(exchange) for exchange in exchanges], indent=1, ensure_ascii=False)
        (folder / f"{story}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{story}: {len(exchanges)} exchanges")


if __name__ == "__main__":
    main()
