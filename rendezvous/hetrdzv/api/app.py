"""Assembles the application: FastAPI with its routers, error handlers, and the middleware before them."""

import threading
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from hetrdzv import __version__
from hetrdzv.api import errors
from hetrdzv.api.dependencies import Requires
from hetrdzv.api.middleware import AccessMiddleware
from hetrdzv.api.routes import agents, groups, operations
from hetrdzv.auth.tokens import Tokens
from hetrdzv.dashboard.app import PAGE_PATHS, make_dashboard
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.replies import GroupReply, ProblemReply
from hetrdzv.service.metrics import Metrics
from hetrdzv.service.service import Replica
from hetrdzv.storage import records

ROUTERS: Sequence[APIRouter] = (
    agents.router,
    groups.router,
    operations.health_router,
    operations.document_router,
)
"""Those of agents come first, since the first match counts."""


class Api(FastAPI):
    """FastAPI, with what it says wrongly in its document corrected (tests/fuzz checks it)."""

    _openapi_lock = threading.Lock()

    def openapi(self) -> dict[str, Any]:
        """The document, made once; it takes a second, so ask for it in a thread."""
        with self._openapi_lock:
            if self.openapi_schema is None:
                operations.correct_openapi(super().openapi())
            return super().openapi()


def create_app(
    replica: Replica,
    *,
    tokens: Tokens | None = None,
    any_host: bool = False,
    secure: bool = False,
    metrics: Metrics | None = None,
) -> FastAPI:
    """An application for a service, or for one of several; the caller starts and closes that.

    Without tokens none is required, and it answers to `any_host` or to addresses only; over TLS, cookies are `secure`.
    """
    # else the first commit and the first replies would wait for these
    codec.build_validators(*records.RECORD_TYPES.values(), Directive, ProblemReply, GroupReply)
    app = Api(
        title="hetrdzv",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # `/metrics` has ours
        # `include_router` makes every route again at the first request: a second in which nobody is answered
        routes=[route for router in ROUTERS for route in router.routes],
    )
    require_permissions(app.routes)
    app.state.replica = replica
    app.state.metrics = metrics or Metrics()
    app.state.refusals = refusals = errors.RefusalLog()
    errors.install_error_handlers(app)
    app.add_middleware(
        AccessMiddleware,
        replica=replica,
        tokens=tokens,
        any_host=any_host,
        refusals=refusals,
        pages=make_dashboard(replica, tokens, secure=secure, note=refusals.log),
        is_page=PAGE_PATHS.fullmatch,
    )
    return app


def require_permissions(routes: Sequence[BaseRoute]) -> None:
    """Raise a TypeError if a route about groups does not say who may use it."""
    for route in routes:
        path = getattr(route, "path", "")
        needs = route.dependencies if isinstance(route, APIRoute) else ()
        if path.startswith("/v1/") and not any(isinstance(one.dependency, Requires) for one in needs):
            raise TypeError(f"{path} does not say who may use it: add Depends(Requires(Role...))")
