"""The sockets of a server: uvicorn's HTTP/1.1 over h11, with limits on connections and on how slow they may be."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import threading
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from hetrdzv.api.admission import neighbourhood
from hetrdzv.api.gate import CERTIFIED
from hetrdzv.api.problems import MEDIA_TYPE, problem_body
from hetrdzv.errors import Busy, HetError, Malformed, RequestTooSlow
from hetrdzv.replica import Replica
from hetrdzv.settings import Limits
from hetrdzv.tls import ServerTls
from hetrdzv.wire import API_VERSION, VERSION_HEADER

logger = logging.getLogger(__name__)

GRACE_S = 1
"""How long open requests may take after a stop was asked for (seconds); polls are answered at once."""

PER_ADDRESS = 2
"""One address may have so many times as many connections as polls: an agent may give one up for another."""

TLS_BUFFER_BYTES = 1 << 14
"""What asyncio reads of a TLS connection at once: 256 KiB for each by default, for requests of half a KiB."""


class Connections:
    """How many connections there are, by address.

    Args:
        limits: what they may be, and how slow.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._all = 0
        self._by_address: Counter[str] = Counter()
        self._told_full = False

    def refusal(self, address: str) -> str | None:
        """Why one more of an address is too many, or None; then it counts."""
        limits = self.limits
        if self._all >= limits.max_connections:
            if not self._told_full:
                self._told_full = True
                logger.warning("%d connections are open; more are refused (--max-connections)", self._all)
            return f"the server has {self._all} connections, as many as it may: try again, or another server"
        if self._by_address[address] >= PER_ADDRESS * limits.max_polls_per_address:
            return (
                f"{address} has {self._by_address[address]} connections, as many as one address may: "
                f"close some, or start hetserver with a larger --max-polls-per-address"
            )
        self._all += 1
        self._by_address[address] += 1
        return None

    def left(self, address: str) -> None:
        """One that counted is closed."""
        self._all -= 1
        self._told_full = self._told_full and self._all > self.limits.max_connections * 9 // 10
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class Connection(H11Protocol):
    """A connection that says its header in time, takes its replies in time, or is closed.

    Args:
        connections: that it is one of.
    """

    def __init__(self, *args: Any, connections: Connections, **more: Any) -> None:
        super().__init__(*args, **more)
        self._connections = connections
        self._address: str | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._said_something = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = neighbourhood(self.client[0]) if self.client else ""
        refusal = self._connections.refusal(address)
        if refusal is not None:
            self._close_with(Busy(refusal))
            return
        self._address = address
        if transport.get_extra_info("peercert"):
            self.app_state = {**self.app_state, CERTIFIED: True}
        self._await_header()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        if self._address is not None:
            self._connections.left(self._address)
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._said_something = True
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._await_header()
        elif self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self._connections.limits.idle_timeout_s, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _await_header(self) -> None:
        if self._header_timer is None:
            seconds = self._connections.limits.header_timeout_s
            self._header_timer = self.loop.call_later(seconds, self._header_is_late)

    def _header_is_late(self) -> None:
        self._header_timer = None
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            return
        if not self._said_something:
            self.transport.close()
            return
        seconds = self._connections.limits.header_timeout_s
        self._close_with(RequestTooSlow(f"header: it did not come within {seconds:g} s; send it again"))

    def send_400_response(self, msg: str) -> None:
        """What cannot be read as HTTP is answered as every other mistake."""
        self._close_with(Malformed("this is no HTTP/1.1 request, or its header has more than 64 KiB"))

    def _close_with(self, error: HetError) -> None:
        """Say why, and close."""
        body = json.dumps(problem_body(error)).encode()
        headers = [
            ("content-type", MEDIA_TYPE),
            ("content-length", str(len(body))),
            (VERSION_HEADER, str(API_VERSION)),
            ("connection", "close"),
        ]
        if error.status == 503:
            headers.append(("retry-after", "1"))
        reason = HTTPStatus(error.status).phrase.encode()
        with contextlib.suppress(h11.LocalProtocolError):
            head = self.conn.send(h11.Response(status_code=error.status, headers=headers, reason=reason))
            self.transport.write((head or b"") + (self.conn.send(h11.Data(data=body)) or b""))
            self.conn.send(h11.EndOfMessage())
        self.transport.close()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._stall_timer = self.loop.call_later(GRACE_S, self._give_up)

    def _give_up(self) -> None:
        """The client does not take what it is sent."""
        self._stall_timer = None
        self.transport.abort()


class HttpServer(uvicorn.Server):
    """uvicorn's server, which answers open polls first when it is told to stop.

    Args:
        replica: told of a stop.
        reread: called at SIGHUP, in the event loop.
    """

    def __init__(
        self,
        app: ASGIApp,
        replica: Replica,
        limits: Limits,
        tls: ServerTls | None,
        reread: Callable[[], None],
    ) -> None:
        idle_s: Any = limits.idle_timeout_s  # uvicorn's types know whole seconds only
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,  # h11 is pure Python, but bounds what a client may send as headers; httptools does not
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=idle_s,
                timeout_graceful_shutdown=GRACE_S,
                ssl_context_factory=(lambda *_: tls.context) if tls is not None else None,
            )
        )
        self._replica = replica
        self._connections = Connections(limits)
        self._reread = reread
        self._loop = asyncio.get_running_loop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's with sockets that listen, but TLS has the time-outs that the rest has."""
        config = self.config
        await self.lifespan.startup()
        sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        timeouts: dict[str, Any] = {}
        if config.ssl is not None:
            timeouts = {
                "ssl_handshake_timeout": self._connections.limits.header_timeout_s,
                "ssl_shutdown_timeout": GRACE_S,
            }
        make = partial(
            Connection,
            config,
            self.server_state,
            self.lifespan.state,
            self._loop,
            connections=self._connections,
        )
        self.servers = [
            await self._loop.create_server(
                make, sock=listener, ssl=config.ssl, backlog=config.backlog, **timeouts
            )
            for listener in sockets or ()
        ]
        self.started = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Unlike uvicorn's, remembers no signal to raise again: a stop that was asked for exits with 0."""
        self.force_exit = self.should_exit
        self._stop()

    def _handle_hangup(self, sig: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._reread)

    def stop_at_eof(self) -> None:
        """Wait for the end of standard input, then stop; runs in a thread of its own."""
        with contextlib.suppress(OSError):
            while os.read(0, 65_536):  # sys.stdin would hold a lock that the interpreter's end needs
                pass
        self._stop()

    def watch_stdin(self) -> None:
        """Stop when standard input ends."""
        threading.Thread(target=self.stop_at_eof, daemon=True).start()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Listen to signals from here on: uvicorn does only while it serves, not while state is loaded or stored."""
        handlers = {
            signal.SIGINT: self.handle_exit,
            signal.SIGTERM: self.handle_exit,
            # who closes the terminal in which it runs wants it to end
            signal.SIGHUP: self.handle_exit if os.isatty(2) else self._handle_hangup,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self) -> None:
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
            self._loop.call_soon_threadsafe(self._replica.begin_stop)
