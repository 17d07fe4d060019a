"""Slow, half, huge and broken requests to a real server, which stays responsive and small."""

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import httpx
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.settings import examples
from tests.support.programs.impatient import ARRIVAL_S
from tests.support.servers import Hetserver, Impatient

WAIT_S = 30.0
"""How long anything may take on a busy machine (seconds)."""

GROWTH_BYTES = 48 << 20
"""How much the server may grow."""

JOIN = json.dumps({"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000}).encode()
HOST = b"Host: localhost\r\n"
PUT = b"PUT /v1/groups/g HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
UPGRADE = PUT + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
CHUNKED = PUT + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = [
    b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /v1/groups HTTP/1.1\r\n" + HOST + b"Het-Api-Version: 1\r\n\r\n",
    PUT + b"Content-Length: 15\r\n\r\n" + b'{"min_nodes":2}',
    CHUNKED + b'f\r\n{"min_nodes":2}\r\n0\r\n\r\n',
    b"PUT /v1/groups/g/nodes/a?wait=0 HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (HOST, len(JOIN), JOIN),
    b"GET /v1/groups/g/nodes/a/directive?incarnation=1&wait=0 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /v1/groups/g/events HTTP/1.1\r\n" + HOST + b"Last-Event-ID: 1\r\n\r\n",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Hetserver]:
    with Impatient("memory", 0, None) as running:
        httpx.get(
            f"{running.url}/openapi.json", timeout=WAIT_S
        ).raise_for_status()  # made once, and what that imports stays
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log


@pytest.fixture(autouse=True)
def ready_and_small(server: Hetserver) -> Iterator[None]:
    """After each test the server answers at once and has not grown."""
    before = psutil.Process(server.pid).memory_info().rss
    yield
    began = time.monotonic()
    assert statuses(talk(server, b"GET /readyz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")) == [200]
    assert time.monotonic() - began < 5.0
    assert psutil.Process(server.pid).memory_info().rss - before < GROWTH_BYTES
    assert "Traceback" not in server.log


def connect(server: Hetserver) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)


def talk(server: Hetserver, data: bytes) -> bytes:
    """Send bytes; returns all that comes back until the server closes."""
    with closing(connect(server)) as connection:
        with suppress(OSError):  # it has heard enough
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        return rest(connection)


def rest(connection: socket.socket) -> bytes:
    """All that comes back until the server closes."""
    said = b""
    with suppress(ConnectionResetError):
        while more := connection.recv(1 << 16):
            said += more
    return said


def statuses(said: bytes) -> list[int]:
    """The status of each reply; no body of this server has a line that looks like a status line."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)]


# -- requests that are broken ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        PUT + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n",
        PUT + b"Content-Length: 1e3\r\n\r\n",
        PUT + b"Content-Length: +2\r\n\r\n{}",
        PUT + b"Content-Length: 0x2\r\n\r\n{}",
        PUT + b"Transfer-Encoding: gzip\r\n\r\n{}",
        PUT + b"Transfer-Encoding: chunked, gzip\r\n\r\n{}",
        PUT + b"Content-Length : 2\r\n\r\n{}",
        PUT + b"X: a\x00b\r\n\r\n",
        PUT + b" folded: x\x00\r\n\r\n",
        b"GET /v1/groups/a\x00b HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /v1/groups/a b HTTP/1.1\r\n" + HOST + b"\r\n",
        b"G\x00T /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
        UPGRADE + b"Content-Length: %d\r\n\r\n%b" % (len(WHOLE[0]), WHOLE[0]),
        UPGRADE + b'Transfer-Encoding: chunked\r\n\r\nf\r\n{"min_nodes":2}\r\n0\r\n\r\n' + WHOLE[0],
        b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"\x00" * 4_096 + b"\r\n\r\n",
        b"\r\n" * 40_000,
        CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"1\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}0\r\n\r\n",
        CHUNKED + b"f" * 5_000 + b"\r\n{}",
        CHUNKED + b"2;" + b"x" * 1_000_000 + b"\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}\r\n0\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(50_000)) + b"\r\n",
    ],
    ids=lambda data: re.sub(rb"[^!-~]+", b"_", data[-40:]).decode(),
)
def test_a_broken_request_is_no_bug(server: Hetserver, data: bytes) -> None:
    """Most are refused; a few are taken, as uvicorn takes them."""
    assert all(status < 500 for status in statuses(talk(server, data)))


@given(
    data=st.sampled_from(WHOLE),
    places=st.lists(st.tuples(st.integers(0, 500), st.binary(max_size=4), st.integers(0, 3)), max_size=4),
    end=st.integers(0, 600),
)
@examples(150)
def test_whatever_is_sent_is_no_bug(
    server: Hetserver, data: bytes, places: list[tuple[int, bytes, int]], end: int
) -> None:
    for at, put, instead_of in places:
        begin = at % len(data)
        data = data[:begin] + put + data[begin + instead_of :] or b" "
    assert all(status < 500 for status in statuses(talk(server, data[:end])))


@pytest.mark.parametrize("number", [51, 1_500])
def test_requests_in_a_row_are_answered_in_order(server: Hetserver, number: int) -> None:
    """More than a server reads ahead, sent before any reply is read."""
    asked = [b"healthz", b"v1/none", b"v1/groups"] * (number // 3)
    with closing(connect(server)) as connection:
        sent = b"".join(b"GET /%b HTTP/1.1\r\n%b\r\n" % (path, HOST) for path in asked)
        answers = b""
        connection.setblocking(False)
        until = time.monotonic() + WAIT_S
        while answers.count(b"HTTP/1.1 ") < len(asked):
            assert time.monotonic() < until
            with suppress(BlockingIOError):
                sent = sent[connection.send(sent) :] if sent else b""
            with suppress(BlockingIOError):
                answers += connection.recv(1 << 20)
        assert statuses(answers) == [200, 404, 200] * (number // 3)


def test_who_was_refused_early_is_told_once(server: Hetserver) -> None:
    early = PUT + b"Het-Api-Version: 99\r\nContent-Length: 10\r\n\r\n"
    for body in (b"0123456789" + WHOLE[0], b"012"):
        assert len(statuses(talk(server, early + body))) == (2 if body.endswith(WHOLE[0]) else 1)


def test_what_comes_after_a_broken_body_is_no_request(server: Hetserver) -> None:
    """Otherwise a request could be smuggled in the body of another."""
    hidden = b"DELETE /v1/groups/g HTTP/1.1\r\n" + HOST + b"\r\n"
    both = b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    for data in (
        CHUNKED + b"zz\r\n" + hidden,
        PUT + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}" + hidden,
    ):
        assert len(statuses(talk(server, data))) <= 1
    assert all(status < 500 for status in statuses(talk(server, PUT + both + hidden)))


# -- requests that do not come to their end ------------------------------------------------------------------


async def trickle(server: Hetserver, begin: bytes, more: bytes, every_s: float = 0.1) -> tuple[bytes, float]:
    """Send some bytes, then others one by one; returns the reply, and after how long the server closed (seconds)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    began = time.monotonic()
    said = bytearray()

    async def hear() -> None:
        """Keep what came before a reset, with which the server answers bytes that come after its close."""
        with suppress(ConnectionResetError):
            while data := await reader.read(65536):
                said.extend(data)

    hearing = asyncio.ensure_future(hear())
    writer.write(begin)
    try:
        while not hearing.done():
            assert time.monotonic() - began < WAIT_S, "the server waits for ever"
            writer.write(more[:1])
            more = more[1:] + more[:1]
            await asyncio.wait({hearing}, timeout=every_s)
        await hearing
        return bytes(said), time.monotonic() - began
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_body_that_does_not_come_is_not_waited_for(server: Hetserver) -> None:
    """All at once, so that they cannot hold up each other either."""
    bodies = [
        trickle(server, PUT + b"Content-Length: 1000\r\n\r\n", b""),
        trickle(server, PUT + b"Content-Length: 1000\r\n\r\n{", b" "),
        trickle(server, CHUNKED + b"3e8\r\n", b" "),
        trickle(server, CHUNKED, b"1\r\n \r\n"),
    ]
    for said, after_s in await asyncio.gather(*bodies):
        assert statuses(said) == [408]
        assert b'"code":"request_too_slow"' in said
        assert b'"field":"body"' in said
        assert b"\r\nconnection: close\r\n" in said
        assert ARRIVAL_S - 0.5 < after_s < ARRIVAL_S + 6.0
