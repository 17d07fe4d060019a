"""The application: routers, error handlers and the gate around a service."""

from fastapi import FastAPI
from starlette.types import ASGIApp

from hetrdzv import __version__
from hetrdzv.api import docs, groups, health, nodes, problems
from hetrdzv.api.gate import Gate
from hetrdzv.api.polls import Polls
from hetrdzv.service import Service


def create_app(service: Service, *, token: str | None = None, any_host: bool = False) -> ASGIApp:
    """An ASGI application that serves a service, which the caller starts and closes.

    Args:
        token: what every request must bear; None: no token is asked for.
        any_host: whether an application without a token answers to every host name.
    """
    app = FastAPI(title="hetrdzv", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    app.state.polls = Polls(service)
    problems.install(app)
    for router in (nodes.router, groups.router, health.router, docs.router):
        app.include_router(router)
    return Gate(app, token=token, any_host=any_host)
