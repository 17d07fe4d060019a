"""The OpenAPI document: FastAPI's, with what it gets wrong about this API corrected (tests/fuzz checks it).

The only module that imports FastAPI, and imported when somebody asks for the document: both take a while.
"""

import inspect
from collections.abc import Callable
from functools import cache
from threading import Lock
from types import NoneType
from typing import Annotated, Any

from fastapi import Header, Path, Query
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from hetrdzv import __version__
from hetrdzv.api.bound import Bound, Table
from hetrdzv.api.problems import MEDIA_TYPE
from hetrdzv.api.reading import PATH_KINDS
from hetrdzv.protocol.http.route import Route, Size
from hetrdzv.protocol.pages import ProblemReply

_RESPONSES: dict[int | str, dict[str, Any]] = {
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
"""What every route about groups may answer besides its own reply."""

_OF_THE_SERVER = {code: _RESPONSES[code] for code in ("4XX", 503)}
"""The same of routes about the server itself."""

_making = Lock()


def document(table: Table) -> dict[str, Any]:
    """The document of an application's routes; threads that ask at the same time wait for one to make it."""
    with _making:
        return _document(table)


@cache
def _document(table: Table) -> dict[str, Any]:
    routes = [_described(row) for row in table.rows]
    made = get_openapi(title="hetrdzv", version=__version__, routes=routes)
    _correct_unions(made)
    for operations in made["paths"].values():
        for operation in operations.values():
            _correct_errors(operation["responses"])
            _correct_parameters(operation.get("parameters", []))
    return made


# -- what FastAPI makes it from ------------------------------------------------------------------------------


def _described(row: Bound) -> APIRoute:
    """A route as FastAPI describes it; nobody sends it a request."""
    route, handler = row.route, row.handler
    return APIRoute(
        route.path,
        _signed(row),
        methods=[route.method],
        tags=[handler.__module__.rpartition(".")[2]],
        status_code=204 if route.reply is NoneType else 200,
        response_model=None if route.reply in (NoneType, str) else route.reply,
        responses=_responses(route),
        include_in_schema=not route.page,
        response_class=Response if route.reply is str else JSONResponse,
    )


def _responses(route: Route[Any]) -> dict[int | str, dict[str, Any]]:
    """What a route may answer, as far as its reply does not tell that."""
    errors = _RESPONSES if route.path.startswith("/v1/") else _OF_THE_SERVER
    own: dict[int | str, dict[str, Any]] = {}
    if route.reply is str:
        own[200] = {"content": {"text/plain": {}}}
    elif route.size is Size.STREAM:
        own[200] = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {**errors, **own}


def _signed(row: Bound) -> Callable[[], None]:
    """A function from whose signature FastAPI knows what a route takes; nobody calls it."""
    takes: dict[str, tuple[Any, Any]] = {
        name: (Annotated[PATH_KINDS[name], Path()], ...) for name in row.route.names
    }
    for parameter in row.route.takes:
        about = (Header if parameter.header else Query)(description=parameter.about or None)
        takes[parameter.name] = Annotated[parameter.kind, about], parameter.default
    if row.route.body is not None:
        default = ... if row.route.needs_body else row.route.body()
        takes["body"] = row.route.body, default

    def signed() -> None: ...

    signed.__name__, signed.__doc__ = row.handler.__name__, row.handler.__doc__
    signed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is ... else default,
                annotation=kind,
            )
            for name, (kind, default) in takes.items()
        ]
    )
    return signed


# -- what it gets wrong --------------------------------------------------------------------------------------


def _correct_unions(part: Any) -> None:
    """What is of no known kind is `Other`, whose schema fits all kinds: so any of the schemas, not exactly one."""
    if isinstance(part, dict):
        if {"$ref": "#/components/schemas/Other"} in part.get("oneOf", ()):
            part["anyOf"] = part.pop("oneOf")
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            _correct_unions(inner)


def _correct_errors(responses: dict[str, dict[str, Any]]) -> None:
    """Errors are problem details; FastAPI gives them the media type of the route's reply."""
    for status, response in responses.items():
        content = response.get("content", {})
        if not status.startswith("2") and "application/json" in content:
            content[MEDIA_TYPE] = content.pop("application/json")


def _correct_parameters(parameters: list[dict[str, Any]]) -> None:
    """Optional parameters may be left out, but a URL or a header has no null."""
    for parameter in parameters:
        schema = parameter["schema"]
        options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
        if len(options) == 1:
            del schema["anyOf"]
            schema |= options[0]
