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
