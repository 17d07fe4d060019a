"""The typed HTTP client: one method per route of the API, several servers, every failure in plain words.

A call is one pass over the servers, beginning with the one that answered last, the others in any order; whoever
wants more than a pass calls again (the agent's session does, with its own pauses). Proxies named in the
environment are not used.
"""

import asyncio
import errno
import ipaddress
import json
import random
import re
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from hetrdzv.access import is_token
from hetrdzv.errors import (
    HetError,
    LeaderLost,
    NotHetserver,
    Problem,
    Unauthorized,
    Unreachable,
    VersionMismatch,
)
from hetrdzv.tls import ClientTls, explain_tls
from hetrdzv.wire import (
    API_VERSION,
    VERSION_HEADER,
    DaemonRequest,
    DirectiveReply,
    EventReply,
    EventsReply,
    GroupReply,
    GroupsReply,
    JoinRequest,
    ReportRequest,
    SpecFields,
)

DEFAULT_PORT = 29400
"""Where a server given without scheme and port is looked for."""

KEEP_ALIVE_S = 2.0
"""Idle connections are closed by this side, before a server does it under a request (uvicorn: 5 s)."""

POLL_LATE_S = 1.0
"""The answer to a poll may be late by this much at least, otherwise by half of what it was to wait (seconds).

A network that was cut for a moment loses the answer, and TCP does not say so for minutes: asked again in half of a
poll's time, the server hears the node within its lease.
"""

SILENCE_S = 1.0
"""Where there are several servers: how late an answer is when the others are asked as well (seconds)."""

FOLLOW_SILENCE_S = 45.0
"""A followed history that is silent for longer, comments included, is connected to anew (seconds)."""

_R = TypeVar("_R", bound=BaseModel)


def servers_from(text: str) -> list[str]:
    """The servers named by `u1,u2`, normalised, each once.

    Raises:
        ValueError: a URL is wrong (the message says what), or there is none.
    """
    servers = [normal_url(part) for part in text.split(",") if part.strip()]
    if not servers:
        raise ValueError("no server was given: name one, for example http://host:29400")
    return list(dict.fromkeys(servers))


def normal_url(text: str) -> str:
    """`scheme://host:port` of a server; without a scheme it is http and port 29400.

    Raises:
        ValueError: says what is wrong with it.
    """
    given = text.strip()
    bare = "://" not in given
    if bare and _is_ipv6(given):
        raise ValueError(
            f"'{given}' as a server: an IPv6 address goes into brackets: http://[{given}]:{DEFAULT_PORT}"
        )
    if "@" in given:
        raise ValueError("a server URL must not carry a user name or password: pass the token by itself")
    try:
        parts = urlsplit(f"http://{given}" if bare else given)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        what = "its port is no number from 1 to 65535" if "port" in str(error).lower() else str(error)
        raise ValueError(f"'{given}' as a server: {what}; for example http://host:{DEFAULT_PORT}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"'{given}' as a server: the scheme is '{parts.scheme}', but must be http or https")
    if not host:
        raise ValueError(f"'{given}' as a server: it names no host; for example http://host:{DEFAULT_PORT}")
    if port == 0:
        raise ValueError(f"'{given}' as a server: port 0 is not a port that can be reached")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"'{given}' as a server: it ends after the port, without '{_beyond_port(given)}'")
    if not _is_ipv6(host) and not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?", host):
        raise ValueError(f"'{given}' as a server: '{host}' is not a host name")
    if port is None:
        port = DEFAULT_PORT if bare else 443 if parts.scheme == "https" else 80
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _beyond_port(url: str) -> str:
    rest = url.split("://", 1)[-1]
    return rest[min(rest.find(mark) for mark in "/?#" if mark in rest) :]


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


class Client:
    """Talks to one hetserver, wherever among the given ones it is; an async context manager.

    Every method may raise:
        Unreachable: no server answered; names each with its reason.
        NotHetserver: what answered is something else.
        VersionMismatch: the server speaks another version of the API.
        Problem: the server's own error, with its status, code and body.

    Args:
        servers: URLs; see `servers_from`.
        token: sent to these servers only, shown nowhere.
        renew_token: asked for the token anew when a server does not take it any more.
        tls: what is believed and shown where a URL is https; None: public authorities, and nothing.
        connect_timeout_s: for a connection (seconds).
        timeout_s: for an answer, beyond what the call asks the server to wait (seconds).
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        token: str | None = None,
        renew_token: Callable[[], str | None] | None = None,
        tls: ClientTls | None = None,
        connect_timeout_s: float = 3.0,
        timeout_s: float = 10.0,
    ) -> None:
        self.servers: tuple[str, ...] = tuple(servers_from(",".join(servers)))
        self._last = self.servers[0]
        self._heard: set[str] = set()
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._renew_token = renew_token
        self._tls = tls or ClientTls()
        headers = {VERSION_HEADER: str(API_VERSION), "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = _bearer(token)
        self._http = httpx.AsyncClient(
            headers=headers,
            verify=self._tls.context(),
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S),
        )

    def __repr__(self) -> str:
        return f"Client({', '.join(self.servers)})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    # -- an agent's routes ---------------------------------------------------------------------------------

    async def join(self, group: str, node: str, request: JoinRequest, wait_s: float = 0.0) -> DirectiveReply:
        """Join, or ready for the next round; with `wait_s` the server may wait for a directive (seconds)."""
        query = {"wait": _seconds(wait_s)} if wait_s > 0 else {}
        return await self._ask(
            DirectiveReply, "PUT", _node(group, node), query=query, body=request, wait_s=wait_s
        )

    async def directive(
        self, group: str, node: str, incarnation: str, after: str | None = None, wait_s: float = 0.0
    ) -> DirectiveReply:
        """What the node has to do; answers when its version is not `after`, or after `wait_s` seconds."""
        query = {"incarnation": incarnation, "wait": _seconds(wait_s)}
        if after is not None:
            query["after"] = after
        late_s = min(self._timeout_s, max(POLL_LATE_S, wait_s / 2)) if wait_s > 0 else None
        return await self._ask(
            DirectiveReply,
            "GET",
            f"{_node(group, node)}/directive",
            query=query,
            wait_s=wait_s,
            late_s=late_s,
        )

    async def report(self, group: str, node: str, request: ReportRequest) -> DirectiveReply:
        """Say what became of a round's workers on a node."""
        return await self._ask(DirectiveReply, "POST", f"{_node(group, node)}/report", body=request)

    async def start_daemon(self, group: str, node: str, request: DaemonRequest) -> DirectiveReply:
        """Have another member of the round run a launcher's daemon; answers with the master's own directive."""
        return await self._ask(DirectiveReply, "POST", f"{_node(group, node)}/daemon", body=request)

    async def leave(self, group: str, node: str, *, incarnation: str, reason: str = "") -> None:
        """Say that the agent goes away and its workers are gone."""
        query = {"incarnation": incarnation, "reason": reason}
        await self._send("DELETE", _node(group, node), query=query)

    # -- a person's routes ---------------------------------------------------------------------------------

    async def drain(self, group: str, node: str) -> GroupReply:
        """Take a node out."""
        return await self._ask(GroupReply, "POST", f"{_node(group, node)}/drain")

    async def undrain(self, group: str, node: str) -> GroupReply:
        """Let a drained node in again."""
        return await self._ask(GroupReply, "POST", f"{_node(group, node)}/undrain")

    async def groups(self) -> GroupsReply:
        """A line about every group."""
        return await self._ask(GroupsReply, "GET", "/v1/groups")

    async def group(self, group: str) -> GroupReply:
        """Everything about a group."""
        return await self._ask(GroupReply, "GET", _group(group))

    async def put(self, group: str, spec: SpecFields) -> GroupReply:
        """Create a group, or confirm what it is."""
        return await self._ask(GroupReply, "PUT", _group(group), body=spec)

    async def restart(self, group: str) -> GroupReply:
        """End the running round, or make a finished group begin anew. Never sent twice by one call."""
        return await self._ask(GroupReply, "POST", f"{_group(group)}/restart", once=True)

    async def cancel(self, group: str) -> GroupReply:
        """End the job."""
        return await self._ask(GroupReply, "POST", f"{_group(group)}/cancel")

    async def delete(self, group: str) -> None:
        """Forget a group."""
        await self._send("DELETE", _group(group))

    async def events(self, group: str, after: int = 0) -> EventsReply:
        """The group's history behind number `after`."""
        return await self._ask(EventsReply, "GET", f"{_group(group)}/events", query={"after": str(after)})

    async def follow(self, group: str, after: int = 0) -> AsyncIterator[EventReply]:
        """The group's history behind number `after`, each event once, for as long as the caller wants.

        A first connection that fails raises; later ones are tried again without end: servers are restarted.
        """
        path, reached, failures = f"{_group(group)}/events", False, 0
        while True:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
            silence_s = FOLLOW_SILENCE_S - self._timeout_s
            try:
                response = await self._send(
                    "GET", path, query={"after": str(after)}, headers=headers, wait_s=silence_s, stream=True
                )
            except Unreachable:
                if not reached:
                    raise
            else:
                reached = True
                try:
                    async for data in _sse_data(response.aiter_lines()):
                        event = _parsed(EventReply, data, self._last)
                        if event.number > after:
                            after, failures = event.number, 0
                            yield event
                except httpx.TransportError:
                    pass  # cut, or silent for too long
                finally:
                    await response.aclose()
            failures += 1
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(2.0, 0.05 * 2.0 ** min(failures, 10)))

    # -- a pass over the servers ---------------------------------------------------------------------------

    async def _ask(
        self,
        model: type[_R],
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: BaseModel | None = None,
        wait_s: float = 0.0,
        late_s: float | None = None,
        once: bool = False,
    ) -> _R:
        response = await self._send(
            method, path, query=query, body=body, wait_s=wait_s, late_s=late_s, once=once
        )
        return _parsed(model, response.content, self._last)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: BaseModel | None = None,
        wait_s: float = 0.0,
        late_s: float | None = None,
        once: bool = False,
        stream: bool = False,
    ) -> httpx.Response:
        """The first usable answer: a success, or a `Problem` raised.

        Args:
            late_s: how long an answer may take beyond `wait_s`; None: `timeout_s` of the client.
            once: not to be repeated where the first server may have acted on it.
            stream: leave the body of a success unread.
        """
        answer_s = wait_s + (self._timeout_s if late_s is None else late_s)
        timeout = httpx.Timeout(self._timeout_s, connect=self._connect_timeout_s, read=answer_s)
        head = dict(headers or {})
        content = None
        if body is not None:
            content, head["Content-Type"] = body.model_dump_json(exclude_unset=True), "application/json"

        async def ask(server: str) -> httpx.Response:
            request = self._http.build_request(
                method, f"{server}{path}", params=query, headers=head, content=content, timeout=timeout
            )
            response = await self._http.send(request, stream=True)
            if not stream or not response.is_success:
                await response.aread()
                await response.aclose()
            return response

        silence_s = None if once or len(self.servers) == 1 else (0.0 if stream else wait_s) + SILENCE_S
        response = await self._pass(ask, answer_s, silence_s, once)
        if response.status_code == Unauthorized.status and self._has_another_token():
            response = await self._pass(ask, answer_s, silence_s, once)
        if response.status_code >= 400:
            raise _problem(response)
        return response

    def _has_another_token(self) -> bool:
        """Whether there is another token than the one that was refused; it is sent from now on."""
        token = self._renew_token() if self._renew_token is not None else None
        if token is None or self._http.headers.get("Authorization") == _bearer(token):
            return False
        self._http.headers["Authorization"] = _bearer(token)
        return True

    async def _pass(
        self,
        ask: Callable[[str], Coroutine[None, None, httpx.Response]],
        answer_s: float,
        silence_s: float | None,
        once: bool,
    ) -> httpx.Response:
        """The first usable answer of a server; the one that answered last is asked first.

        Args:
            silence_s: after so long without an answer the others are asked as well, since the first may hang,
                and again, since they may not know its successor yet (seconds); None: they are not.
            once: ask no other server when one may have done what was asked.

        Raises:
            HetError: there is none; says what became of each server.
        """
        others = [server for server in self.servers if server != self._last]
        queue = deque([self._last, *random.sample(others, len(others))])
        failures: dict[str, HetError] = {}
        answered: set[str] = set()
        asked: dict[asyncio.Task[httpx.Response], str] = {}
        try:
            while queue or asked:
                if queue:
                    server = queue.popleft()
                    if server in failures or server in asked.values():
                        continue
                    asked[asyncio.ensure_future(ask(server))] = server
                done, _ = await asyncio.wait(asked, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    silence_s = SILENCE_S
                    if not queue:
                        queue.extend(answered & failures.keys())
                        failures = {s: error for s, error in failures.items() if s not in answered}
                for task in done:
                    server = asked.pop(task)
                    try:
                        response = task.result()
                    except httpx.TransportError as error:
                        failures[server] = self._failure(error, server, answer_s)
                        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                    else:
                        self._heard.add(server)
                        failure = self._unusable(response, server, queue)
                        if failure is None:
                            self._last = server
                            return response
                        failures[server] = failure
                        answered.add(server)
                        unsent = not isinstance(failure, MaybeDone)
                        await response.aclose()
                    if once and not unsent:
                        queue.clear()
        finally:
            for task in asked:
                if task.done() and not task.cancelled():
                    task.exception()  # it is of no interest any more
                task.cancel()
        raise _verdict({server: failures[server] for server in self.servers if server in failures})

    def _unusable(self, response: httpx.Response, server: str, queue: deque[str]) -> HetError | None:
        """Why an answer sends us on to the next server, or None; puts the server it points to first."""
        status, version = response.status_code, response.headers.get(VERSION_HEADER)
        if version is None:
            if status in (502, 503, 504):
                return Unreachable(f"HTTP {status} from a proxy in front of it")
            what = response.headers.get("Content-Type", "no content type").split(";")[0].strip()
            return NotHetserver(
                f"{server} answered, but it is no hetserver (HTTP {status}, {what[:100]}): check --server"
            )
        if version != str(API_VERSION):
            older = "the server" if version.isdecimal() and int(version) < API_VERSION else "this client"
            return VersionMismatch(
                f"{server} speaks version {version[:20]} of the API, this client version {API_VERSION}: "
                f"{older} is older, upgrade it"
            )
        if status == 503:
            problem = _problem(response)
            kind = MaybeDone if problem.code == LeaderLost.code else Unreachable
            return kind(f"HTTP 503, {problem}")
        if 300 <= status < 400:
            return Unreachable(self._redirected(response, server, queue))
        return None

    def _redirected(self, response: httpx.Response, server: str, queue: deque[str]) -> str:
        location = urlsplit(urljoin(server, response.headers.get("Location", "")))
        try:
            target = normal_url(f"{location.scheme}://{location.netloc}")
        except ValueError:
            return "points to another server, but not by a URL that could be followed"
        if response.status_code != 307 or target not in self.servers:
            return f"points to {target}, which is not among the servers given: add it to --server"
        queue.appendleft(target)
        return f"points to {target}"

    def _failure(self, error: httpx.TransportError, server: str, answer_s: float) -> HetError:
        if isinstance(error, httpx.ProtocolError) and not _is_cut(error):
            hint = "; if it speaks TLS, give https://" if server.startswith("http://") else ""
            return NotHetserver(f"{server} answered, but it is no hetserver (no HTTP): check --server{hint}")
        return Unreachable(self._plainly(error, answer_s, server))

    def _plainly(self, error: httpx.TransportError, answer_s: float, server: str) -> str:
        """A transport error in the words of a person."""
        match error:
            case httpx.ConnectTimeout():
                return f"timed out after {self._connect_timeout_s:g} s"
            case httpx.TimeoutException():
                return f"timed out after {answer_s:g} s"
        causes = list(_causes(error))
        for cause in causes:
            match cause:
                case socket.gaierror(errno=socket.EAI_AGAIN):
                    return "host name lookup failed for now"
                case socket.gaierror():
                    return "host name unknown"
                case ssl.SSLError() if cause.reason != "APPLICATION_DATA_AFTER_CLOSE_NOTIFY":
                    return explain_tls(cause, urlsplit(server).hostname or "", self._tls)
                case ConnectionRefusedError():
                    return "connection refused"
                case OSError(errno=errno.EHOSTUNREACH):
                    return "no route to host"
                case OSError(errno=errno.ENETUNREACH):
                    return "network unreachable"
        if isinstance(error, httpx.ConnectError):
            told = next(
                (cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror), None
            )
            return f"no connection ({told})" if told else "no connection"
        hint = ""
        if server not in self._heard and server.startswith("http://"):
            hint = "; if it speaks TLS, give https://"
        elif server not in self._heard and self._tls.cert is not None:
            hint = "; is our --client-cert by the authority of its --tls-client-ca?"
        return f"connection cut before the answer came{hint}"


class MaybeDone(Unreachable):
    """A server ceased to lead while it worked on the request."""


def _bearer(token: str) -> str:
    if not is_token(token):
        raise ValueError("the token is empty or has characters that an HTTP header cannot carry")
    return f"Bearer {token}"


def _is_cut(error: httpx.ProtocolError) -> bool:
    """Whether the other side went away, which httpx reports as a violation of the protocol."""
    return str(error).startswith(("Server disconnected", "peer closed connection"))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and all that led to it, depth first."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    before = error.__cause__ or error.__context__
    if before is not None:
        yield from _causes(before)


def _verdict(failures: Mapping[str, HetError]) -> HetError:
    """What to raise when no server gave a usable answer."""
    strangers = [error for error in failures.values() if not isinstance(error, Unreachable)]
    if len(strangers) == len(failures):
        return strangers[0]
    reasons = [
        str(error) if error in strangers else f"{server}: {error}" for server, error in failures.items()
    ]
    return Unreachable(f"no server answers ({'; '.join(reasons)})")


def _problem(response: httpx.Response) -> Problem:
    try:
        body = json.loads(response.content)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {}
    detail, code = body.get("detail"), body.get("code")
    return Problem(
        response.status_code,
        code if isinstance(code, str) else "error",
        detail if isinstance(detail, str) and detail else f"the server answered HTTP {response.status_code}",
        body,
    )


def _parsed(model: type[_R], data: bytes | str, server: str) -> _R:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole of it"
        raise NotHetserver(
            f"{server} answered, but not with a {model.__name__} ({where}: {first['msg']}): check --server"
        ) from None


async def _sse_data(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """The data of each event of a `text/event-stream`; the number in `id` is in the data as well."""
    data: list[str] = []
    async for line in lines:
        field, _, value = line.partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []


def _group(group: str) -> str:
    return f"/v1/groups/{_segment('group', group)}"


def _node(group: str, node: str) -> str:
    return f"{_group(group)}/nodes/{_segment('node', node)}"


def _segment(what: str, name: str) -> str:
    """An id as part of a path; one that would name another path is refused before anything is sent."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", name) or name in (".", ".."):
        raise ValueError(
            f"'{name}' is no {what} id: it has 1 to 128 letters, digits, dots, dashes and underscores"
        )
    return name


def _seconds(value: float) -> str:
    return f"{value:g}"
