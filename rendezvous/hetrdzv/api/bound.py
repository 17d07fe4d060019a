"""What answers each route: handlers bound to the rows of protocol/http/routes.py, for the gate and for Starlette."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import NoneType
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from hetrdzv.api.reading import Reader
from hetrdzv.protocol.http.route import Role, Route

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
    """What is nowhere is answered by Starlette: with 404, or 405."""


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


class Table:
    """All routes of an application.

    Args:
        modules: their handlers.

    Attributes:
        rows: routes, each with what answers it.
        routes: the same for Starlette.
    """

    def __init__(self, modules: Iterable[Handlers]) -> None:
        self.rows = [Bound(*handled) for handlers in modules for handled in handlers.of.items()]
        self.routes = [_route(row) for row in self.rows]
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


def _route(row: Bound) -> StarletteRoute:
    route = StarletteRoute(row.route.path, row.answer, methods=[row.route.method])
    route.methods = {row.route.method}  # without HEAD, which the gate answers where it may be asked
    return route
