"""What every request passes before a route sees it: API version, access, limits, size of the body. Plain ASGI."""

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Self
from urllib.parse import quote, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hetrdzv import access
from hetrdzv.api.admission import Admission, Bodies
from hetrdzv.api.dispatch import Dispatcher
from hetrdzv.api.permits import OPEN_PATHS, Permit
from hetrdzv.api.problems import bug_report, problem_body
from hetrdzv.errors import (
    BodyTooLarge,
    CertificateRequired,
    ForeignHost,
    HetError,
    LeaderLost,
    NotLeader,
    RequestTooSlow,
    ServerStopping,
    Unauthorized,
    VersionMismatch,
)
from hetrdzv.tokens import EVERYTHING, Tokens
from hetrdzv.wire import API_VERSION, MAX_BODY_BYTES, VERSION_HEADER

logger = logging.getLogger(__name__)

GROUP_PATHS = "/v1/"
"""How the paths of requests about groups begin: the leader answers them."""

CERTIFIED = "hetrdzv.certified"
"""In the `state` of a request's scope: whether its connection showed a client certificate that we know."""

CHUNK_BYTES = 1 << 16
"""A reply is handed on in pieces of this size, each when the client has taken enough of those before."""

BODY_TIMEOUT_S = 10.0
"""How long a body may take to come (seconds); none is larger than `MAX_BODY_BYTES`."""


EVERYBODY = Permit(EVERYTHING)
"""Without tokens."""


class Gate:
    """ASGI middleware that refuses what must not reach a route, and puts the API version into every reply.

    Args:
        dispatcher: where requests about groups are answered.
        tokens: of which every request must bear one; None: no token is asked for.
        admission: what is under way.
        any_host: whether a server without a token answers to every host name (`--insecure`).
        certified: whether clients have to show a certificate.
    """

    def __init__(
        self,
        app: ASGIApp,
        dispatcher: Dispatcher,
        *,
        tokens: Tokens | None,
        admission: Admission,
        any_host: bool,
        certified: bool,
    ) -> None:
        self._app = app
        self._dispatcher = dispatcher
        self._tokens = tokens
        self._admission = admission
        self._any_host = any_host
        self._certified = certified

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        answer = _Answer(send)
        try:
            if scope["path"].startswith("/v1/"):
                _check_version(headers.get(VERSION_HEADER.lower()))
            if scope["path"] not in OPEN_PATHS:
                entry = self._enter(scope, headers)
                entry.check(scope["method"], scope["path"])
                scope = entry.put_into(scope)
            elif scope["method"] == "HEAD":
                scope, answer.without_body = {**scope, "method": "GET"}, True
            go_on = partial(self._pass_on, scope, headers, receive, answer)
            await self._admission.admit(scope, headers.get("accept", ""), go_on)
        except HetError as error:
            await _refuse(answer, error, scope)
        except asyncio.CancelledError:  # the server stops, and waits no longer for the rest of this request
            if not answer.begun:
                stopping = ServerStopping("the server is stopping; ask again in a moment")
                await _refuse(answer, stopping, scope)
        except Exception:
            logger.exception("a request failed: %s %r", scope["method"], scope["path"])
            if not answer.begun:
                await _refuse(answer, bug_report(), scope)

    async def _pass_on(
        self, scope: Scope, headers: dict[str, str], receive: Receive, answer: "_Answer"
    ) -> None:
        with _Body(headers, receive, self._admission.bodies) as body:
            if not await body.came():
                return
            if scope["path"].startswith(GROUP_PATHS):
                scope = self._dispatcher.assign(scope)
                answer.may_begin = lambda: self._dispatcher.still_answers(scope)
            await self._app(scope, body.receive, answer)
        if answer.withheld:
            raise LeaderLost("this server ceased to lead while it worked on this; ask the others")

    def _enter(self, scope: Scope, headers: dict[str, str]) -> Permit:
        """What a request may do.

        Raises:
            CertificateRequired, Unauthorized, ForeignHost: nothing at all.
        """
        if self._certified and not scope.get("state", {}).get(CERTIFIED):
            raise CertificateRequired(
                "this server asks for a client certificate: give --client-cert and --client-key"
            )
        if self._tokens is not None:
            return _check_token(headers.get("authorization", ""), self._tokens)
        host = headers.get("host", "")
        if not self._any_host and not access.trusted_host(host):
            raise ForeignHost(
                "this server has no token, so it answers to addresses and localhost only: "
                "use its address, or start hetserver with --token-file"
            )
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD") and _netloc(origin) != host.lower():
            raise ForeignHost(
                "this server has no token, so it takes no orders from other sites' pages in a browser: "
                "start hetserver with --token-file"
            )
        return EVERYBODY


class _Answer:
    """The way back to the client: adds the API version, knows whether a reply has begun.

    Attributes:
        may_begin: asked just before a reply begins; one that may not is withheld.
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
            header = (VERSION_HEADER.lower().encode(), str(API_VERSION).encode())
            message = {**message, "headers": [*message.get("headers", ()), header]}
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
        raise Unauthorized("this server asks for a token: set HET_TOKEN or give --token-file")
    grant = tokens.find(given)
    if grant is None:
        raise Unauthorized("the token is not this server's: compare it with the file that hetserver uses")
    return Permit(grant, given, tokens)


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin.lower()).netloc
    except ValueError:
        return None


def _check_version(given: str | None) -> None:
    """A request without the header (curl, a browser) is taken as of this version."""
    if given is None:
        return
    version = _whole(given)
    if version is None:
        raise VersionMismatch(
            f"header {VERSION_HEADER} is no number; this server speaks API version {API_VERSION}"
        )
    if version != API_VERSION:
        older = "the client" if version < API_VERSION else "this server"
        raise VersionMismatch(
            f"the client speaks API version {version}, this server {API_VERSION}: {older} is older, "
            f"upgrade hetrdzv there"
        )


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


class _Body:
    """The whole body of a request (it is small), taken so that none over the limit is ever held or parsed."""

    def __init__(self, headers: dict[str, str], receive: Receive, held: Bodies) -> None:
        self._headers = headers
        self._receive = receive
        self._held = held
        self._size = 0
        self._first: list[Message] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.grow(self._size, 0)

    async def receive(self) -> Message:
        """Gives the application the body at once, then what comes after it."""
        return self._first.pop() if self._first else await self._receive()

    async def came(self) -> bool:
        """Take it; False: the client went away before it had said everything.

        Raises:
            BodyTooLarge, RequestTooSlow, Busy: it is not taken.
        """
        length = self._headers.get("content-length", "0")
        if (_whole(length) or 0) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"body: it has {length} bytes; at most {MAX_BODY_BYTES} are read")
        if length == "0" and "transfer-encoding" not in self._headers:
            return True
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                more = True
                while more:
                    message = await self._receive()
                    if message["type"] != "http.request":
                        return False
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > MAX_BODY_BYTES:
                        raise BodyTooLarge(f"body: it has more than {MAX_BODY_BYTES} bytes")
                    self._held.grow(self._size, len(body))
                    self._size = len(body)
        except TimeoutError:
            raise RequestTooSlow(
                f"body: it did not come within {BODY_TIMEOUT_S:g} s; send it again"
            ) from None
        self._first = [{"type": "http.request", "body": bytes(body), "more_body": False}]
        return True


async def _refuse(answer: _Answer, error: HetError, scope: Scope) -> None:
    answer.withheld = False
    field = "body" if isinstance(error, BodyTooLarge | RequestTooSlow) else None
    body = json.dumps(problem_body(error, field=field)).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, RequestTooSlow):
        headers.append((b"connection", b"close"))
    if isinstance(error, NotLeader):
        headers.append((b"location", _elsewhere(error.leader, scope)))
    if error.status == 503:
        headers.append((b"retry-after", b"1"))
    await answer({"type": "http.response.start", "status": error.status, "headers": headers})
    await answer({"type": "http.response.body", "body": body})


def _elsewhere(server: str, scope: Scope) -> bytes:
    """The URL of a request at another server."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope.get("query_string", b"")
    return server.encode() + path + (b"?" + query if query else b"")
