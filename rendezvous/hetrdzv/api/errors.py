"""Every error as problem details (RFC 9457): what routes raise, and what no route takes."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from time import monotonic
from typing import Any, cast
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.protocol import codec
from hetrdzv.protocol.codec import FieldError
from hetrdzv.protocol.errors import HetError, InvalidRequest, NotLeader, Problem
from hetrdzv.protocol.replies import ProblemReply

logger = logging.getLogger(__name__)

PROBLEM_MEDIA_TYPE = "application/problem+json"


def make_invalid_request_error(wrong: Sequence[FieldError]) -> InvalidRequest:
    """What is wrong, as one error: all of the first mistake, and where the others are. Never what was given."""
    first, *others = wrong
    more = f"; also wrong: {', '.join(mistake.field or 'body' for mistake in others[:8])}" if others else ""
    shown = f" (given: {first.given!r:.80})" if isinstance(first.given, int | float) else ""
    field = first.field or "body"
    return InvalidRequest(f"{field}: {first.text}{shown}{more}", field)


def make_problem_reply(error: HetError) -> ProblemReply:
    """An error as it is sent."""
    return ProblemReply(
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        detail=str(error),
        code=error.code,
        field=error.field,
        directive=error.directive,
        conflict=error.conflict,
    )


def error_response(error: HetError, request: Request) -> Response:
    """The answer to a request that an error ended."""
    response = Response(
        codec.to_json(make_problem_reply(error)), error.status, error.headers, PROBLEM_MEDIA_TYPE
    )
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["retry-after"] = "1"
    if isinstance(error, NotLeader):
        response.headers["location"] = error.leader + requested_target(request)
    return response


def requested_target(request: Request) -> str:
    """The path of a request with its query, as it was sent."""
    path: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    query: bytes = request.scope["query_string"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


# -- the log of refusals, rate-limited: what a client does again and again must not fill it; never the token -----

REFUSAL_LOG_INTERVAL_S = 60.0
"""The same refusal of the same client is logged once in this time (seconds)."""

MAX_LOGGED_REFUSALS = 200
"""How many refusals are logged in this time."""

ACCESS_ERROR_CODES = frozenset({"unauthorized", "forbidden", "foreign_host", "version_mismatch"})
"""Refusals that say that a client may not speak to this server: warnings. The others are information."""

ROUTINE_ERROR_CODES = frozenset(
    {"stale_round", "unknown_group", "not_found", "not_leader", "group_finishing"}
)
"""What goes wrong in every job, or is asked again at once by itself."""


class RefusalLog:
    """Refusals that were logged lately, by client address and code."""

    def __init__(self) -> None:
        self._until = 0.0
        self._logged: set[tuple[str, str]] = set()

    def log(self, error: HetError, scope: Mapping[str, Any]) -> None:
        """Log a refusal, unless the same one of this client's was logged lately."""
        if not 400 <= error.status < 500 or error.code in ROUTINE_ERROR_CODES:
            return
        if (now := monotonic()) >= self._until:
            self._until = now + REFUSAL_LOG_INTERVAL_S
            self._logged.clear()
        client = scope["client"][0] if scope.get("client") else "an unknown address"
        if (client, error.code) in self._logged or len(self._logged) >= MAX_LOGGED_REFUSALS:
            return
        self._logged.add((client, error.code))
        level = logging.WARNING if error.code in ACCESS_ERROR_CODES else logging.INFO
        facts = {"client": client, "code": error.code, "status": error.status}
        path = scope["path"][:200]
        logger.log(
            level, "refused %s %s from %s: %s", scope["method"], path, client, error, extra={"facts": facts}
        )


# -- handlers --------------------------------------------------------------------------------------------------


def install_error_handlers(app: FastAPI) -> None:
    """Register the handlers that turn errors into answers."""

    @app.exception_handler(HetError)
    async def answer_refusal(request: Request, error: HetError) -> Response:
        request.app.state.refusals.log(error, request.scope)
        return error_response(error, request)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(request: Request, error: RequestValidationError) -> Response:
        found = [
            codec.make_field_error(cast(ErrorDetails, {**one, "loc": one["loc"][1:]}))
            for one in error.errors()
        ]
        return await answer_refusal(request, make_invalid_request_error(found))

    @app.exception_handler(HTTPException)
    async def answer_http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:200]
        code, detail = {
            404: ("no_such_route", f"there is nothing at {path}; see /docs for all routes"),
            405: (
                "method_not_allowed",
                f"{path} does not support {request.method}; see /docs for all routes",
            ),
        }.get(error.status_code, ("http_error", str(error.detail)))
        response = error_response(Problem(error.status_code, code, detail), request)
        response.headers.update(error.headers or {})
        return response
