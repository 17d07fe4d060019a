"""Assembles the application: the table of routes, Starlette with it, error handlers, and the gate around them."""

from collections.abc import Sequence
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from hetrdzv.api import problems
from hetrdzv.api.bound import Table
from hetrdzv.api.dispatch import Dispatcher
from hetrdzv.api.gate import Gate
from hetrdzv.api.refused import RefusalLog
from hetrdzv.api.room import Room
from hetrdzv.api.rooms import HANDLERS
from hetrdzv.api.routes import docs, groups, health, nodes
from hetrdzv.auth.tokens import EVERYTHING, Tokens
from hetrdzv.dashboard.room import Dashboard
from hetrdzv.protocol.errors import HetError, NotLeader
from hetrdzv.service.metrics import Metrics
from hetrdzv.service.replica import Replica, SingleReplica
from hetrdzv.service.service import Service

ROOMS: Sequence[type[Room]] = (Dashboard,)
"""Optional features with state of their own, or pages; each can be taken out with its row."""

TABLE = Table(
    [
        *HANDLERS,
        *(module.handlers for module in (nodes, groups, health, docs)),
        *(handlers for room in ROOMS for handlers in room.handlers),
    ]
)
"""All routes."""


def create_app(
    service: Service | Replica,
    *,
    token: str | None = None,
    tokens: Tokens | None = None,
    any_host: bool = False,
    metrics: Metrics | None = None,
) -> ASGIApp:
    """An ASGI application for a service or a replica; the caller starts and closes that.

    Args:
        token: a token that may do everything, instead of `tokens`.
        tokens: every request must carry one of them; None: no token is required.
        any_host: whether it answers to every host name although it has no token.
        metrics: shared by services that follow one another.
    """
    app = Starlette(routes=TABLE.routes)
    app.router.redirect_slashes = False
    replica = SingleReplica(service) if isinstance(service, Service) else service
    app.state.table = TABLE
    app.state.replica = replica
    app.state.metrics = metrics or Metrics()
    app.state.refusals = refusals = RefusalLog()
    problems.install(app, refuse)
    if token is not None:
        tokens = Tokens({token: EVERYTHING})
    return Gate(
        app=app,
        table=TABLE,
        dispatcher=Dispatcher(replica),
        tokens=tokens,
        rooms=[room(app, tokens) for room in ROOMS],
        refuse=refuse,
        refusals=refusals,
        any_host=any_host,
    )


def refuse(error: HetError, request: Request) -> Response:
    """An error as an answer: a page to a browser that asked for one, problem details to everybody else."""
    row, _ = TABLE.find(request.method, request.scope["path"])
    pages = [room.refusal(error, request) for room in ROOMS if row.route.page]
    answer = next(filter(None, pages), None) or problems.answer(error).response()
    if isinstance(error, NotLeader):
        scope = request.scope
        path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        query: bytes = scope.get("query_string", b"")
        answer.headers["location"] = error.leader + (path + (b"?" + query if query else b"")).decode(
            "latin-1"
        )
    return answer
