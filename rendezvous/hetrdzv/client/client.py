"""The typed HTTP client of a hetserver: it asks the routes of protocol/routes.py.

A call tries each server once, starting with the one that answered last. To go on trying, call again (the agent's
session does, with pauses of its own). Proxies named in the environment are not used.
"""

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import NoneType
from typing import Any, Self, cast
from urllib.parse import urljoin, urlsplit

import httpx

from hetrdzv.auth.tls import ClientTls
from hetrdzv.auth.tokens import is_valid_token
from hetrdzv.client.explain import (
    OutcomeUnknown,
    combine_errors,
    explain_transport_error,
    find_unusable_error,
    parse_reply,
    read_problem,
)
from hetrdzv.client.urls import normalize_url, parse_server_urls
from hetrdzv.protocol import codec, routes
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import HetError, NotServing, Unauthorized
from hetrdzv.protocol.progress import PollRequest
from hetrdzv.protocol.routes import Reply, Route, Routes
from hetrdzv.protocol.texts.ids import ID_RULE, is_id

CONNECT_TIMEOUT_S = 3.0
"""Limit for a connection (seconds)."""

POLL_REPLY_TOLERANCE_S = 1.0
"""How late the answer to a poll may be: this, or half of what the poll was to wait if that is longer (seconds).

When the network was cut for a moment, the answer is lost and TCP does not notice for minutes. A poll sent again this
soon still renews the lease in time.
"""


TRY_OTHER_SERVERS_AFTER_S = 1.0
"""With several servers: when an answer is this late, the others are asked as well (seconds)."""

SendRequest = Callable[[str], Coroutine[None, None, httpx.Response]]
"""Sends a request to the server at a URL."""


class Client(Routes):
    """Talks to whichever of the given hetservers is in charge; an async context manager.

    Every method may raise:
        Unreachable: no server could answer; names each with its reason.
        NotHetserver: what answered is something else.
        VersionMismatch: the server speaks another version of the API.
        Problem: the server's own error, with its status, code and body.
        ValueError: an id is none.

    Attributes:
        servers: their URLs, normalised, without duplicates.
        last_server: the one that answered last; it is asked first next time.

    Args:
        servers: URLs; see `parse_server_urls`.
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
        self.servers = tuple(parse_server_urls(",".join(servers)))
        self.last_server = self.servers[0]
        self._answered: set[str] = set()  # who ever did
        self._tls = tls or ClientTls()
        self._timeout_s = timeout_s
        self._renew_token = renew_token
        headers = {**routes.VERSION_HEADERS, "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = _make_authorization(token)
        self._http = httpx.AsyncClient(
            headers=headers,
            verify=_tls_context(self._tls, self.servers),
            trust_env=False,
            follow_redirects=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def poll(self, group: str, node: str, request: PollRequest) -> Directive:
        """What the node has to do, once its version is not `after`, at the latest after `wait_s` seconds."""
        wait_s = request.wait_s
        late_s = min(self._timeout_s, max(POLL_REPLY_TOLERANCE_S, wait_s / 2)) if wait_s > 0 else None
        return await self._send(routes.POLL_ROUTE, (group, node), {}, request, wait_s=wait_s, late_s=late_s)

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
        timeout = httpx.Timeout(self._timeout_s, connect=CONNECT_TIMEOUT_S, read=answer_s)
        content, head = None, {}
        if body is not None:
            content, head["Content-Type"] = codec.to_json(body, given=True), "application/json"
        path = _make_path(route, names)
        params = {name: value for name, value in query.items() if value is not None}

        async def send(server: str) -> httpx.Response:
            request = self._http.build_request(
                route.method, f"{server}{path}", params=params, headers=head, content=content, timeout=timeout
            )
            return await self._http.send(request)

        silence_s = None
        if not route.once and len(self.servers) > 1:
            silence_s = wait_s + TRY_OTHER_SERVERS_AFTER_S
        response = await self._first_answer(send, timeout, silence_s=silence_s, once=route.once)
        if response.status_code == Unauthorized.status and self._reload_token():
            response = await self._first_answer(send, timeout, silence_s=silence_s, once=route.once)
        if response.status_code >= 400:
            raise read_problem(response)
        if route.reply is NoneType:
            return cast(Reply, None)
        return parse_reply(route.reply, response.content, self.last_server)

    async def _first_answer(
        self, send: SendRequest, limits: httpx.Timeout, *, silence_s: float | None, once: bool
    ) -> httpx.Response:
        """The first usable answer: first from the server that answered last, then the others in random order.

        Args:
            silence_s: ask the others too after this long without an answer, since a server may hang; and again
                every `TRY_OTHER_SERVERS_AFTER_S`, since they may not know its successor yet (seconds). None: wait.
            once: do not ask another server if one may have acted on the request already.
        """
        others = [server for server in self.servers if server != self.last_server]
        queue = deque([self.last_server, *random.sample(others, len(others))])
        failures: dict[str, HetError] = {}
        ask_again: set[str] = set()  # those that answered: next time they may point to a new leader
        asked: dict[asyncio.Task[httpx.Response], str] = {}
        try:
            while queue or asked:
                if queue:
                    server = queue.popleft()
                    if server in failures or server in asked.values():
                        continue
                    asked[asyncio.ensure_future(send(server))] = server
                done, _ = await asyncio.wait(asked, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    silence_s = TRY_OTHER_SERVERS_AFTER_S
                    if not queue:
                        queue.extend(ask_again & failures.keys())
                        failures = {s: error for s, error in failures.items() if s not in ask_again}
                for task in done:
                    server = asked.pop(task)
                    try:
                        response = task.result()
                    except httpx.TransportError as error:
                        before = server in self._answered
                        failures[server] = explain_transport_error(
                            error, server, limits, self._tls, answered_before=before
                        )
                        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                    else:
                        self._answered.add(server)
                        failure = find_unusable_error(response, server) or self._follow_redirect(
                            response, server, queue
                        )
                        if failure is None:
                            self.last_server = server
                            return response
                        failures[server] = failure
                        ask_again.add(server)
                        unsent = not isinstance(failure, OutcomeUnknown)
                    if once and not unsent:
                        queue.clear()
        finally:
            for task in asked:
                if task.done() and not task.cancelled():
                    task.exception()  # marks it as seen; nobody needs it any more
                task.cancel()
        raise combine_errors({server: failures[server] for server in self.servers if server in failures})

    def _follow_redirect(self, response: httpx.Response, server: str, queue: deque[str]) -> NotServing | None:
        """Put the server that a redirect points to first in the queue; None: the answer is no redirect."""
        if not 300 <= response.status_code < 400:
            return None
        location = urlsplit(urljoin(server, response.headers.get("Location", "")))
        try:
            target = normalize_url(f"{location.scheme}://{location.netloc}")
        except ValueError:
            return NotServing("points to another server, but not with a URL that could be followed")
        if response.status_code != 307 or target not in self.servers:
            return NotServing(f"points to {target}, which is not among the servers given: add it to --server")
        queue.appendleft(target)
        return NotServing(f"points to {target}")

    def _reload_token(self) -> bool:
        """Whether there is another token than the rejected one; if so, it is used from now on."""
        token = self._renew_token()
        if token is None or self._http.headers.get("Authorization") == _make_authorization(token):
            return False
        self._http.headers["Authorization"] = _make_authorization(token)
        return True


def _make_authorization(token: str) -> str:
    if not is_valid_token(token):
        raise ValueError("the token is empty or has characters that an HTTP header cannot carry")
    return f"Bearer {token}"


def _tls_context(tls: ClientTls, urls: Sequence[str]) -> ssl.SSLContext:
    """What the connections use; one that trusts nobody where no server speaks TLS.

    Loading the system's authorities takes some 30 ms of CPU, which every start of hetctl and every restart would pay.
    """
    if tls == ClientTls() and not any(url.startswith("https://") for url in urls):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return tls.make_context()


def _make_path(route: Route[Any], names: Sequence[str]) -> str:
    """The path of a route with what it names; anything but ids could name another path, so it is never sent."""
    given = dict(zip(route.names, names, strict=True))
    for what, name in given.items():
        if not is_id(name):
            raise ValueError(f"'{name}' is not a {what.removesuffix('_id')} id: it must be {ID_RULE}")
    return route.path.format(**given)
