"""Assembles the application: the table of routes, Starlette with it, error handlers, and the gate around them."""

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
from hetrdzv.api.rooms import HANDLERS
from hetrdzv.api.routes import docs, groups, health, nodes
from hetrdzv.auth.tokens import EVERYTHING, Tokens
from hetrdzv.dashboard.app import dashboard
from hetrdzv.protocol.errors import HetError, NotLeader
from hetrdzv.service.metrics import Metrics
from hetrdzv.service.replica import Replica, SingleReplica
from hetrdzv.service.service import Service

TABLE = Table(
    [
        *HANDLERS,
        *(module.handlers for module in (nodes, groups, health, docs)),
    ]
)
"""All routes."""


def create_app(
    service: Service | Replica,
    *,
    token: str | None = None,
    tokens: Tokens | None = None,
    any_host: bool = False,
    secure: bool = False,
    metrics: Metrics | None = None,
) -> ASGIApp:
    """An ASGI application for a service or a replica; the caller starts and closes that.

    Args:
        token: a token that may do everything, instead of `tokens`.
        tokens: every request must carry one of them; None: no token is required.
        any_host: whether it answers to every host name although it has no token.
        secure: whether it serves TLS, so that browsers send cookies over that only.
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
        pages=dashboard(replica, tokens, secure=secure, note=refusals.note_request),
        refuse=refuse,
        refusals=refusals,
        any_host=any_host,
    )


def refuse(error: HetError, request: Request) -> Response:
    """An error as an answer: problem details."""
    answer = problems.answer(error).response()
    if isinstance(error, NotLeader):
        scope = request.scope
        path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        query: bytes = scope.get("query_string", b"")
        answer.headers["location"] = error.leader + (path + (b"?" + query if query else b"")).decode(
            "latin-1"
        )
    return answer
