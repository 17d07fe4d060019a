"""The typed HTTP client of a hetserver: one method per route of the API.

A call tries each server once, starting with the one that answered last. To go on trying, call again (the agent's
session does, with pauses of its own). Proxies named in the environment are not used.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel

from hetrdzv.auth.tls import ClientTls
from hetrdzv.auth.tokens import is_token
from hetrdzv.client import failover, follow
from hetrdzv.client.explain import parsed, problem_of
from hetrdzv.client.failover import Servers
from hetrdzv.client.urls import servers_from
from hetrdzv.protocol import versions
from hetrdzv.protocol.errors import Unauthorized
from hetrdzv.protocol.ids import ID_RULE, is_id
from hetrdzv.protocol.keepalive import SOCKET_HEADER, keep_alive, name_of
from hetrdzv.protocol.wire import (
    DaemonRequest,
    DirectiveReply,
    EventReply,
    EventsReply,
    ExportReply,
    GroupReply,
    GroupsReply,
    JoinRequest,
    LogsReply,
    PlanReply,
    PlanRequest,
    PollRequest,
    ReportRequest,
    SharesReply,
    SharesRequest,
    SignInReply,
    SpecFields,
    StacksReply,
    StacksRequest,
)

KEEP_ALIVE_S = 2.0
"""How long an idle connection is kept (seconds): less than a server keeps it (uvicorn: 5 s), so that no request
meets a server that is closing it."""

POLL_LATE_S = 1.0
"""How late the answer to a poll may be: this, or half of what the poll was to wait if that is longer (seconds).

When the network was cut for a moment, the answer is lost and TCP does not notice for minutes. A poll sent again this
soon still renews the lease in time.
"""

STACKS_WAIT_S = 10.0
"""How long a server waits for agents to send stacks, or logs (seconds)."""

_R = TypeVar("_R", bound=BaseModel)


class Client:
    """Talks to whichever of the given hetservers is in charge; an async context manager.

    Every method may raise:
        Unreachable: no server could answer; names each with its reason.
        NotHetserver: what answered is something else.
        VersionMismatch: the server speaks another version of the API.
        Problem: the server's own error, with its status, code and body.

    Args:
        servers: URLs; see `servers_from`.
        token: sent to these servers only, never shown.
        renew_token: called for a new token when a server rejects the current one.
        tls: which certificates to trust and to present to https servers; None: the system's authorities, and none.
        connect_timeout_s: limit for a connection (seconds).
        timeout_s: limit for an answer, on top of the time that a call asks the server to wait (seconds).
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
        tls = tls or ClientTls()
        self._servers = Servers(servers_from(",".join(servers)), tls)
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._renew_token = renew_token
        self._polls_from: str | None = None  # our end of the connection that answered the last poll
        headers = {**versions.HEADERS, "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = _bearer(token)
        self._http = httpx.AsyncClient(
            headers=headers,
            verify=_tls_context(tls, self._servers.urls),
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

    @property
    def servers(self) -> tuple[str, ...]:
        """The URLs of the servers, normalised."""
        return self._servers.urls

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    # -- what agents call ----------------------------------------------------------------------------------

    async def join(self, group: str, node: str, request: JoinRequest, wait_s: float = 0.0) -> DirectiveReply:
        """Join, or declare the node ready for the next round; the server may wait `wait_s` for a directive (s)."""
        query = {"wait": _seconds(wait_s)} if wait_s > 0 else {}
        return await self._ask(
            DirectiveReply, "PUT", _node(group, node), query=query, body=request, wait_s=wait_s
        )

    async def directive(
        self, group: str, node: str, incarnation: str, after: str | None = None, wait_s: float = 0.0
    ) -> DirectiveReply:
        """What the node has to do; returns once its version is not `after`, at the latest after `wait_s` seconds."""
        query = {"incarnation": incarnation, "wait": _seconds(wait_s)}
        if after is not None:
            query["after"] = after
        return await self._poll("GET", group, node, wait_s, query=query)

    async def poll(self, group: str, node: str, request: PollRequest) -> DirectiveReply:
        """What the node has to do, as `directive` asks; also tells how far its workers have come."""
        return await self._poll("POST", group, node, request.wait_s, body=request)

    async def _poll(
        self,
        method: str,
        group: str,
        node: str,
        wait_s: float,
        *,
        query: Mapping[str, str] | None = None,
        body: PollRequest | None = None,
    ) -> DirectiveReply:
        late_s = min(self._timeout_s, max(POLL_LATE_S, wait_s / 2)) if wait_s > 0 else None
        headers = {SOCKET_HEADER: self._polls_from} if self._polls_from is not None else {}
        path = f"{_node(group, node)}/directive"
        response = await self._send(
            method, path, query=query, headers=headers, body=body, wait_s=wait_s, late_s=late_s
        )
        reply = self._parsed(DirectiveReply, response)
        self._watch(response, reply.keepalive_s)
        return reply

    async def say(
        self, group: str, node: str, topic: str, body: BaseModel, reply: type[_R] | None
    ) -> _R | None:
        """Say something of a node; `topic` is the last part of its route, `reply` what the server answers."""
        response = await self._send("POST", f"{_node(group, node)}/{topic}", body=body)
        return self._parsed(reply, response) if reply is not None else None

    async def stacks(self, group: str, node: str, request: StacksRequest) -> None:
        """Send the stacks that a reply to a poll asked for."""
        await self._send("POST", f"{_node(group, node)}/stacks", body=request)

    async def shares(self, group: str, node: str, request: SharesRequest) -> SharesReply:
        """A decision on the shares of the running round; the first node that asks for it brings it about."""
        return await self._ask(SharesReply, "POST", f"{_node(group, node)}/shares", body=request)

    async def report(self, group: str, node: str, request: ReportRequest) -> DirectiveReply:
        """Report what happened to a round's workers on a node."""
        return await self._ask(DirectiveReply, "POST", f"{_node(group, node)}/report", body=request)

    async def start_daemon(self, group: str, node: str, request: DaemonRequest) -> DirectiveReply:
        """Have another member of the round run a launcher's daemon; returns the master's own directive."""
        return await self._ask(DirectiveReply, "POST", f"{_node(group, node)}/daemon", body=request)

    async def leave(self, group: str, node: str, *, incarnation: str, reason: str = "") -> None:
        """Leave the group; the node's workers are gone."""
        query = {"incarnation": incarnation, "reason": reason}
        await self._send("DELETE", _node(group, node), query=query)

    # -- what people and tools call ------------------------------------------------------------------------

    async def drain(self, group: str, node: str) -> GroupReply:
        """Take a node out of its group until it is undrained."""
        return await self._ask(GroupReply, "POST", f"{_node(group, node)}/drain")

    async def undrain(self, group: str, node: str) -> GroupReply:
        """Let a drained node join again."""
        return await self._ask(GroupReply, "POST", f"{_node(group, node)}/undrain")

    async def health(self) -> Mapping[str, Any]:
        """What a server says of itself, whether or not it leads: `service`, and its versions."""
        said: Mapping[str, Any] = (await self._send("GET", "/healthz")).json()
        return said

    async def groups(self) -> GroupsReply:
        """All groups, a summary of each."""
        return await self._ask(GroupsReply, "GET", "/v1/groups")

    async def group(self, group: str) -> GroupReply:
        """Everything about a group."""
        return await self._ask(GroupReply, "GET", _group(group))

    async def put(self, group: str, spec: SpecFields) -> GroupReply:
        """Create a group, or confirm that it has these settings."""
        return await self._ask(GroupReply, "PUT", _group(group), body=spec)

    async def restart(self, group: str) -> GroupReply:
        """End the running round, or start a finished group's job again. One call never sends it twice."""
        return await self._ask(GroupReply, "POST", f"{_group(group)}/restart", once=True)

    async def plan(self, group: str, request: PlanRequest) -> PlanReply:
        """What would happen if nodes came or went; changes nothing."""
        return await self._ask(PlanReply, "POST", f"{_group(group)}/plan", body=request)

    async def cancel(self, group: str) -> GroupReply:
        """End the job."""
        return await self._ask(GroupReply, "POST", f"{_group(group)}/cancel")

    async def stacks_of(self, group: str, ranks: Sequence[int] = ()) -> StacksReply:
        """The Python stacks of the running round's workers, from their agents; of some global ranks, or of all."""
        query = {"rank": ranks} if ranks else {}
        return await self._ask(
            StacksReply, "POST", f"{_group(group)}/stacks", query=query, wait_s=STACKS_WAIT_S
        )

    async def logs_of(self, group: str, ranks: Sequence[int] = ()) -> LogsReply:
        """The end of what the running round's workers have written to stderr, from their agents."""
        query = {"rank": ranks} if ranks else {}
        return await self._ask(LogsReply, "POST", f"{_group(group)}/logs", query=query, wait_s=STACKS_WAIT_S)

    async def sign_in_code(self) -> SignInReply:
        """Where a browser has to go on `last_server` to be signed in to the dashboard with this client's token."""
        return await self._ask(SignInReply, "POST", "/v1/sign-in-codes", once=True)

    @property
    def last_server(self) -> str:
        """The URL of the server that answered last."""
        return self._servers.last

    async def delete(self, group: str) -> None:
        """Forget a group."""
        await self._send("DELETE", _group(group))

    async def export(self, group: str) -> ExportReply:
        """What is stored of a group, also of one that the server cannot serve."""
        return await self._ask(ExportReply, "GET", f"{_group(group)}/export")

    async def events(self, group: str, after: int = 0) -> EventsReply:
        """A group's events after number `after`."""
        return await self._ask(EventsReply, "GET", f"{_group(group)}/events", query={"after": str(after)})

    def follow(self, group: str, after: int = 0) -> AsyncIterator[EventReply]:
        """A group's events after number `after`, each once, for as long as the caller wants.

        Raises `Unreachable` only if the first connection fails; after that, lost connections are retried forever,
        since servers get restarted. If the group is deleted and created again, its events follow, from number 1.
        """
        path = f"{_group(group)}/events"

        async def connect(place: str) -> httpx.Response:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": place}
            silence_s = follow.SILENCE_S - self._timeout_s
            return await self._send("GET", path, headers=headers, wait_s=silence_s, stream=True)

        def parse(data: str) -> EventReply:
            return parsed(EventReply, data, self._servers.last, newer=self._servers.newer)

        return follow.history(connect, parse, after)

    # -- sending -------------------------------------------------------------------------------------------

    async def _ask(
        self,
        model: type[_R],
        method: str,
        path: str,
        *,
        query: Mapping[str, str | Sequence[int]] | None = None,
        body: BaseModel | None = None,
        wait_s: float = 0.0,
        late_s: float | None = None,
        once: bool = False,
    ) -> _R:
        response = await self._send(
            method, path, query=query, body=body, wait_s=wait_s, late_s=late_s, once=once
        )
        return self._parsed(model, response)

    def _parsed(self, model: type[_R], response: httpx.Response) -> _R:
        newer = versions.is_newer(response.headers)
        return parsed(model, response.content, self._servers.last, newer=newer)

    def _watch(self, response: httpx.Response, within_s: float | None) -> None:
        """Have the kernel notice when the server's host is gone, and remember which connection polls use."""
        self._polls_from = None
        stream = response.extensions.get("network_stream")
        if stream is None or within_s is None:
            return
        sock = stream.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):  # closed meanwhile, or nothing of the kind
            if keep_alive(sock, within_s):
                self._polls_from = name_of(sock.getsockname())

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | Sequence[int]] | None = None,
        headers: Mapping[str, str] | None = None,
        body: BaseModel | None = None,
        wait_s: float = 0.0,
        late_s: float | None = None,
        once: bool = False,
        stream: bool = False,
    ) -> httpx.Response:
        """The first usable answer if it is a success, else a `Problem` raised.

        Args:
            wait_s: how long the server was asked to wait before it answers.
            late_s: how long an answer may take beyond `wait_s`; None: the client's `timeout_s`.
            once: do not send it to another server if the first may have acted on it.
            stream: leave the body of a success unread.
        """
        answer_s = wait_s + (self._timeout_s if late_s is None else late_s)
        timeout = httpx.Timeout(self._timeout_s, connect=self._connect_timeout_s, read=answer_s)
        head = dict(headers or {})
        content = None
        if body is not None:
            content, head["Content-Type"] = body.model_dump_json(exclude_unset=True), "application/json"

        async def send(server: str) -> httpx.Response:
            request = self._http.build_request(
                method, f"{server}{path}", params=query, headers=head, content=content, timeout=timeout
            )
            response = await self._http.send(request, stream=True)
            if not stream or not response.is_success:
                await response.aread()
                await response.aclose()
            return response

        silence_s = None
        if not once and len(self.servers) > 1:
            silence_s = (0.0 if stream else wait_s) + failover.SILENCE_S
        response = await self._servers.ask(send, timeout, silence_s=silence_s, once=once)
        if response.status_code == Unauthorized.status and self._got_new_token():
            response = await self._servers.ask(send, timeout, silence_s=silence_s, once=once)
        if response.status_code >= 400:
            raise problem_of(response)
        return response

    def _got_new_token(self) -> bool:
        """Whether there is another token than the rejected one; if so, it is used from now on."""
        token = self._renew_token() if self._renew_token is not None else None
        if token is None or self._http.headers.get("Authorization") == _bearer(token):
            return False
        self._http.headers["Authorization"] = _bearer(token)
        return True


def _bearer(token: str) -> str:
    if not is_token(token):
        raise ValueError("the token is empty or has characters that an HTTP header cannot carry")
    return f"Bearer {token}"


def _tls_context(tls: ClientTls, urls: Sequence[str]) -> ssl.SSLContext | bool:
    """What the connections use; one that trusts nobody where no server speaks TLS.

    Loading the system's authorities takes some 30 ms of CPU, which every start of hetctl and every restart would pay.
    """
    if tls == ClientTls() and not any(url.startswith("https://") for url in urls):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return tls.context()


def _group(group: str) -> str:
    return f"/v1/groups/{_segment('group', group)}"


def _node(group: str, node: str) -> str:
    return f"{_group(group)}/nodes/{_segment('node', node)}"


def _segment(what: str, name: str) -> str:
    """An id as part of a path; anything else could name another path, so it is never sent."""
    if not is_id(name):
        raise ValueError(f"'{name}' is not a {what} id: it must be {ID_RULE}")
    return name


def _seconds(value: float) -> str:
    return f"{value:g}"
