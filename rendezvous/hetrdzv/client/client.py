"""The typed HTTP client of a hetserver: it asks the routes of protocol/routes.py.

A call tries each server once, starting with the one that answered last. To go on trying, call again (the agent's
session does, with pauses of its own). Proxies named in the environment are not used.
"""

import ssl
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, TracebackType
from typing import Any, Self, cast

import httpx

from hetrdzv.auth.tls import ClientTls
from hetrdzv.auth.tokens import is_token
from hetrdzv.client import failover
from hetrdzv.client.explain import parsed, problem_of
from hetrdzv.client.failover import Servers
from hetrdzv.client.urls import servers_from
from hetrdzv.protocol import codec, routes
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import Unauthorized
from hetrdzv.protocol.progress import PollRequest
from hetrdzv.protocol.routes import Reply, Route, Routes
from hetrdzv.protocol.texts.ids import ID_RULE, is_id

CONNECT_S = 3.0
"""Limit for a connection (seconds)."""

POLL_LATE_S = 1.0
"""How late the answer to a poll may be: this, or half of what the poll was to wait if that is longer (seconds).

When the network was cut for a moment, the answer is lost and TCP does not notice for minutes. A poll sent again this
soon still renews the lease in time.
"""


class Client(Routes):
    """Talks to whichever of the given hetservers is in charge; an async context manager.

    Every method may raise:
        Unreachable: no server could answer; names each with its reason.
        NotHetserver: what answered is something else.
        VersionMismatch: the server speaks another version of the API.
        Problem: the server's own error, with its status, code and body.
        ValueError: an id is none.

    Args:
        servers: URLs; see `servers_from`.
        token: sent to these servers only, never shown.
        renew_token: called for a new token when a server rejects the current one.
        tls: which certificates to trust and to present to https servers; None: the system's authorities, and none.
        timeout_s: limit for an answer, on top of the time that a call asks the server to wait (seconds).
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        token: str | None = None,
        renew_token: Callable[[], str | None] = lambda: None,
        tls: ClientTls | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        tls = tls or ClientTls()
        self._servers = Servers(servers_from(",".join(servers)), tls)
        self._timeout_s = timeout_s
        self._renew_token = renew_token
        headers = {**routes.VERSION_HEADERS, "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = _bearer(token)
        self._http = httpx.AsyncClient(
            headers=headers,
            verify=_tls_context(tls, self._servers.urls),
            trust_env=False,
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"Client({', '.join(self.servers)})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def servers(self) -> tuple[str, ...]:
        """The URLs of the servers, normalised."""
        return self._servers.urls

    @property
    def last_server(self) -> str:
        """The URL of the server that answered last."""
        return self._servers.last

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def poll(self, group: str, node: str, request: PollRequest) -> Directive:
        """What the node has to do, once its version is not `after`, at the latest after `wait_s` seconds."""
        wait_s = request.wait_s
        late_s = min(self._timeout_s, max(POLL_LATE_S, wait_s / 2)) if wait_s > 0 else None
        return await self._send(routes.POLL, (group, node), {}, request, wait_s=wait_s, late_s=late_s)

    # -- sending -------------------------------------------------------------------------------------------

    async def ask(self, route: Route[Reply], *given: Any, **query: Any) -> Reply:
        """What a route answers: `await client.ask(Routes.drain, group, node)`.

        Args:
            given: what its path names, in that order, then its body if it takes one.
            query: its parameters; None: not given.
        """
        names, (body,) = given[: len(route.names)], given[len(route.names) :] or (None,)
        return await self._send(route, names, query, body, wait_s=route.wait_s)

    async def _send(
        self,
        route: Route[Reply],
        names: Sequence[str],
        query: Mapping[str, Any],
        body: object = None,
        *,
        wait_s: float,
        late_s: float | None = None,
    ) -> Reply:
        """The first usable answer, awaited for `wait_s` and then `late_s` (None: the client's `timeout_s`) seconds."""
        answer_s = wait_s + (self._timeout_s if late_s is None else late_s)
        timeout = httpx.Timeout(self._timeout_s, connect=CONNECT_S, read=answer_s)
        content, head = None, {}
        if body is not None:
            content, head["Content-Type"] = codec.write(body, given=True), "application/json"
        path = _path(route, names)
        params = {name: value for name, value in query.items() if value is not None}

        async def send(server: str) -> httpx.Response:
            request = self._http.build_request(
                route.method, f"{server}{path}", params=params, headers=head, content=content, timeout=timeout
            )
            return await self._http.send(request)

        silence_s = None
        if not route.once and len(self.servers) > 1:
            silence_s = wait_s + failover.SILENCE_S
        response = await self._servers.ask(send, timeout, silence_s=silence_s, once=route.once)
        if response.status_code == Unauthorized.status and self._got_new_token():
            response = await self._servers.ask(send, timeout, silence_s=silence_s, once=route.once)
        if response.status_code >= 400:
            raise problem_of(response)
        if route.reply is NoneType:
            return cast(Reply, None)
        return parsed(route.reply, response.content, self._servers.last)

    def _got_new_token(self) -> bool:
        """Whether there is another token than the rejected one; if so, it is used from now on."""
        token = self._renew_token()
        if token is None or self._http.headers.get("Authorization") == _bearer(token):
            return False
        self._http.headers["Authorization"] = _bearer(token)
        return True


def _bearer(token: str) -> str:
    if not is_token(token):
        raise ValueError("the token is empty or has characters that an HTTP header cannot carry")
    return f"Bearer {token}"


def _tls_context(tls: ClientTls, urls: Sequence[str]) -> ssl.SSLContext:
    """What the connections use; one that trusts nobody where no server speaks TLS.

    Loading the system's authorities takes some 30 ms of CPU, which every start of hetctl and every restart would pay.
    """
    if tls == ClientTls() and not any(url.startswith("https://") for url in urls):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return tls.context()


def _path(route: Route[Any], names: Sequence[str]) -> str:
    """The path of a route with what it names; anything but ids could name another path, so it is never sent."""
    given = dict(zip(route.names, names, strict=True))
    for what, name in given.items():
        if not is_id(name):
            raise ValueError(f"'{name}' is not a {what.removesuffix('_id')} id: it must be {ID_RULE}")
    return route.path.format(**given)
