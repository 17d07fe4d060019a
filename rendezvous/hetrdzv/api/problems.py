"""Errors as problem details (RFC 9457), written in one place for every layer of the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from hetrdzv.api.lenient import ignored
from hetrdzv.api.refused import client_of
from hetrdzv.protocol import versions
from hetrdzv.protocol.errors import (
    BodyTooLarge,
    HetError,
    InvalidRequest,
    InvalidSpec,
    SpecConflict,
    Unauthorized,
)
from hetrdzv.protocol.wire import ConflictReply, DirectiveReply, ProblemReply

MEDIA_TYPE = "application/problem+json"

RESPONSES: dict[int | str, dict[str, Any]] = {
    307: {
        "model": ProblemReply,
        "description": "Another server leads: `Location`",
        "headers": {"Location": {"schema": {"type": "string"}, "required": True}},
    },
    422: {"model": ProblemReply, "description": "A field is missing, malformed or out of range"},
    "4XX": {"model": ProblemReply, "description": "Refused; `code` and `detail` say why"},
    503: {
        "model": ProblemReply,
        "description": "Not now; try again after `Retry-After` seconds",
        "headers": {"Retry-After": {"schema": {"type": "integer"}, "required": True}},
    },
}
"""What every route about groups may answer besides its own reply, for the OpenAPI document."""


class UnknownParameter(InvalidRequest):
    """A query parameter that the route does not have.

    Attributes:
        field: its name.
    """

    def __init__(self, field: str, known: list[str]) -> None:
        names = ", ".join(known) or "none"
        super().__init__(f"{field[:80]}: there is no such query parameter here; known parameters: {names}")
        self.field = field[:80]


class UnknownKind(InvalidRequest):
    """A field of a body with an unknown value.

    Attributes:
        field: its name.
    """

    def __init__(self, field: str, given: str, known: list[str]) -> None:
        *most, last = map(repr, map(str, known))
        super().__init__(f"{field}: Input should be {', '.join(most)} or {last} (given: {given!r:.80})")
        self.field = field


# -- writing them --------------------------------------------------------------------------------------------

_HEADERS: Mapping[type[HetError], Mapping[str, str]] = {
    Unauthorized: {"www-authenticate": "Bearer"},
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


def answer(error: HetError, *, field: str | None = None, directive: DirectiveReply | None = None) -> Answer:
    """The answer to a request that an error ended."""
    return _answer(_problem_of(error, field, directive), _HEADERS.get(type(error), {}))


def problem_body(
    error: HetError, *, field: str | None = None, directive: DirectiveReply | None = None
) -> dict[str, Any]:
    """The problem details of an error."""
    return _problem_of(error, field, directive).model_dump(mode="json", exclude_none=True)


def bug_report() -> HetError:
    """The error sent for a bug: it reveals nothing about the server's internals."""
    return HetError("the server failed on this request; its log says more")


def _problem(
    status: int,
    code: str,
    detail: str,
    field: str | None = None,
    directive: DirectiveReply | None = None,
    conflict: ConflictReply | None = None,
) -> ProblemReply:
    return ProblemReply(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        field=field,
        directive=directive,
        conflict=conflict,
    )


def _problem_of(error: HetError, field: str | None, directive: DirectiveReply | None) -> ProblemReply:
    conflict = ConflictReply.model_validate(error) if isinstance(error, SpecConflict) else None
    return _problem(error.status, error.code, str(error), field, directive, conflict)


def _answer(problem: ProblemReply, headers: Mapping[str, str]) -> Answer:
    body = problem.model_dump_json(exclude_none=True).encode()
    all_headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **headers}
    if problem.status == HTTPStatus.SERVICE_UNAVAILABLE:
        all_headers["retry-after"] = "1"
    return Answer(problem.status, all_headers, body)


# -- errors in routes ----------------------------------------------------------------------------------------


async def known_parameters(request: Request) -> None:
    """A dependency of routes: refuses an unknown query parameter by name, as bodies do with fields."""
    if not request.scope["query_string"]:
        return
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name in known:
            continue
        if not versions.is_newer(request.headers):
            raise UnknownParameter(name, known)
        ignored(f"query parameter '{name[:80]}'")


_REASONS = {
    "json_invalid": "it is not JSON",
    "missing": "it is missing",
    "model_attributes_type": "it must be a JSON object, sent with Content-Type: application/json",
    "extra_forbidden": "there is no such field",
    "string_unicode": "it contains half a surrogate pair, which is not a character",
}
"""Plainer words for some of pydantic's errors."""


def install(app: FastAPI) -> None:
    """Register the handlers that turn errors into problem details."""

    @app.exception_handler(HetError)
    async def refused(request: Request, error: HetError) -> Response:
        request.app.state.refusals.note(error, client_of(request.scope), request.method, request.url.path)
        directive = getattr(request.state, "directive", None)
        return answer(error, field=field_of(error), directive=directive).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first, *others = error.errors()
        field = _field_at(first)
        reason = _REASONS.get(first["type"], first["msg"])
        given = first.get("input")
        shown = ""
        if isinstance(given, str | int | float) and first["type"] != "extra_forbidden":
            shown = f" (given: {given!r:.80})"
        more = f"; also wrong: {', '.join(_field_at(other) for other in others[:8])}" if others else ""
        return answer(InvalidRequest(f"{field}: {reason}{shown}{more}"), field=field).response()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:200]
        code, detail = {
            400: ("invalid_request", "body: it cannot be read as JSON"),
            404: ("no_such_route", f"there is nothing at {path}; see /docs for all routes"),
            405: (
                "method_not_allowed",
                f"{path} does not support {request.method}; see /docs for all routes",
            ),
        }.get(error.status_code, ("http_error", str(error.detail)))
        field = "body" if error.status_code == 400 else None
        problem = _problem(error.status_code, code, detail, field)
        return _answer(
            problem, {name.lower(): value for name, value in (error.headers or {}).items()}
        ).response()

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:  # the gate logs it
        return answer(bug_report()).response()


def _field_at(error: Any) -> str:
    """The field that an error of pydantic's is about, without the part of the request that it is in."""
    place, *names = error["loc"]
    if error["type"] == "json_invalid" or not names:
        return str(place)
    return ".".join(str(name)[:80] for name in names if name != "[key]")


def field_of(error: HetError) -> str | None:
    """The part of a request that an error is about, if it is one."""
    if isinstance(error, BodyTooLarge):
        return "body"
    return error.field if isinstance(error, UnknownParameter | UnknownKind | InvalidSpec) else None
