"""TLS with small buffers, and an answer for those who do not speak it.

What we use of asyncio's beyond its documented API is listed in tests/server/api/test_uvicorn.py.
"""

import asyncio
from asyncio.sslproto import SSLProtocol
from typing import TYPE_CHECKING, Any

from hetrdzv.protocol.errors import Busy
from hetrdzv.protocol.http import versions

if TYPE_CHECKING:
    from hetrdzv.api.http.connections import Connection

TLS_BUFFER_BYTES = 1 << 14
"""Size of the read buffer of a TLS connection. asyncio's default is 256 KiB each, for requests of half a KiB."""

_USE_TLS = b"this server speaks TLS: use https://\n"

_NEEDS_TLS = b"\r\n".join(
    [
        b"HTTP/1.1 426 Upgrade Required",
        b"Upgrade: TLS/1.2",
        b"Connection: Upgrade, close",
        *(f"{name}: {value}".encode() for name, value in versions.HEADERS.items()),
        b"Content-Type: text/plain",
        b"Content-Length: %d" % len(_USE_TLS),
        b"",
        _USE_TLS,
    ]
)
"""What a client hears that speaks plain HTTP to a server that speaks TLS (RFC 2817)."""


class TlsConnection(SSLProtocol):
    """asyncio's TLS, with smaller buffers; counted from its first byte, not from the end of its handshake.

    A client that speaks plain HTTP is told so; it has as long to hang up as a handshake may take.

    Args:
        connection: what is inside.
    """

    max_size = TLS_BUFFER_BYTES

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: "Connection", *args: Any, **more: Any
    ) -> None:
        super().__init__(loop, connection, *args, **more)
        self._connection = connection
        own: Any = self
        own._set_read_buffer_limits(TLS_BUFFER_BYTES)  # of what is not decrypted while nobody reads
        self._below: Any = None  # until something has come
        self._buffer = memoryview(b"")
        self._is_plain = False

    def connection_made(self, transport: Any) -> None:
        try:
            self._connection.take_place(transport)
        except Busy:  # telling it so would take a handshake
            transport.abort()
        else:
            self._below = transport
            super().connection_made(transport)

    def get_buffer(self, n: int) -> memoryview:
        self._buffer = super().get_buffer(n)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._below is not None:
            if 65 <= self._buffer[0] <= 90:  # a letter, so it is a request; TLS begins with 22
                self._is_plain = True
                self._below.write(_NEEDS_TLS)
                self._below.write_eof()  # closed now, it could reset the connection before the client has read that
            self._below = None
        if not self._is_plain:
            super().buffer_updated(nbytes)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._below = None
        self._connection.leave_place()
        del self._connection  # which refers to this through its transport
        super().connection_lost(exc)
