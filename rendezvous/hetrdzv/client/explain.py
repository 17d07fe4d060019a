"""Turns transport errors and unusable answers into errors that a person understands."""

import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import TypeVar

import httpx

from hetrdzv.auth.tls import ClientTls, explain_tls_error, is_plaintext_reply
from hetrdzv.client.urls import make_port_hint
from hetrdzv.protocol import codec, routes
from hetrdzv.protocol.errors import (
    HetError,
    LeaderLost,
    NotHetserver,
    NotServing,
    NotTrusted,
    Problem,
    Unreachable,
    VersionMismatch,
)

_R = TypeVar("_R")

TLS_HINT = "; if it speaks TLS, give https://"
"""Of a server that was given as http:// and does not answer as one."""

CONNECTION_REFUSED = "connection refused"


class OutcomeUnknown(NotServing):
    """A server lost its leadership while it worked on the request, which may or may not have taken effect."""


def find_unusable_error(response: httpx.Response, server: str) -> HetError | None:
    """Why an answer is no reply to the request, so that another server has to be asked; None if it is one.

    Redirects (3xx) are left to the caller, which knows the other servers.
    """
    status, version = response.status_code, response.headers.get(routes.VERSION_HEADER)
    if version is None:
        if status in (502, 503, 504):
            return Unreachable(f"HTTP {status} from a proxy in front of it")
        what = response.headers.get("Content-Type", "no content type").split(";")[0].strip()
        maybe_tls = status == 400 and not server.startswith("https://")  # as a proxy that speaks TLS answers
        hint = TLS_HINT if maybe_tls else make_port_hint(server)
        return NotHetserver(
            f"{server} answered, but is not a hetserver (HTTP {status}, {what[:100]}): check --server{hint}"
        )
    if version != str(routes.API_VERSION):
        older = (
            "the server" if version.isdecimal() and int(version[:20]) < routes.API_VERSION else "this client"
        )
        return VersionMismatch(
            f"{server} speaks version {version[:20]} of the API and this client version {routes.API_VERSION}: "
            f"{older} is older, upgrade it"
        )
    if status == 503:
        problem = read_problem(response)
        kind = OutcomeUnknown if problem.code == LeaderLost.code else NotServing
        return kind(f"{problem} (HTTP 503)")
    return None


def explain_transport_error(
    error: httpx.TransportError, server: str, limits: httpx.Timeout, tls: ClientTls, *, answered_before: bool
) -> HetError:
    """A transport error in words that a person understands; `answered_before` by that server rules some causes out."""
    with_tls = server.startswith("https://")
    tls_hint = "" if with_tls else TLS_HINT
    no_port = "" if answered_before else make_port_hint(server)
    if isinstance(error, httpx.ProtocolError) and not _is_disconnect(error):
        return NotHetserver(
            f"{server} answered, but is not a hetserver (no HTTP): check --server{no_port or tls_hint}"
        )
    if isinstance(error, httpx.TimeoutException):
        if isinstance(error, httpx.ConnectTimeout):
            return Unreachable(f"timed out after {limits.connect:g} s{no_port}")
        return Unreachable(f"timed out after {limits.read:g} s")
    for cause in walk_causes(error):
        if not isinstance(cause, ssl.SSLError):
            continue
        if is_plaintext_reply(cause) and isinstance(error, httpx.ConnectError) and not answered_before:
            return NotHetserver(f"{server} answered, but does not speak TLS: use http://{no_port}")
        if cause.reason != "APPLICATION_DATA_AFTER_CLOSE_NOTIFY":
            # a side that does not trust the other's certificate never will; other errors may pass
            refuses = isinstance(cause, ssl.SSLCertVerificationError) or "ALERT" in (cause.reason or "")
            kind = NotTrusted if refuses else Unreachable
            return kind(explain_tls_error(cause, tls))
    if reason := explain_failed_connect(error):
        return Unreachable(reason + (no_port if reason == CONNECTION_REFUSED else ""))
    hint = "" if answered_before else tls_hint
    if with_tls and tls.cert is not None and not answered_before:
        hint = "; is our --client-cert signed by the authority in its --tls-client-ca?"
    return Unreachable(f"connection cut before the answer came{hint}")


def explain_failed_connect(error: BaseException) -> str:
    """Why there is no connection, in a few words; empty: there was one, or it is unknown."""
    if not isinstance(error, httpx.ConnectError):
        return ""
    for cause in walk_causes(error):
        if isinstance(cause, socket.gaierror):
            return (
                "host name lookup failed for now" if cause.errno == socket.EAI_AGAIN else "host name unknown"
            )
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno).lower()
    return "no connection"


def combine_errors(failures: Mapping[str, HetError]) -> HetError:
    """The error to raise when no server gave a usable answer; `failures` says why, by URL."""
    strangers = [error for error in failures.values() if not isinstance(error, Unreachable)]
    if len(strangers) == len(failures):
        return strangers[0]
    reasons = [
        str(error) if error in strangers else f"{server}: {error}" for server, error in failures.items()
    ]
    if all(isinstance(error, NotTrusted) for error in failures.values()):
        return NotTrusted(f"no TLS connection ({'; '.join(reasons)})")
    if not any(isinstance(error, NotServing) for error in failures.values()):
        return Unreachable(f"no server answers ({'; '.join(reasons)})")
    if len(reasons) == 1:
        return NotServing(reasons[0])
    return NotServing(f"no server can do this now ({'; '.join(reasons)})")


def read_problem(response: httpx.Response) -> Problem:
    """The error that a server answered with, whatever is in its body."""
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


def parse_reply(kind: type[_R], data: bytes | str, server: str) -> _R:
    """A reply from its JSON, or `NotHetserver` raised."""
    try:
        return codec.parse_json(kind, data, unknown="ignore")
    except codec.MalformedJson as error:
        first = error.mistakes[0]
        what = f"{kind.__name__} ({first.field or 'the whole of it'}: {first.text})"
        raise NotHetserver(
            f"{server} answered, but not with a {what}: check --server, or upgrade hetrdzv here if it is newer"
        ) from None


def _is_disconnect(error: httpx.ProtocolError) -> bool:
    """Whether the other side closed the connection, which httpx reports as a violation of the protocol."""
    return str(error).startswith(("Server disconnected", "peer closed connection"))


def walk_causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and everything that led to it, depth first."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from walk_causes(inner)
    before = error.__cause__ or error.__context__
    if before is not None:
        yield from walk_causes(before)
