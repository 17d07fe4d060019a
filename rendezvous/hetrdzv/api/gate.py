"""What every request passes before it is answered: API version, access, limits, size of the body. Plain ASGI.

Hot routes are answered here; all others have Starlette around them, which reads and answers them in the same way.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hetrdzv.api import problems
from hetrdzv.api.bound import Bound, Table
from hetrdzv.api.dispatch import Dispatcher
from hetrdzv.api.http.body import PARSED, Body
from hetrdzv.api.refused import RefusalLog, client_of
from hetrdzv.auth.hosts import same_origin, trusted_host
from hetrdzv.auth.policy import Permit
from hetrdzv.auth.tokens import EVERYTHING, Tokens
from hetrdzv.dashboard.app import PATHS
from hetrdzv.protocol.errors import (
    ForeignHost,
    HetError,
    LeaderLost,
    ServerStopping,
    Unauthorized,
)
from hetrdzv.protocol.http import versions

logger = logging.getLogger(__name__)

GROUP_PATHS = "/v1/"
"""Prefix of the paths that only the leader answers."""

CHUNK_BYTES = 1 << 16
"""Replies are sent in pieces of this size; the next follows once the client has read enough of the last."""

_VERSION = [(name.lower().encode(), value.encode()) for name, value in versions.HEADERS.items()]


@dataclass(kw_only=True, eq=False)
class Gate:
    """ASGI middleware that refuses what must not reach a route, and adds the API version to every reply.

    Attributes:
        app: answers what is not hot.
        table: the routes.
        dispatcher: finds the service for requests about groups.
        tokens: every request must carry one of them; None: no token is required.
        pages: answers what is for people, who sign in there.
        refuse: a refusal as an answer.
        refusals: logs who is refused.
        any_host: whether a server without tokens answers to every host name (`--insecure`).
    """

    app: ASGIApp
    table: Table
    dispatcher: Dispatcher
    tokens: Tokens | None
    pages: ASGIApp
    refuse: Callable[[HetError, Request], Response]
    refusals: RefusalLog
    any_host: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope = dict(scope)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        reply = _Reply(send)
        try:
            if scope["path"].startswith(GROUP_PATHS):
                versions.check_request(headers.get(versions.HEADER.lower()))
            if PATHS.fullmatch(scope["path"]):
                await self._pass_to_pages(scope, headers, receive, reply)
                return
            row, scope["path_params"] = self.table.find(scope["method"], scope["path"])
            if not row.route.path:
                row = self._open_at(row, scope, reply)
            if row.route.role is not None:
                permit = self._permit(scope, headers)
                permit.check(row.route, scope["path_params"].get("group_id"), scope["method"], scope["path"])
                permit.put_into(scope)
            await self._pass_on(row, scope, headers, receive, reply)
        except HetError as error:
            self.refusals.note(error, client_of(scope), scope["method"], scope["path"])
            await self._refuse(reply, error, scope)
        except asyncio.CancelledError:  # the server is stopping and no longer waits for this request
            if not reply.begun:
                stopping = ServerStopping("the server is stopping; try again in a moment")
                await self._refuse(reply, stopping, scope)
        except Exception:
            logger.exception("request failed: %s %r", scope["method"], scope["path"])
            if not reply.begun:
                await self._refuse(reply, problems.bug_report(), scope)

    def _open_at(self, nowhere: Bound, scope: Scope, reply: "_Reply") -> Bound:
        """The open route at a path, for a request with another method: HEAD becomes GET, others are told so."""
        row, names = self.table.find("GET", scope["path"])
        if row.route.role is not None:
            return nowhere
        if scope["method"] == "HEAD" and not row.route.once:
            scope["method"], scope["path_params"], reply.without_body = "GET", names, True
        return row

    async def _pass_on(
        self, row: Bound, scope: Scope, headers: dict[str, str], receive: Receive, reply: "_Reply"
    ) -> None:
        is_open = row.route.role is None
        with Body(headers, receive) as body:
            if not await body.read():
                return
            if scope["path"].startswith(GROUP_PATHS) or (row.route.page and not is_open):
                self.dispatcher.assign(scope)
                reply.may_begin = lambda: self.dispatcher.still_answers(scope)
            scope[PARSED] = body.parsed
            if row.route.hot:
                response = await self._answer(row, Request(scope, body.receive))
                await response(scope, body.receive, reply)
            else:
                await self.app(scope, body.receive, reply)
        if reply.withheld:
            raise LeaderLost("this server lost the leadership while it worked on this; ask the others")

    async def _answer(self, row: Bound, request: Request) -> Response:
        """What a hot route answers, or how it refuses: either may tell of a group, as only the leader may."""
        try:
            return await row.answer(request)
        except HetError as error:
            self.refusals.note(error, client_of(request.scope), request.method, request.scope["path"])
            return self.refuse(error, request)

    async def _pass_to_pages(
        self, scope: Scope, headers: dict[str, str], receive: Receive, reply: "_Reply"
    ) -> None:
        """Answer with a page, which sees to who is signed in."""
        self._check_client(scope, headers)
        if scope["method"] == "HEAD":
            scope["method"], reply.without_body = "GET", True
        with Body(headers, receive) as body:
            if await body.read():
                await self.pages(scope, body.receive, reply)

    def _permit(self, scope: Scope, headers: dict[str, str]) -> Permit:
        """What a request may do.

        Raises:
            Unauthorized, ForeignHost: nothing at all.
        """
        self._check_client(scope, headers)
        if self.tokens is not None:
            return _check_token(headers.get("authorization", ""), self.tokens)
        return Permit(EVERYTHING)

    def _check_client(self, scope: Scope, headers: dict[str, str]) -> None:
        """Check what a server without tokens requires of all requests.

        Raises:
            ForeignHost: this one may do nothing at all.
        """
        if self.tokens is not None:
            return
        host = headers.get("host", "")
        if not self.any_host and not trusted_host(host):
            raise ForeignHost(
                "this server has no token, so it only answers to addresses and localhost: "
                "use its address, or start hetserver with --token-file"
            )
        if scope["method"] not in ("GET", "HEAD") and not same_origin(headers.get("origin"), host):
            raise ForeignHost(
                "this server has no token, so it refuses browser requests from other sites: "
                "start hetserver with --token-file"
            )

    async def _refuse(self, reply: "_Reply", error: HetError, scope: Scope) -> None:
        """Send an error."""
        reply.withheld, reply.may_begin = False, None  # it tells nothing of any group
        answer = self.refuse(error, Request(scope))
        await reply(
            {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
        )
        await reply({"type": "http.response.body", "body": answer.body})


class _Reply:
    """The ASGI channel back to the client: adds the API version and splits large bodies.

    Attributes:
        begun: whether something was sent.
        without_body: for a HEAD request.
        withheld: whether a reply was dropped since it was not allowed to begin.
        may_begin: asked just before a reply begins.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        self.without_body = False
        self.withheld = False
        self.may_begin: Callable[[], bool] | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            may_begin, self.may_begin = self.may_begin, None
            self.withheld = may_begin is not None and not may_begin()
        if self.withheld:
            return
        if message["type"] == "http.response.start":
            self.begun = True
            message = {**message, "headers": [*message.get("headers", ()), *_VERSION]}
        elif self.without_body and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        elif len(body := message.get("body", b"")) > CHUNK_BYTES:
            for start in range(0, len(body), CHUNK_BYTES):
                piece = body[start : start + CHUNK_BYTES]
                more = start + CHUNK_BYTES < len(body) or message.get("more_body", False)
                await self._send({**message, "body": piece, "more_body": more})
            return
        await self._send(message)


def _check_token(authorization: str, tokens: Tokens) -> Permit:
    scheme, _, given = authorization.partition(" ")
    given = given.strip()
    if scheme.lower() != "bearer" or not given:
        raise Unauthorized("this server requires a token: set HET_TOKEN or give --token-file")
    entry = tokens.entry(given)
    if entry is None:
        raise Unauthorized("this server does not accept the token: compare it with hetserver's token file")
    return Permit(entry.grant, entry, tokens)
