"""What answers each route: handlers bound to the rows of protocol/routes.py, for the gate and for FastAPI."""

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from types import NoneType
from typing import Annotated, Any, TypeVar

from fastapi import Header, Path, Query
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.requests import Request

from hetrdzv.api import problems
from hetrdzv.api.reading import PATH_KINDS, Reader
from hetrdzv.protocol.route import Role, Route, Size

Handler = Callable[..., Awaitable[Response | bytes | None]]
"""Takes the request and what its route takes, by name. Returns JSON, nothing, or any response."""

_H = TypeVar("_H", bound=Handler)


class Bound:
    """A route with what answers it.

    Args:
        handler: its docstring describes the route in the document.
    """

    def __init__(self, route: Route[Any], handler: Handler) -> None:
        self.route = route
        self.handler = handler
        self._reader = Reader(route)

    async def answer(self, request: Request) -> Response:
        """The answer to a request.

        Raises:
            HetError: it is refused.
        """
        reply = await self.handler(request, **await self._reader.read(request))
        if isinstance(reply, Response):
            return reply
        return Response(status_code=204) if reply is None else Response(reply, media_type="application/json")


async def _nothing(request: Request) -> None:
    """What is nowhere is answered by FastAPI: with 404, or 405."""


NOWHERE = Bound(Route("", "", Role.ADMIN, NoneType), _nothing)
"""What `Table.find` finds where there is no route: it needs the highest role."""

NO_PAGE = Bound(Route("", "", Role.ADMIN, NoneType, page=True), _nothing)
"""The same among the pages: people who are signed in are told so on a page."""


class Handlers:
    """The handlers of a module: `@handlers(routes.JOIN)`."""

    def __init__(self) -> None:
        self.of: dict[Route[Any], Handler] = {}

    def __call__(self, route: Route[Any]) -> Callable[[_H], _H]:
        """Bind a handler to a route."""

        def bind(handler: _H) -> _H:
            self.of[route] = handler
            return handler

        return bind


class TableRoute(APIRoute):
    """A route as FastAPI finds and documents it; what a request gives is read as for hot routes."""

    def __init__(self, row: Bound) -> None:
        self._row = row
        route, handler = row.route, row.handler
        super().__init__(
            route.path,
            _described(row),
            methods=[route.method],
            tags=[handler.__module__.rpartition(".")[2]],
            status_code=204 if route.reply is NoneType else 200,
            response_model=None if route.reply in (NoneType, str) else route.reply,
            responses=_responses(route),
            include_in_schema=not route.page,
            response_class=Response if route.reply is str else JSONResponse,
        )

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers, for FastAPI."""
        return self._row.answer


class Table:
    """All routes of an application.

    Args:
        modules: their handlers.

    Attributes:
        rows: routes, each with what answers it.
        routes: the same for FastAPI; made once, since that takes a while.
    """

    def __init__(self, modules: Iterable[Handlers]) -> None:
        self.rows = [Bound(*handled) for handlers in modules for handled in handlers.of.items()]
        self.routes = [TableRoute(row) for row in self.rows]
        self._page_folders = {row.route.path.split("/")[1] for row in self.rows if row.route.page}
        self._by_method: dict[str, list[tuple[re.Pattern[str], Bound]]] = {}
        for row in sorted(self.rows, key=lambda row: not row.route.hot):
            path = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", row.route.path))
            self._by_method.setdefault(row.route.method, []).append((path, row))

    def find(self, method: str, path: str) -> tuple[Bound, Mapping[str, str]]:
        """The route of a request, and what its path names; `NOWHERE` or `NO_PAGE`: there is none."""
        for pattern, row in self._by_method.get(method, ()):
            if (match := pattern.fullmatch(path)) is not None:
                return row, match.groupdict()
        folder = path.removeprefix("/").partition("/")[0]
        return (NO_PAGE if folder in self._page_folders else NOWHERE), {}


def _responses(route: Route[Any]) -> dict[int | str, dict[str, Any]]:
    """What a route may answer, as far as its reply does not tell that."""
    errors = problems.RESPONSES if route.path.startswith("/v1/") else problems.OF_THE_SERVER
    own: dict[int | str, dict[str, Any]] = {}
    if route.reply is str:
        own[200] = {"content": {"text/plain": {}}}
    elif route.size is Size.STREAM:
        own[200] = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {**errors, **own}


def _described(row: Bound) -> Callable[[], None]:
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

    def described() -> None: ...

    described.__name__, described.__doc__ = row.handler.__name__, row.handler.__doc__
    described.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
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
    return described
