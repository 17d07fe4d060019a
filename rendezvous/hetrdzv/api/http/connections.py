"""HTTP/1.1 connections: limits on how many there are, how slow and how long-winded they may be.

uvicorn's protocol over httptools does the work. What we use of it beyond its documented API is listed in
tests/server/api/test_uvicorn.py.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from hetrdzv.api import problems
from hetrdzv.api.http.calling import ACCEPT, CALLER, CERTIFIED
from hetrdzv.api.http.corked import Corked
from hetrdzv.api.http.limits import neighbourhood
from hetrdzv.api.http.places import READ_BODY_BYTES, Connections, Place
from hetrdzv.api.http.tls import TlsConnection
from hetrdzv.auth.tls import ServerTls
from hetrdzv.protocol.errors import Busy, HetError, Malformed, RequestTooSlow
from hetrdzv.protocol.http import versions
from hetrdzv.protocol.http.keepalive import count_silence, keep_alive
from hetrdzv.service.liveness.caller import Caller
from hetrdzv.settings import Limits

GRACE_S = 1
"""How long open requests may take after a stop was requested (seconds); polls are answered at once."""

MAX_HEADER_BYTES = 1 << 14
"""Bytes that a client may send in a row of which none belongs to a body: a request line and headers, the extensions of
a chunk, trailers."""

READ_BYTES = 1 << 12
"""How much is read at a time, so that no more is kept of what a client sends ahead of an answer."""

ARRIVAL_S = 10.0
"""How long a client may take to send a header or a body, or over a TLS handshake (seconds)."""


class TcpCaller(Caller):
    """The client of a TCP connection.

    Attributes:
        socket: our end of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.socket: Any = None
        self._within_s: float | None = None

    def watch(self, within_s: float) -> bool:
        if self._within_s != within_s:
            if self.socket is None or not keep_alive(self.socket, within_s):
                return False
            self._within_s = within_s
        return True

    def answering(self, on_break: Callable[[], None], lease_s: float) -> None:
        super().answering(on_break, lease_s)
        if self._within_s is not None:
            count_silence(self.socket, self._within_s)
            self._within_s = None  # to be set again with the next poll


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """A connection that takes one request at a time, and is closed if its client is slow or sends endless headers.

    What a client sends ahead is parsed once the reply is out: the parser gets no byte beyond the end of a request, and
    nothing is read meanwhile but the few KiB that show that the client is still there.

    Args:
        connections: where it is counted.
    """

    def __init__(self, *args: Any, connections: Connections, **more: Any) -> None:
        super().__init__(*args, **more)
        self._connections = connections
        self._limits = connections.limits
        self._place: Place | None = None
        self._below: asyncio.WriteTransport | None = None  # what reads the socket
        self._late_timer: asyncio.TimerHandle | None = None
        self._awaited = ""  # what has to come before it goes off: a header or a body
        self._stall_timer: asyncio.TimerHandle | None = None
        self._in_header = self._in_body = False  # what has begun and is not whole
        self._body_left = 0  # bytes of a body whose length is known
        self._since_body = 0  # bytes since the last of a body
        self._parsed = b""  # the last three bytes
        self._unparsed = b""  # sent ahead
        self._caller = TcpCaller()
        self._transport: Corked

    def take_place(self, transport: asyncio.WriteTransport) -> None:
        """Be counted; a TLS connection is before its handshake.

        Raises:
            Busy: there is no room.
        """
        peer = transport.get_extra_info("peername")
        self._below = transport
        self._place = self._connections.take(neighbourhood(peer[0]) if peer else "", self._give_way)

    def leave_place(self) -> None:
        """Be counted no more."""
        if self._place is not None:
            self._place.leave()
            self._place = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = Corked(transport, self._limits.idle_timeout_s)
        super().connection_made(self._transport)
        self._caller.socket = transport.get_extra_info("socket")
        try:
            if self._place is None:
                self.take_place(transport)
        except Busy as error:
            self._close_with(error)
            return
        assert self._place is not None
        self.app_state = {**self.app_state, CALLER: self._caller, ACCEPT: self._place.accept}
        if transport.get_extra_info("peercert"):
            self.app_state[CERTIFIED] = True
        self._await("header")

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late_timer, self._stall_timer, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        self.leave_place()
        self._below = None
        self._unparsed = b""
        super().connection_lost(exc)
        self._caller.hang_up(broken=exc is not None)

    # -- requests come, one at a time ------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the event loop puts what it reads next. Called by asyncio."""
        return self._connections.buffer[: max(READ_BYTES, min(READ_BODY_BYTES, self._body_left))]

    def buffer_updated(self, nbytes: int) -> None:
        """Something was read. Called by asyncio."""
        data = bytes(self._connections.buffer[:nbytes])
        if not self._transport.is_closing():
            self._parse(self._unparsed + data)

    def _parse(self, data: bytes) -> None:
        """Parse the rest of a request, and those after it if they need not wait for its answer."""
        data, begin = self._parsed + data, len(self._parsed)
        while begin < len(data) and not self._is_answering() and not self._transport.is_closing():
            end = self._end_of_piece(data, begin)
            self._since_body += end - begin
            if self._since_body > MAX_HEADER_BYTES and not self._body_left:
                self._is_malformed()
                return
            if not self._feed(data[begin:end]):
                return
            begin = end
        self._parsed, self._unparsed = data[max(0, begin - 3) : begin], data[begin:]
        if self._unparsed:
            self._transport.hold()
            self._await("")
        else:
            self._transport.release(resume=not self.flow.read_paused)
            self._await("body" if self._in_body else "" if self._is_answering() else "header")

    def _feed(self, piece: bytes) -> bool:
        """Parse a part of a request; whether it is one."""
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:  # the request is answered as if it did not ask for that
            pass
        except httptools.HttpParserError:
            self._is_malformed()
            return False
        return True

    def _end_of_piece(self, data: bytes, begin: int) -> int:
        """Where the request that is being parsed may end: after its body, or an empty line."""
        if self._body_left:
            return min(len(data), begin + self._body_left)
        end = data.find(b"\r\n\r\n", max(0, begin - 3), begin + READ_BYTES)
        return end + 4 if end >= 0 else min(len(data), begin + READ_BYTES)

    def _is_answering(self) -> bool:
        """Whether a request is whole and has no answer yet."""
        newest: RequestResponseCycle | None = self.cycle
        return newest is not None and not newest.response_complete and not self._in_body

    # called by the parser; what they raise makes it a bad request

    def on_message_begin(self) -> None:
        self._in_header = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # trailers are of no use to anybody
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if version not in ("1.0", "1.1") or hosts > 1 or (hosts == 0 and version == "1.1"):
            raise ValueError("the version is unknown, or there is not one host")
        length = sum(int(value) for name, value in self.headers if name == b"content-length")
        if self.parser.should_upgrade() and (
            length or any(name == b"transfer-encoding" for name, _ in self.headers)
        ):
            raise ValueError("the parser would take the body for another protocol")
        super().on_headers_complete()
        self._in_header, self._in_body, self._body_left = False, True, length

    def on_body(self, body: bytes) -> None:
        self._since_body = 0
        self._body_left = max(0, self._body_left - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._since_body, self._in_body = 0, False
        super().on_message_complete()

    # -- replies go ------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Called by uvicorn."""
        # one that tells of its agent's host stays as long as that may be silent
        self.timeout_keep_alive = max(self._limits.idle_timeout_s, self._caller.lease_s)  # type: ignore[assignment]
        super().on_response_complete()
        if self._unparsed:
            self.loop.call_soon(self._parse_on)

    def _parse_on(self) -> None:
        if self._unparsed and not self._transport.is_closing():
            self._parse(self._unparsed)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = _later(self._limits.idle_timeout_s, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _abort(self) -> None:
        """Give up on a client that does not read what it is sent."""
        self._stall_timer = None
        self._transport.abort()

    # -- the connection ends ---------------------------------------------------------------------------------

    def _await(self, what: str) -> None:
        """Close the connection unless a header or a body comes in time; with an empty text, nothing has to come."""
        if self._late_timer is not None:
            if what == self._awaited:
                return
            self._late_timer.cancel()
            self._late_timer = None
        if what:
            self._awaited = what
            self._late_timer = _later(ARRIVAL_S, self._is_late)

    def _is_late(self) -> None:
        self._late_timer = None
        if self._transport.is_closing():
            return
        if self._in_body and self.flow.read_paused:  # not the client is slow
            self._await(self._awaited)
        elif self._in_header or (self._in_body and not self.cycle.response_started):
            late = RequestTooSlow(f"{self._awaited}: it did not arrive within {ARRIVAL_S:g} s; send it again")
            self._close_with(late, field=self._awaited if self._in_body else None)
        else:
            self._transport.close()

    def _is_malformed(self) -> None:
        """Answer what is not HTTP like any other mistake."""
        error = Malformed(
            "this is not an HTTP/1.1 request, its header is larger than 16 KiB, or it has a body and Upgrade"
        )
        self._connections.refusals.note(error, self.client[0] if self.client else "", "a", "request")
        self._close_with(error)

    def _give_way(self) -> None:
        """End, since another connection needs the place of this one, which has brought no accepted request."""
        self._place = None
        flow: Any = self.flow
        if flow is None or self._is_answering():  # it is in its handshake, or its request is at work
            assert self._below is not None
            self._below.abort()
        else:
            self._close_with(
                Busy("the server has its maximum of connections, and others asked first: try again")
            )

    def _close_with(self, error: HetError, field: str | None = None) -> None:
        """Send an error, unless another reply has begun, and close the connection.

        Args:
            field: the part of the request that is wrong.
        """
        reply: Any = self.cycle
        if reply is None or not reply.response_started or (reply.response_complete and not self._in_body):
            answer = problems.answer(error, field=field)
            headers = {**answer.headers, **versions.HEADERS, "connection": "close"}
            lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            self._transport.write("\r\n".join([*lines, "", ""]).encode() + answer.body)
        self._transport.close()


def protocol_factory(limits: Limits, tls: ServerTls | None) -> Callable[..., asyncio.BaseProtocol]:
    """What uvicorn calls for every new connection; takes the arguments of its protocols."""
    connections = Connections(limits)
    tls_options: dict[str, Any] = {  # typeshed wants a waiter and whole seconds
        "waiter": None,
        "server_side": True,
        "ssl_handshake_timeout": ARRIVAL_S,
        "ssl_shutdown_timeout": GRACE_S,
    }

    def make(*args: Any, **more: Any) -> asyncio.BaseProtocol:
        connection = Connection(*args, connections=connections, **more)
        if tls is None:
            return connection
        return TlsConnection(asyncio.get_running_loop(), connection, tls.context, **tls_options)

    return make


def _later(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, call)
