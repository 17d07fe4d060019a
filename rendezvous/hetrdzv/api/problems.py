"""Errors as problem details (RFC 9457), written in one place for every layer of the server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api.refused import client_of
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import DirectiveReply
from hetrdzv.protocol.errors import (
    HetError,
    InvalidRequest,
    RequestTooSlow,
    SpecConflict,
    StaleRound,
    Unauthorized,
)
from hetrdzv.protocol.pages import ConflictReply, ProblemReply

MEDIA_TYPE = "application/problem+json"


class InvalidField(InvalidRequest):
    """A part of a request is missing, malformed, out of range or unknown."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}")
        self.field = field


class StaleReport(StaleRound):
    """A report about a round that is over.

    Attributes:
        directive: what the node has to do now.
    """

    def __init__(self, message: str, directive: DirectiveReply) -> None:
        super().__init__(message)
        self.directive = directive


# -- writing them --------------------------------------------------------------------------------------------

_HEADERS: Mapping[type[HetError], Mapping[str, str]] = {
    Unauthorized: {"www-authenticate": "Bearer"},
    RequestTooSlow: {"connection": "close"},  # whatever comes of it yet is not waited for
}
"""Headers that belong to an error."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An error as it is sent: the same whether a route, the gate or a connection refuses.

    Attributes:
        headers: with lower-case names, content type and length included.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def response(self) -> Response:
        """For a route."""
        return Response(self.body, self.status, dict(self.headers))


def answer(error: HetError, *, field: str | None = None) -> Answer:
    """The answer to a request that an error ended; `field`: the part that it is about, where the error does not say."""
    return _answer(_problem_of(error, field), _HEADERS.get(type(error), {}))


def bug_report() -> HetError:
    """The error sent for a bug: it reveals nothing about the server's internals."""
    return HetError("the server failed on this request; its log says more")


def _problem(status: int, code: str, detail: str, **more: Any) -> ProblemReply:
    return ProblemReply(title=HTTPStatus(status).phrase, status=status, detail=detail, code=code, **more)


def _problem_of(error: HetError, field: str | None = None) -> ProblemReply:
    conflict = codec.picked(ConflictReply, error) if isinstance(error, SpecConflict) else None
    directive = error.directive if isinstance(error, StaleReport) else None
    return _problem(
        error.status,
        error.code,
        str(error),
        field=field or error.field,
        directive=directive,
        conflict=conflict,
    )


def _answer(problem: ProblemReply, headers: Mapping[str, str]) -> Answer:
    body = codec.write(problem)
    all_headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **headers}
    if problem.status == HTTPStatus.SERVICE_UNAVAILABLE:
        all_headers["retry-after"] = "1"
    return Answer(problem.status, all_headers, body)


# -- errors in routes ----------------------------------------------------------------------------------------


def install(app: Starlette, refuse: Callable[[HetError, Request], Response]) -> None:
    """Register the handlers that turn errors into answers."""

    async def refused(request: Request, error: HetError) -> Response:
        request.app.state.refusals.note(error, client_of(request.scope), request.method, request.url.path)
        return refuse(error, request)

    async def http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:200]
        code, detail = {
            404: ("no_such_route", f"there is nothing at {path}; see /docs for all routes"),
            405: (
                "method_not_allowed",
                f"{path} does not support {request.method}; see /docs for all routes",
            ),
        }.get(error.status_code, ("http_error", str(error.detail)))
        problem = _problem(error.status_code, code, detail)
        return _answer(
            problem, {name.lower(): value for name, value in (error.headers or {}).items()}
        ).response()

    async def bug(request: Request, error: Exception) -> Response:  # the gate logs it
        return answer(bug_report()).response()

    app.add_exception_handler(HetError, refused)  # type: ignore[arg-type]  # Starlette's type knows no subclasses
    app.add_exception_handler(HTTPException, http_error)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, bug)
