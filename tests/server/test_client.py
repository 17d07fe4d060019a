"""The HTTP client over real sockets: what it sends, which server it asks, what it says about failures."""

import asyncio
import errno
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from hetrdzv.auth.tls import ClientTls
from hetrdzv.client import Client, normalize_url, parse_server_urls
from hetrdzv.client.explain import explain_transport_error, find_unusable_error
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import HetError, NotHetserver, Problem, Unreachable, VersionMismatch
from hetrdzv.protocol.progress import PollRequest
from hetrdzv.protocol.replies import Event, GroupReply
from hetrdzv.protocol.requests import JoinRequest, SpecFields
from hetrdzv.protocol.routes import API_VERSION
from tests.support.filled import filled

TOKEN = "s3cr3t-t0ken"
CUT = b""
LIMITS = httpx.Timeout(10.0, connect=3.0)

DIRECTIVE, GROUP, EVENT = (json.loads(codec.to_json(filled(kind))) for kind in (Directive, GroupReply, Event))


@dataclass
class Seen:
    """A request as the server sees it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


def answer(status: int, body: object = None, **headers: str) -> bytes:
    """An answer of a hetserver."""
    content = b"" if body is None else json.dumps(body).encode()
    told = {"Het_Api_Version": str(API_VERSION), "Content_Type": "application/json", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in told.items() if value]
    head = "\r\n".join([f"HTTP/1.1 {status} X", *lines, f"Content-Length: {len(content)}", "", ""])
    return head.encode() + content


def to(url: str) -> bytes:
    """The answer of a server that does not lead: where the leader is."""
    return answer(307, Location=url)


@dataclass
class Fake:
    """A server that records requests and answers with a function; `CUT` closes the connection."""

    reply: Callable[[Seen], bytes | Awaitable[bytes]]
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    tasks: set[asyncio.Task[None] | None] = field(default_factory=set)

    async def close(self) -> None:
        """End every connection."""
        tasks = [task for task in self.tasks if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                method, target, _ = first.split(" ")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                content = await reader.readexactly(int(headers.get("content-length", "0")))
                url = urlsplit(target)
                query = dict(parse_qsl(url.query, keep_blank_values=True))
                body = json.loads(content) if content else None
                self.seen.append(Seen(method, url.path, query, headers, body))
                reply = self.reply(self.seen[-1])
                data = reply if isinstance(reply, bytes) else await reply
                if data == CUT:
                    return
                writer.write(data)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()


class Net:
    """Makes servers and clients that live as long as the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def serve(self, reply: bytes | Callable[[Seen], bytes | Awaitable[bytes]]) -> Fake:
        fake = Fake((lambda _: reply) if isinstance(reply, bytes) else reply)
        server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
        self._stack.push_async_callback(fake.close)
        self._stack.callback(server.close)
        fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return fake

    async def client(self, *servers: str, **options: Any) -> Client:
        return await self._stack.enter_async_context(Client(servers, **options))


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    async with AsyncExitStack() as stack:
        yield Net(stack)


@pytest.fixture
def dead() -> str:
    """A URL where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def hang(_: Seen) -> bytes:
    await asyncio.Event().wait()
    return CUT


# -- URLs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("host", "http://host:29400"),
        (" http://host:29400/ ", "http://host:29400"),
        ("http://host", "http://host:80"),
        ("https://Host.Example", "https://host.example:443"),
        ("10.0.0.1:8", "http://10.0.0.1:8"),
        ("[::1]", "http://[::1]:29400"),
        ("http://[fe80::1]:1234", "http://[fe80::1]:1234"),
        ("het_server:1", "http://het_server:1"),
    ],
)
def test_urls_are_normalised(given: str, normal: str) -> None:
    assert normalize_url(given) == normal
    assert normalize_url(normal) == normal


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("::1", "brackets"),
        ("ftp://h", "'ftp'"),
        ("http://", "no host"),
        ("", "no host"),
        (":80", "no host"),
        ("h:99999", "[Pp]ort"),
        ("h:http", "[Pp]ort"),
        ("h:0", "port 0"),
        ("http://h/v1", "'/v1'"),
        ("http//h:80", "'//h:80'"),
        ("http://h?x=1", r"'\?x=1'"),
        ("a b:1", "not a host name"),
        ("http://[::1", "IPv6"),
        ("http://me:hunter2@h:1", "user name or password"),
    ],
)
def test_a_bad_url_says_what_is_wrong_and_shows_no_password(given: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong) as caught:
        normalize_url(given)
    assert "hunter2" not in str(caught.value)


def test_servers_come_as_a_list_each_once() -> None:
    assert parse_server_urls("h1, http://h2:1/,h1:29400,") == ["http://h1:29400", "http://h2:1"]
    with pytest.raises(ValueError, match="no server"):
        parse_server_urls(" , ")


# -- what is sent --------------------------------------------------------------------------------------

JOIN = JoinRequest(incarnation="i", slots=2, address="10.0.0.1", port=1, spec=SpecFields(max_nodes=None))
POLL = PollRequest(incarnation="i")


async def test_what_is_sent(net: Net, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(proxy, dead)  # is not used
    replies = {
        "PUT": answer(200, DIRECTIVE),
        "DELETE": answer(204),
        "GET": answer(200, {"events": [EVENT], "last": 8}),
    }
    fake = await net.serve(lambda seen: replies[seen.method])
    client = await net.client(fake.url, token=TOKEN)
    await client.join("g", "a", JOIN)
    await client.leave("g", "a", incarnation="i", reason="bye & bye")
    assert (await client.events("g", after=7, wait=None)).last == 8
    offer = {"incarnation": "i", "slots": 2, "address": "10.0.0.1", "port": 1, "spec": {"max_nodes": None}}
    assert [(seen.method, seen.path, seen.query, seen.body) for seen in fake.seen] == [
        ("PUT", "/v1/groups/g/nodes/a", {}, offer),
        ("DELETE", "/v1/groups/g/nodes/a", {"incarnation": "i", "reason": "bye & bye"}, None),
        ("GET", "/v1/groups/g/events", {"after": "7"}, None),
    ]
    for seen in fake.seen:
        assert seen.headers["het-api-version"] == str(API_VERSION)
        assert seen.headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a?b", "x" * 129])
async def test_an_id_that_would_name_another_path_is_never_sent(name: str) -> None:
    async with Client(["http://127.0.0.1:1"]) as client:
        with pytest.raises(ValueError, match="is not a group id"):
            await client.delete(name)
        with pytest.raises(ValueError, match="is not a node id"):
            await client.drain("g", name)


async def test_what_a_newer_server_adds_is_ignored_or_shown_as_it_is(net: Net) -> None:
    group = {**GROUP, "state": "paused", "nodes": [{**GROUP["nodes"][0], "state": "asleep"}]}
    shown = await (await net.client((await net.serve(answer(200, group))).url)).group("g")
    assert (shown.state, shown.nodes[0].state) == ("paused", "asleep")
    directive = {**DIRECTIVE, "kind": "exit", "outcome": "paused", "exit_code": 0, "colour": "green"}
    fake = await net.serve(answer(200, directive))
    assert (await (await net.client(fake.url)).poll("g", "a", POLL)).outcome == "paused"


@pytest.mark.parametrize("body", [None, {"kind": "jump"}, {**DIRECTIVE, "kind": "jump"}])
async def test_an_unknown_directive_is_not_obeyed(net: Net, body: object) -> None:
    fake = await net.serve(answer(200, body))
    with pytest.raises(NotHetserver, match=r"not with a Directive \(.*upgrade hetrdzv here"):
        await (await net.client(fake.url)).poll("g", "a", POLL)


async def test_a_poll_may_take_its_wait_and_a_little_more(net: Net) -> None:
    async def slow(seen: Seen) -> bytes:
        await asyncio.sleep(seen.body["wait_s"])
        return answer(200, DIRECTIVE)

    fake = await net.serve(slow)
    client = await net.client(fake.url, timeout_s=0.15)
    assert (await client.poll("g", "a", PollRequest(incarnation="i", wait_s=0.2))).kind == "wait"
    client = await net.client((await net.serve(hang)).url)
    with pytest.raises(Unreachable, match=r"timed out after 1\.1 s"):  # a lost answer costs no lease
        await client.poll("g", "a", PollRequest(incarnation="i", wait_s=0.1))


async def test_a_changed_token_is_read_again_when_the_old_one_is_rejected(net: Net) -> None:
    def takes_the_new_one(seen: Seen) -> bytes:
        if seen.headers.get("authorization") == f"Bearer {TOKEN}2":
            return answer(200, GROUP)
        return answer(401, {"code": "unauthorized", "detail": "another token"})

    fake = await net.serve(takes_the_new_one)
    kept: list[str | None] = [TOKEN]
    client = await net.client(fake.url, token=TOKEN, renew_token=lambda: kept[0])
    for kept[0] in (TOKEN, None):
        with pytest.raises(Problem, match="another token"):
            await client.group("g")
    assert len(fake.seen) == 2
    kept[0] = f"{TOKEN}2"
    assert (await client.group("g")).group_id == "gpu0"
    assert (await client.restart("g")).group_id == "gpu0"
    assert len(fake.seen) == 5


# -- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (
            {"status": 409, "code": "stale_round", "detail": "over", "directive": DIRECTIVE},
            "stale_round",
            "over",
        ),
        (None, "error", "the server answered HTTP 409"),
        ([1], "error", "the server answered HTTP 409"),
        ({"detail": 3, "code": None}, "error", "the server answered HTTP 409"),
    ],
)
async def test_a_problem_has_status_code_detail_and_body(net: Net, body: Any, code: str, says: str) -> None:
    fake = await net.serve(answer(409, body, Content_Type="application/problem+json"))
    with pytest.raises(Problem, match=f"^{says}$") as caught:
        await (await net.client(fake.url)).group("g")
    assert (caught.value.status, caught.value.code) == (409, code)
    assert caught.value.body == (body if isinstance(body, dict) else {})


async def test_unreachable_names_every_server_with_its_reason(net: Net, dead: str) -> None:
    hanging, cut = await net.serve(hang), await net.serve(CUT)
    stopping = await net.serve(answer(503, {"code": "server_stopping", "detail": "it is stopping"}))
    proxied = await net.serve(answer(502, Het_Api_Version=""))
    client = await net.client(dead, hanging.url, cut.url, stopping.url, proxied.url, timeout_s=0.1)
    with pytest.raises(Unreachable) as caught:
        await client.group("g")
    assert str(caught.value) == (
        f"no server can do this now ({dead}: connection refused; {hanging.url}: timed out after 0.1 s; "
        f"{cut.url}: connection cut before the answer came; if it speaks TLS, give https://; "
        f"{stopping.url}: it is stopping (HTTP 503); "
        f"{proxied.url}: HTTP 502 from a proxy in front of it)"
    )
    with pytest.raises(Unreachable, match=f"^{stopping.url}: it is stopping"):  # not "no server answers"
        await (await net.client(stopping.url)).group("g")


async def test_tls_spoken_to_a_plain_server(net: Net, dead: str) -> None:
    """It never works, unlike other servers of the list, which may come up, or one that spoke TLS a moment ago."""

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    says = f"{url} answered, but does not speak TLS: use http://"
    with pytest.raises(NotHetserver, match=f"^{says}$"):
        await (await net.client(url)).group("g")
    with pytest.raises(Unreachable, match=rf"^no server answers \({says}; {dead}: connection refused\)$"):
        await (await net.client(url, dead)).group("g")
    server.close()


def caused(error: httpx.TransportError, cause: Exception) -> httpx.TransportError:
    error.__cause__ = cause
    return error


REFUSED = caused(httpx.ConnectError(""), ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed"))
CUT_OFF = "connection cut before the answer came; if it speaks TLS, give https://"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.ReadTimeout(""), "timed out after 10 s"),
        (caused(httpx.ReadError(""), ConnectionResetError(errno.ECONNRESET, "reset")), CUT_OFF),
        (httpx.RemoteProtocolError("peer closed connection without …"), CUT_OFF),
        (httpx.ConnectError(""), "no connection"),
        (caused(httpx.ConnectError(""), OSError(errno.EHOSTUNREACH, "x")), "no route to host"),
        (caused(httpx.ConnectError(""), socket.gaierror(socket.EAI_NONAME, "x")), "host name unknown"),
        (
            caused(httpx.ConnectError(""), socket.gaierror(socket.EAI_AGAIN, "x")),
            "host name lookup failed for now",
        ),
    ],
)
def test_transport_errors_in_plain_words(error: httpx.TransportError, words: str) -> None:
    explained = explain_transport_error(error, "http://h:1", LIMITS, ClientTls(), answered_before=False)
    assert (type(explained), str(explained)) == (Unreachable, words)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("http://h", "; http:// without a port means 80, hetserver's default is 29400: try http://h:29400"),
        ("https://[::1]/", "; https:// without a port means 443, hetserver's default is 29400: try https://[::1]:29400"),
        ("http://h:8", ""),
    ],
)  # fmt: skip
def test_a_port_that_was_left_out_is_named(given: str, hint: str) -> None:
    url = normalize_url(given)
    for error, words in ((httpx.ConnectTimeout(""), "timed out after 3 s"), (REFUSED, "connection refused")):
        said = explain_transport_error(error, url, LIMITS, ClientTls(), answered_before=False)
        assert str(said) == f"{words}{hint}"
        said = explain_transport_error(error, url, LIMITS, ClientTls(), answered_before=True)
        assert str(said) == words, "it has answered: this is its port"
    stranger = find_unusable_error(httpx.Response(404, html="not here"), url)
    assert isinstance(stranger, NotHetserver)
    assert str(stranger).endswith(f"is not a hetserver (HTTP 404, text/html): check --server{hint}")


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        (b"220 mail ESMTP\r\n\r\n", NotHetserver, "no HTTP"),
        (answer(400, {}, Het_Api_Version=str(API_VERSION + 1)), VersionMismatch, "this client is older"),
        (answer(400, {}, Het_Api_Version=str(API_VERSION - 1)), VersionMismatch, "the server is older"),
        (answer(400, {}, Het_Api_Version="9" * 5_000), VersionMismatch, "this client is older"),
    ],
)
async def test_a_program_that_speaks_something_else_is_named(
    net: Net, reply: bytes, error: type[HetError], says: str
) -> None:
    with pytest.raises(error, match=says):
        await (await net.client((await net.serve(reply)).url)).group("g")


# -- several servers -----------------------------------------------------------------------------------


async def test_the_server_that_answered_last_is_asked_first(net: Net, dead: str) -> None:
    first, second = await net.serve(CUT), await net.serve(answer(200, GROUP))
    client = await net.client(dead, first.url, second.url)
    for _ in range(3):
        await client.group("g")
    assert len(first.seen) <= 1, "the others are asked in any order, and only until one answers"
    assert len(second.seen) == 3


@pytest.mark.parametrize(
    "useless",
    [
        answer(200, {}, Het_Api_Version=""),
        answer(503, {}),
        *map(to, ("", "/v1/groups/g", "ftp://h", "http://[::1", "http://u:p@h", "http://127.0.0.1:1")),
    ],
)
async def test_where_one_server_has_no_answer_the_next_is_asked(net: Net, useless: bytes) -> None:
    """Another program, one that stops, and one that redirects to nowhere, or to a leader that is dead."""
    first, second = await net.serve(useless), await net.serve(answer(200, GROUP))
    await (await net.client(first.url, second.url, "http://127.0.0.1:1")).group("g")
    assert len(second.seen) == 1


async def test_a_problem_is_an_answer_and_asks_no_other_server(net: Net) -> None:
    first = await net.serve(answer(404, {"code": "unknown_group"}))
    second = await net.serve(answer(200, GROUP))
    with pytest.raises(Problem):
        await (await net.client(first.url, second.url)).group("g")
    assert second.seen == []


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (CUT, "cut"),
        (hang, "timed out"),
        (answer(503, {"code": "leader_lost", "detail": "it ceased to lead"}), "ceased to lead"),
    ],
)
async def test_a_restart_that_may_have_been_done_is_not_asked_of_another(
    net: Net, dead: str, first: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetrdzv.client.client.TRY_OTHER_SERVERS_AFTER_S", 0.02)
    old, new = await net.serve(first), await net.serve(answer(200, GROUP))
    with pytest.raises(Unreachable, match=says):
        await (await net.client(old.url, new.url, timeout_s=0.2)).restart("g")
    assert new.seen == []
    await (await net.client(dead, new.url)).restart("g")
    await (await net.client(old.url, new.url)).cancel("g")
    assert len(new.seen) == 2


async def test_a_follower_points_to_the_leader_with_method_body_and_token(net: Net) -> None:
    leader = await net.serve(answer(200, DIRECTIVE))
    other = await net.serve(CUT)
    follower = await net.serve(to(f"{leader.url}/v1/groups/g/nodes/a?wait=1"))
    client = await net.client(follower.url, other.url, leader.url, token=TOKEN)
    await client.join("g", "a", JOIN)
    (seen,) = leader.seen
    assert (seen.method, seen.path, seen.body) == ("PUT", "/v1/groups/g/nodes/a", follower.seen[0].body)
    assert seen.headers["authorization"] == f"Bearer {TOKEN}"
    assert other.seen == []
    await client.join("g", "a", JOIN)
    assert (len(follower.seen), len(leader.seen)) == (1, 2)
    with pytest.raises(Unreachable) as caught:
        await (await net.client(follower.url, token=TOKEN)).group("g")
    assert f"{follower.url}: points to {leader.url}, which is not among the servers given" in str(
        caught.value
    )
    assert len(leader.seen) == 2


async def test_servers_that_point_to_each_other_are_asked_once_each(net: Net) -> None:
    fakes: list[Fake] = []
    fakes.append(await net.serve(lambda _: to(fakes[1].url)))
    fakes.append(await net.serve(lambda _: to(fakes[0].url)))
    with pytest.raises(Unreachable, match=r"points to http://.*; http://.*points to"):
        await (await net.client(*[fake.url for fake in fakes])).group("g")
    assert [len(fake.seen) for fake in fakes] == [1, 1]


# -- servers that hang -----------------------------------------------------------------------------------


async def test_where_the_leader_hangs_its_successor_is_found(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGSTOP or a power failure: the other servers point to it for a while."""
    monkeypatch.setattr("hetrdzv.client.client.TRY_OTHER_SERVERS_AFTER_S", 0.05)
    old = await net.serve(hang)
    told = iter([to(old.url), answer(503, {"code": "no_leader", "detail": "none leads"})])
    new = await net.serve(lambda _: next(told, answer(200, DIRECTIVE)))
    client = await net.client(old.url, new.url)
    async with asyncio.timeout(2.0):
        await client.join("g", "a", JOIN)
        assert (len(old.seen), len(new.seen)) == (1, 3)
        await client.join("g", "a", JOIN)
    assert (len(old.seen), len(new.seen)) == (1, 4), "the new leader was not remembered"


async def test_who_is_slow_or_hangs_is_asked_once(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetrdzv.client.client.TRY_OTHER_SERVERS_AFTER_S", 0.02)

    async def slow(_: Seen) -> bytes:
        await asyncio.sleep(0.3)
        return answer(200, GROUP)

    leader = await net.serve(slow)
    follower = await net.serve(to(leader.url))
    await (await net.client(leader.url, follower.url)).group("g")
    assert len(leader.seen) == 1
    assert len(follower.seen) > 1
    fakes = [await net.serve(hang) for _ in range(3)]
    with pytest.raises(Unreachable, match=r"timed out.*timed out.*timed out"):
        await (await net.client(*(fake.url for fake in fakes), timeout_s=0.2)).group("g")
    assert [len(fake.seen) for fake in fakes] == [1, 1, 1]


# -- the token -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "schlüssel-s3cr3t"])
def test_a_token_that_does_not_fit_into_a_header_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="the token") as caught:
        Client(["http://h"], token=token)
    assert not token or token not in str(caught.value)


async def test_the_token_is_shown_nowhere(net: Net, dead: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refused = answer(401, {"code": "unauthorized", "detail": "no"})
    for reply in (CUT, refused, answer(200, {}), b"no HTTP\r\n\r\n", None):
        url = dead if reply is None else (await net.serve(reply)).url
        client = await net.client(url, token=TOKEN)
        with pytest.raises(HetError) as caught:
            await client.group("g")
        assert TOKEN not in repr(client) + repr(vars(client))
        assert TOKEN not in f"{caught.value} {caught.value!r} {vars(caught.value)}"
    assert TOKEN not in caplog.text
