"""Every error becomes problem details (RFC 9457): status, code, and who, what and what to do next."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hetrdzv.errors import HetError, InvalidRequest, InvalidSpec
from hetrdzv.wire import DirectiveReply, ProblemReply, SpecFields

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
        "description": "Not now; ask again after `Retry-After` seconds",
        "headers": {"Retry-After": {"schema": {"type": "integer"}, "required": True}},
    },
}
"""What every route about groups may answer beside what it is for; for the OpenAPI document."""


class UnknownParameter(InvalidRequest):
    """A query parameter that the route does not have.

    Attributes:
        field: its name.
    """

    def __init__(self, field: str, known: list[str]) -> None:
        names = ", ".join(known) or "none"
        super().__init__(f"{field[:80]}: there is no such query parameter here; those known are: {names}")
        self.field = field[:80]


async def known_parameters(request: Request) -> None:
    """A dependency of routes: a misspelled query parameter is refused by name, like a field of a body."""
    if not request.scope["query_string"]:
        return
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise UnknownParameter(name, known)


def problem_body(
    error: HetError, *, field: str | None = None, directive: DirectiveReply | None = None
) -> dict[str, Any]:
    """The problem details of an error."""
    return _body(error.status, error.code, str(error), field, directive)


def _body(
    status: int, code: str, detail: str, field: str | None = None, directive: DirectiveReply | None = None
) -> dict[str, Any]:
    problem = ProblemReply(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        field=field,
        directive=directive,
    )
    return problem.model_dump(mode="json", exclude_none=True)


_REASONS = {
    "json_invalid": "it is not JSON",
    "missing": "it is missing",
    "model_attributes_type": "it must be a JSON object, sent with Content-Type: application/json",
    "extra_forbidden": "there is no such field",
    "string_unicode": "it holds half a surrogate pair, which is no character",
}
"""Plainer words for some of pydantic's."""


def _response(body: dict[str, Any], headers: dict[str, str] | None = None) -> JSONResponse:
    if body["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        headers = {**(headers or {}), "Retry-After": "1"}
    return JSONResponse(body, body["status"], media_type=MEDIA_TYPE, headers=headers)


def install(app: FastAPI) -> None:
    """Register the handlers that turn errors into problem details."""

    @app.exception_handler(HetError)
    async def refused(request: Request, error: HetError) -> JSONResponse:
        directive = getattr(request.state, "directive", None)
        return _response(problem_body(error, field=_field_of(error), directive=directive))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first, *others = error.errors()
        field = _field_at(first)
        reason = _REASONS.get(first["type"], first["msg"])
        given = first.get("input")
        shown = ""
        if isinstance(given, str | int | float) and first["type"] != "extra_forbidden":
            shown = f" (given: {given!r:.80})"
        more = f"; also wrong: {', '.join(_field_at(other) for other in others[:8])}" if others else ""
        return _response(
            _body(InvalidRequest.status, InvalidRequest.code, f"{field}: {reason}{shown}{more}", field)
        )

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        path = request.url.path[:200]
        code, detail = {
            400: ("invalid_request", "body: it cannot be read as JSON"),
            404: ("no_such_route", f"there is nothing at {path}; the routes are listed at /docs"),
            405: (
                "method_not_allowed",
                f"{path} does not take {request.method}; the routes are listed at /docs",
            ),
        }.get(error.status_code, ("http_error", str(error.detail)))
        field = "body" if error.status_code == 400 else None
        return _response(_body(error.status_code, code, detail, field), dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:  # the gate logs it
        return _response(problem_body(bug_report()))


def bug_report() -> HetError:
    """What a client is told of a bug: nothing of its inside."""
    return HetError("the server failed on this request; its log says more")


def _field_at(error: Any) -> str:
    """The field that an error of pydantic's is about, without where the request carries it."""
    place, *names = error["loc"]
    if error["type"] == "json_invalid" or not names:
        return str(place)
    return ".".join(str(name)[:80] for name in names if name != "[key]")


def _field_of(error: HetError) -> str | None:
    if isinstance(error, UnknownParameter):
        return error.field
    if isinstance(error, InvalidSpec):  # its message begins with the field
        name = str(error).partition(" ")[0]
        return name if name in SpecFields.model_fields else None
    return None
