"""The application: routers, error handlers and the gate around a service."""

from fastapi import FastAPI
from starlette.types import ASGIApp

from hetrdzv import __version__
from hetrdzv.api import docs, groups, health, nodes, openapi, problems
from hetrdzv.api.admission import Admission
from hetrdzv.api.dispatch import Dispatcher
from hetrdzv.api.gate import Gate
from hetrdzv.metrics import Metrics
from hetrdzv.replica import Replica, SingleReplica
from hetrdzv.service import Service
from hetrdzv.settings import DEFAULT_LIMITS, Limits
from hetrdzv.tokens import EVERYTHING, Tokens


def create_app(
    service: Service | Replica,
    *,
    token: str | None = None,
    tokens: Tokens | None = None,
    any_host: bool = False,
    certified: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    metrics: Metrics | None = None,
) -> ASGIApp:
    """An ASGI application that serves a service or a replica, which the caller starts and closes.

    Args:
        token: one that may do everything, instead of `tokens`.
        tokens: of which every request must bear one; None: no token is asked for.
        any_host: whether an application without a token answers to every host name.
        certified: whether clients have to show a certificate.
        limits: what bounds its memory.
        metrics: what the services count in; needed where there are several in turn.
    """
    app = FastAPI(title="hetrdzv", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    replica = SingleReplica(service) if isinstance(service, Service) else service
    app.state.replica = replica
    app.state.metrics = metrics or Metrics()
    problems.install(app)
    openapi.install(app)
    for router in (nodes.router, groups.router, health.router, docs.router):
        app.include_router(router)
    if token is not None:
        tokens = Tokens({token: EVERYTHING})
    admission = Admission(limits.max_polls_per_address)
    return Gate(
        app, Dispatcher(replica), tokens=tokens, admission=admission, any_host=any_host, certified=certified
    )
