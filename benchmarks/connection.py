"""A kept-alive HTTP/1.1 connection that costs the load generator as little as it can."""

import asyncio
import json
from typing import Self

HEAD = (
    "Host: 127.0.0.1\r\nAccept: application/json\r\nAccept-Encoding: gzip, deflate\r\n"
    "Connection: keep-alive\r\nHet-Api-Version: 1\r\n"
)
"""What an agent sends with every request, so that parsing it costs the server as much."""

OPENING = 200
"""How many connections are opened at a time."""


def request(method: str, path: str, body: object = None, more: str = "") -> bytes:
    """A request as it goes over the wire; `body` is sent as JSON, `more` are header lines."""
    if body is None:
        return f"{method} {path} HTTP/1.1\r\n{HEAD}{more}\r\n".encode()
    content = json.dumps(body).encode()
    head = f"{HEAD}{more}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return f"{method} {path} HTTP/1.1\r\n{head}".encode() + content


class Connection(asyncio.Protocol):
    """Sends one request at a time; subclasses say what follows an answer and the end of the connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self._buffer = transport, b""

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self.closed()

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        end = data.find(b"\r\n\r\n")
        if end >= 0:
            head = data[:end].lower()
            at = head.find(b"\r\ncontent-length:")
            length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(data) >= end + 4 + length:
                self._buffer = b""
                self.answered(int(head[9:12]), data[end + 4 :])
                return
        self._buffer = data

    def send(self, data: bytes) -> None:
        """Send a request."""
        assert self.transport is not None
        self.transport.write(data)

    def answered(self, status: int, body: bytes) -> None:
        """A reply came."""
        raise NotImplementedError

    def closed(self) -> None:
        """The connection has ended."""


class Caller(Connection):
    """A connection whose replies are awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._reply: asyncio.Future[tuple[int, bytes]] | None = None

    @classmethod
    async def open(cls, port: int, address: str = "127.0.0.1") -> Self:
        """Connect to a port of this machine, from one of its addresses."""
        loop = asyncio.get_running_loop()
        _, caller = await loop.create_connection(cls, "127.0.0.1", port, local_addr=(address, 0))
        return caller

    async def call(self, data: bytes) -> tuple[int, bytes]:
        """Send a request; returns status and body of its reply."""
        self._reply = asyncio.get_running_loop().create_future()
        self.send(data)
        return await self._reply

    def answered(self, status: int, body: bytes) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result((status, body))

    def closed(self) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionError("the server closed the connection"))

    def close(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()


def address_of(number: int) -> str:
    """A loopback address of a node's own, since limits count by address."""
    return f"127.{1 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"


async def call(port: int, data: bytes) -> tuple[int, bytes]:
    """Status and body of the reply to a request, on a connection of its own: a server closes those that say nothing."""
    caller = await Caller.open(port)
    try:
        return await caller.call(data)
    finally:
        caller.close()


async def open_callers(port: int, number: int) -> list[Caller]:
    """So many connections, each from an address of its own."""
    allowed = asyncio.Semaphore(OPENING)

    async def one(number: int) -> Caller:
        async with allowed:
            return await Caller.open(port, address_of(number))

    return await asyncio.gather(*(one(number) for number in range(number)))
