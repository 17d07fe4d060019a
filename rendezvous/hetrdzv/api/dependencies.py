"""What routes depend on: the service that answers, what a request may do, bodies and parameters."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from fastapi.routing import APIRoute
from pydantic import ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api.errors import PROBLEM_MEDIA_TYPE, make_invalid_request_error
from hetrdzv.auth.tokens import Role
from hetrdzv.protocol import bounds, codec
from hetrdzv.protocol.errors import InvalidRequest
from hetrdzv.service.service import Service

# -- who answers, and who asks -------------------------------------------------------------------------------


async def get_service(request: Request) -> Service:
    """The service that answers a request."""
    service: Service = request.state.polls.service
    return service


CurrentService = Annotated[Service, Depends(get_service)]


@dataclass(frozen=True)
class Requires:
    """The permission of a route: the token must have a role, and cover the group that the path names."""

    role: Role
    filters_by_scope: bool = False  # the route names no group, and shows those in the scope of the token

    async def __call__(self, request: Request) -> None:
        group_id, asked = request.path_params.get("group_id"), f"{request.method} {request.scope['path']}"
        request.state.grant.check(self.role, group_id, asked, filters_by_scope=self.filters_by_scope)


# -- bodies --------------------------------------------------------------------------------------------------


class _JsonBody(bytes):
    """A body that its sender says is JSON."""


class _JsonRequest(Request):
    """A request whose body is left for its type to read."""

    async def json(self) -> Any:
        return _JsonBody(await self.body())


class JsonRoute(APIRoute):
    """A route whose body is validated from its bytes.

    FastAPI would parse it with the standard library first, which takes NaN, 1e999 and half characters; and pydantic
    would then take "1" for 1. Besides, it is twice as fast.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if (reply := options.get("response_model")) is not None:
            # FastAPI reads it for its document only, once that is asked for: routes return responses
            reply.__pydantic_config__ = ConfigDict(defer_build=True)
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


@dataclass(frozen=True)
class BodyReader:
    """Marks the type of a body: how it is read from the bytes of a request."""

    unknown: codec.UnknownFields  # what becomes of unknown fields

    def __get_pydantic_core_schema__(self, kind: Any, schema_of: GetCoreSchemaHandler) -> CoreSchema:
        def read(data: Any, handler: Any) -> Any:
            if not isinstance(data, bytes):  # a default
                return data
            if not isinstance(data, _JsonBody):
                what = "body: it must be JSON, sent with Content-Type: application/json"
                raise InvalidRequest(what, "body")
            try:
                return codec.parse_json(kind, data, unknown=self.unknown)
            except codec.MalformedJson as error:
                raise make_invalid_request_error(error.mistakes) from None

        return core_schema.no_info_wrap_validator_function(read, schema_of(kind))


AGENTS, PEOPLES = BodyReader("ignore"), BodyReader("forbid")
"""Agents may be newer than this server; a person's unknown field is a typo."""


# -- parameters ----------------------------------------------------------------------------------------------

WaitQuery = Annotated[float, Query(ge=0, le=3600, description="Seconds; at most half the lease.")]
NodesQuery = Annotated[
    Literal["all", "none"], Query(description="Whether the reply shows the nodes of the group.")
]
RanksQuery = Annotated[
    tuple[bounds.Rank, ...],
    Query(max_length=128, description="Whose (global rank), may be repeated; default: all."),
]
RoundQuery = Annotated[
    bounds.Count, Query(description="Of which round; default: the one that runs, else the newest.")
]

# -- what every route may answer besides its own reply --------------------------------------------------------

PROBLEM_SCHEMA = {"$ref": "#/components/schemas/ProblemReply"}
# by reference: FastAPI would read the type of a problem anew for each route, at every start


def _describe_problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {PROBLEM_MEDIA_TYPE: {"schema": PROBLEM_SCHEMA}}}


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": _describe_problem("Refused; `code` and `detail` say why"),
    503: _describe_problem("Not now; try again after `Retry-After` seconds"),
}
GROUP_ERROR_RESPONSES = ERROR_RESPONSES | {
    307: _describe_problem("Another server leads: `Location`"),
    422: _describe_problem("A field is missing, malformed or out of range"),
}
