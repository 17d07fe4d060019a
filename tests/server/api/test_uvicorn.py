"""What we use of uvicorn and asyncio beyond their documented APIs; says by name what a release has changed."""

import ast
import asyncio
import gc
import inspect
import ssl
import weakref
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from hetrdzv.api.http import connections, server
from hetrdzv.api.http.calling import CALLER, CERTIFIED
from hetrdzv.api.http.connections import (
    Connection,
    protocol_factory,
)
from hetrdzv.api.http.places import Connections
from hetrdzv.api.http.tls import TLS_BUFFER_BYTES, TlsConnection
from hetrdzv.settings import Limits

OF_CONNECTION: dict[str, Callable[[Any], bool]] = {
    "parser": lambda found: isinstance(found, httptools.HttpRequestParser),
    "loop": lambda found: found is asyncio.get_running_loop(),
    "cycle": lambda found: found is None,
    "headers": lambda found: found is None,
    "flow": lambda found: found is None,
    "on_message_begin": lambda found: not inspect.signature(found).parameters,
    "on_header": lambda found: [*inspect.signature(found).parameters] == ["name", "value"],
    "on_headers_complete": lambda found: not inspect.signature(found).parameters,
    "on_body": lambda found: [*inspect.signature(found).parameters] == ["body"],
    "on_message_complete": lambda found: not inspect.signature(found).parameters,
    "on_response_complete": lambda found: not inspect.signature(found).parameters,
    "app_state": lambda found: found == {"a": 1},
    "timeout_keep_alive_task": lambda found: found is None,
    "timeout_keep_alive": lambda found: found == 5,
    "client": lambda found: found is None,
}
"""Attributes of `HttpToolsProtocol` that are not asyncio's, each with what it has to be on a new connection."""

OF_SERVER: dict[str, Callable[[Any], bool]] = {
    "should_exit": lambda found: found is False,
    "force_exit": lambda found: found is False,
    "handle_exit": lambda found: [*inspect.signature(found).parameters] == ["sig", "frame"],
}
"""The same of `uvicorn.Server`."""


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise NotImplementedError


def arguments() -> dict[str, Any]:
    """What uvicorn makes a protocol with."""
    return {
        "config": loaded(uvicorn.Config(app)),
        "server_state": ServerState(),
        "app_state": {"a": 1},
        "_loop": None,
    }


def loaded(config: uvicorn.Config) -> uvicorn.Config:
    config.load()
    return config


def inherited(source: str, name: str) -> set[str]:
    """Attributes that a class uses of itself, or overrides, and that are not its own or of asyncio's protocols."""
    (found,) = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef) and node.name == name
    )
    used = {node.attr for node in ast.walk(found) if isinstance(node, ast.Attribute) and is_self(node.value)}
    methods = {node.name for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own = {name for name in used | methods if name.startswith("_")}
    own |= set(dir(asyncio.Protocol)) | set(dir(asyncio.BufferedProtocol))
    return (used | methods) - own


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@pytest.mark.parametrize("name", OF_CONNECTION)
async def test_a_connection_has(name: str) -> None:
    assert OF_CONNECTION[name](getattr(HttpToolsProtocol(**arguments()), name))


@pytest.mark.parametrize("name", OF_SERVER)
def test_a_server_has(name: str) -> None:
    assert OF_SERVER[name](getattr(uvicorn.Server(uvicorn.Config(app)), name))


def test_a_reply_says_how_far_it_is() -> None:
    """What `Connection.cycle` and `Connection.flow` are asked."""
    assert {"response_started", "response_complete"} <= set(RequestResponseCycle.__init__.__code__.co_names)
    assert FlowControl(asyncio.Transport()).read_paused is False


def test_the_tables_above_name_all_that_is_used() -> None:
    own = {"stop_at_eof", "watch_stdin", "signals"}
    own_of_connection = {"take_place", "leave_place"}
    for module, kind, there in (
        (connections, "Connection", set(OF_CONNECTION) | own_of_connection),
        (server, "HttpServer", set(OF_SERVER) | own),
    ):
        assert inherited(Path(module.__file__).read_text(), kind) == there


def test_nothing_with_an_underscore_is_taken_from_uvicorn() -> None:
    private = {name for name in dir(HttpToolsProtocol) if name.startswith("_") and not name.startswith("__")}
    private |= {name for name in vars(uvicorn.Server(uvicorn.Config(app))) if name.startswith("_")}
    private |= {name for name in dir(uvicorn.Server) if name.startswith("_") and not name.startswith("__")}
    for module in (connections, server):
        names = {node.attr for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
                 if isinstance(node, ast.Attribute)}  # fmt: skip
        assert names & private == set()


async def test_uvicorn_calls_whatever_makes_a_protocol() -> None:
    """`Config(http=...)` is documented to be a class; ours is a function."""
    made: list[dict[str, Any]] = []

    def make(**given: Any) -> asyncio.Protocol:
        made.append(given)
        return asyncio.Protocol()

    assert loaded(uvicorn.Config(app, http=make)).http_protocol_class is make  # type: ignore[arg-type,comparison-overlap]
    create = inspect.getsource(uvicorn.Server.startup)
    assert "config.http_protocol_class(" in create
    assert set(inspect.signature(HttpToolsProtocol.__init__).parameters) == {"self", *arguments()}


@pytest.mark.parametrize(("lease_s", "stays_s"), [(0.0, 75.0), (5.0, 75.0), (600.0, 600.0)])
async def test_an_idle_connection_stays_open_for_as_long_as_its_agent_may_be_silent(
    lease_s: float, stays_s: float
) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if lease_s:
            scope["state"][CALLER].answering(lambda: None, lease_s)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    given = {**arguments(), "config": loaded(uvicorn.Config(answer))}
    made = Connection(**given, connections=Connections(Limits()))
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: made, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        began = loop.time()
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.readuntil(b"{}")
        assert made.timeout_keep_alive_task is not None
        assert began + stays_s <= made.timeout_keep_alive_task.when() <= loop.time() + stays_s
        made.timeout_keep_alive_handler()
        assert made.transport.is_closing()
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "ahead", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20 + b"GET /" + b"x" * 1000]
)
async def test_a_connection_that_has_ended_is_freed_without_the_garbage_collector(ahead: bytes) -> None:
    """A full collection would hold the event loop of a server with many nodes for seconds."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    made: list[weakref.ref[Connection]] = []
    given = {**arguments(), "config": loaded(uvicorn.Config(answer))}

    def make() -> Connection:
        connection = Connection(**given, connections=Connections(Limits()))
        made.append(weakref.ref(connection))
        return connection

    gc.disable()
    try:
        async with await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + ahead)
            assert await reader.readuntil(b"{}")
            writer.transport.abort()
            async with asyncio.timeout(10):
                while made[0]() is not None:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()


# -- TLS -----------------------------------------------------------------------------------------------------


async def test_only_our_tls_connections_have_small_buffers() -> None:
    """`max_size` is what asyncio allocates for each connection, and nobody else's connections change."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    loop = asyncio.get_running_loop()
    for kind, size in ((TlsConnection, TLS_BUFFER_BYTES), (SSLProtocol, 256 << 10)):
        connection = Connection(**arguments(), connections=Connections(Limits()))
        made = kind(loop, connection, context, loop.create_future(), server_side=True)
        assert len(made.get_buffer(-1)) == size
        made.connection_lost(None)


async def test_a_server_leaves_asyncios_tls_as_it_is() -> None:
    before = dict(vars(SSLProtocol))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    class Files:
        def __init__(self) -> None:
            self.context = context

    make = protocol_factory(Limits(), Files())  # type: ignore[arg-type]
    made = make(**arguments())
    assert isinstance(made, TlsConnection)
    made.connection_lost(None)
    assert isinstance(protocol_factory(Limits(), None)(**arguments()), Connection)
    assert dict(vars(SSLProtocol)) == before


@pytest.mark.parametrize("certificate", [None, {"subject": ()}])
async def test_a_client_certificate_is_noted_in_the_state_of_requests(certificate: Any) -> None:
    class Transport(asyncio.Transport):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return {"peername": ("10.0.0.1", 1), "sockname": ("10.0.0.2", 2), "peercert": certificate}.get(
                name, default
            )

    connection = protocol_factory(Limits(), None)(**arguments())
    assert isinstance(connection, Connection)
    connection.connection_made(Transport())
    assert connection.app_state.get(CERTIFIED, False) is (certificate is not None)
    connection.connection_lost(ConnectionResetError())
