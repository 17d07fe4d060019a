"""What comes before any route: API version, access, limits of a body; and before any reply: the read fence."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hetrdzv.api import errors
from hetrdzv.auth.hosts import is_same_origin, is_trusted_host
from hetrdzv.auth.tokens import ANONYMOUS_GRANT, Grant, Tokens
from hetrdzv.protocol import routes
from hetrdzv.protocol.bounds import MAX_BODY_BYTES, MAX_JSON_VALUES
from hetrdzv.protocol.errors import (
    BodyTooLarge,
    ForeignHost,
    HetError,
    LeaderLost,
    RequestTooSlow,
    ServerStopping,
    Unauthorized,
    VersionMismatch,
)
from hetrdzv.service.polls.polls import Polls
from hetrdzv.service.service import Replica

logger = logging.getLogger(__name__)

BODY_TIMEOUT_S = 10.0
"""How long a body may take to arrive (seconds)."""

PUBLIC_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths that everybody may ask for; they tell nothing of any group."""

PATHS_WITHOUT_LEADER = frozenset({"/metrics", "/docs", "/openapi.json"})
"""Paths that every server answers; all others are for the leader."""

_VERSION_HEADERS = [(name.lower().encode(), value.encode()) for name, value in routes.VERSION_HEADERS.items()]


@dataclass(eq=False)
class AccessMiddleware:
    """ASGI middleware. Puts the grant of a request and the polls of the service that answers it into its `state`.

    What is for people goes to `pages`, where they sign in, and which sees to the read fence itself.
    """

    app: ASGIApp
    replica: Replica
    tokens: Tokens | None
    any_host: bool
    refusals: errors.RefusalLog
    pages: ASGIApp
    is_page: Callable[[str], object]
    polls: Polls | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = withheld = False
        polls: Polls | None = None

        async def reply(message: Message) -> None:
            nonlocal begun, withheld
            if message["type"] == "http.response.start":
                withheld = polls is not None and not self.replica.may_send_reply(polls.service)
                begun = not withheld
                message = {**message, "headers": [*message.get("headers", ()), *_VERSION_HEADERS]}
            if not withheld:
                await send(message)

        path: str = scope["path"]
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            state = scope["state"] = {**scope.get("state", {})}
            if path.startswith("/v1/"):
                _check_client_version(headers.get(routes.VERSION_HEADER.lower()))
            answers = self.app
            if path not in PUBLIC_PATHS:
                if self.tokens is None:
                    self._check_host(scope["method"], headers)
                if self.is_page(path):
                    answers = self.pages
                else:
                    state["grant"] = _find_grant(headers.get("authorization", ""), self.tokens)
                receive = await _read_body(scope, headers, receive)
                if answers is self.app and path not in PATHS_WITHOUT_LEADER:
                    polls = state["polls"] = self._current_polls()
            await answers(scope, receive, reply)
            if withheld:
                raise LeaderLost("this server lost the leadership while it worked on this; ask the others")
        except ClientDisconnect:  # in the middle of its body
            return
        except HetError as error:
            self.refusals.log(error, scope)
            refused: HetError = error
        except asyncio.CancelledError:  # the server is stopping and no longer waits for this request
            refused = ServerStopping("the server is stopping; try again in a moment")
        except Exception:
            logger.exception("request failed: %s %r", scope["method"], path)
            refused = HetError("the server failed on this request; its log says more")
        else:
            return
        polls = None  # a refusal tells nothing of any group
        if not begun:
            await errors.error_response(refused, Request(scope))(scope, receive, reply)

    def _current_polls(self) -> Polls:
        """The polls of the service that answers right now."""
        service = self.replica.service()
        if self.polls is None or self.polls.service is not service:
            self.polls = Polls(service)
        return self.polls

    def _check_host(self, method: str, headers: Mapping[str, str]) -> None:
        """Check what a server without tokens requires of all requests."""
        host, instead = headers.get("host", ""), "start hetserver with --token-file"
        if not self.any_host and not is_trusted_host(host):
            raise ForeignHost(
                "this server has no token, so it only answers to addresses and localhost: "
                f"use its address, or {instead}"
            )
        if method not in ("GET", "HEAD") and not is_same_origin(headers.get("origin"), host):
            raise ForeignHost(
                f"this server has no token, so it refuses browser requests from other sites: {instead}"
            )


def _check_client_version(given: str | None) -> None:
    """Let a request through whose client speaks our version, or does not say: a person's (curl, a browser)."""
    if given is None:
        return
    ours = f"this server speaks API version {routes.API_VERSION}"
    if not (given.isascii() and given.isdecimal() and len(given) <= 18):
        raise VersionMismatch(f"header {routes.VERSION_HEADER} is not a number; {ours}")
    if (number := int(given)) != routes.API_VERSION:
        older = "the client" if number < routes.API_VERSION else "this server"
        raise VersionMismatch(
            f"the client speaks API version {number}, but {ours}: {older} is older, upgrade hetrdzv there"
        )


def _find_grant(authorization: str, tokens: Tokens | None) -> Grant:
    """What a request may do."""
    if tokens is None:
        return ANONYMOUS_GRANT
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        raise Unauthorized("this server requires a token: set HET_TOKEN or give --token-file")
    grant = tokens.grant(given.strip())
    if grant is None:
        raise Unauthorized("this server does not accept the token: compare it with hetserver's token file")
    return grant


async def _read_body(scope: Scope, headers: Mapping[str, str], receive: Receive) -> Receive:
    """The channel of a request with its body read: nothing beyond the limit is ever held or parsed."""
    length = headers.get("content-length", "0")
    if length == "0" and "transfer-encoding" not in headers:
        return receive
    if length.isascii() and length.isdecimal() and int(length[:18]) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"body: it has {length[:18]} bytes; the limit is {MAX_BODY_BYTES}")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in Request(scope, receive).stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise BodyTooLarge(f"body: it has more than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise RequestTooSlow(f"body: it did not arrive within {BODY_TIMEOUT_S:g} s") from None
    if len(body) > MAX_JSON_VALUES and _has_too_many_values(body):
        raise BodyTooLarge(f"body: it has more than {MAX_JSON_VALUES} values")
    first: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again


def _has_too_many_values(body: bytearray) -> bool:
    """Whether a JSON text has more than `MAX_JSON_VALUES`: to say what is wrong with 1 MB takes 0.5 s."""
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * MAX_JSON_VALUES:  # a name and a text for each
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return sum(map(outside.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES
