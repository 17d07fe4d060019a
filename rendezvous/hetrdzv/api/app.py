"""Assembles the application: routes, error handlers, and the gate around them."""

from fastapi import FastAPI
from starlette.types import ASGIApp

from hetrdzv import __version__
from hetrdzv.api import openapi, problems
from hetrdzv.api.dispatch import Dispatcher
from hetrdzv.api.gate import Gate
from hetrdzv.api.http.limits import Admission
from hetrdzv.api.refused import RefusalLog
from hetrdzv.api.routes import docs, groups, health, nodes
from hetrdzv.api.routes.short import ShortRoutes
from hetrdzv.auth.sessions import Sessions
from hetrdzv.auth.tokens import EVERYTHING, Tokens
from hetrdzv.dashboard import actions, pages, render, signing_in
from hetrdzv.dashboard.live import Hub
from hetrdzv.service.metrics import Metrics
from hetrdzv.service.quotas import Quotas
from hetrdzv.service.replica import Replica, SingleReplica
from hetrdzv.service.service import Service
from hetrdzv.settings import DEFAULT_LIMITS, Limits


def create_app(
    service: Service | Replica,
    *,
    token: str | None = None,
    tokens: Tokens | None = None,
    any_host: bool = False,
    certified: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    metrics: Metrics | None = None,
    quotas: Quotas | None = None,
) -> ASGIApp:
    """An ASGI application for a service or a replica; the caller starts and closes that.

    Args:
        token: a token that may do everything, instead of `tokens`.
        tokens: every request must carry one of them; None: no token is required.
        any_host: whether it answers to every host name although it has no token.
        certified: whether clients must show a certificate.
        limits: bound its memory.
        metrics: shared by services that follow one another.
        quotas: what the groups of each token may take; the same as the service's.
    """
    app = FastAPI(
        title="hetrdzv",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    replica = SingleReplica(service) if isinstance(service, Service) else service
    app.state.replica = replica
    app.state.metrics = metrics or Metrics()
    app.state.refusals = refusals = RefusalLog()
    problems.install(app)
    openapi.install(app)
    for router in (nodes.router, groups.router, health.router, docs.router):
        app.include_router(router)
    for router in (pages.router, actions.router, signing_in.pages, signing_in.api):
        app.include_router(router)
    if token is not None:
        tokens = Tokens({token: EVERYTHING})
    app.state.sessions = sessions = Sessions(tokens)
    app.state.hub = Hub()
    admission = Admission(limits.max_polls_per_address)
    return Gate(
        ShortRoutes(app),
        Dispatcher(replica),
        tokens=tokens,
        sessions=sessions,
        refusal_page=render.refusal,
        admission=admission,
        refusals=refusals,
        quotas=quotas or Quotas(),
        any_host=any_host,
        certified=certified,
    )
