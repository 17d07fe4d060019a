"""The routes of the application, as tests look at them."""

from functools import cache
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.routing import APIRoute

from hetrdzv.api.app import create_app
from hetrdzv.api.dependencies import Requires
from hetrdzv.api.middleware import PUBLIC_PATHS
from hetrdzv.auth.tokens import Role
from hetrdzv.service.service import Service
from hetrdzv.storage.base import MemoryStore


@cache
def application() -> FastAPI:
    """An application that is asked for its routes only."""
    return create_app(Service(MemoryStore()))


@cache
def routes() -> dict[str, APIRoute]:
    """All routes, by `METHOD /path`."""
    found = [route for route in application().routes if isinstance(route, APIRoute)]
    return {f"{method} {route.path}": route for route in found for method in route.methods}


def role_of(route: APIRoute) -> Role | None:
    """The lowest role that may use a route; None: it needs none, or any token."""
    return next(
        (one.dependency.role for one in route.dependencies if isinstance(one.dependency, Requires)),
        None,
    )


def is_open(route: APIRoute) -> bool:
    """Whether everybody may use a route."""
    return route.path in PUBLIC_PATHS


def body_of(route: APIRoute) -> Any:
    """The type of the body that a route takes; None: it takes none."""
    if route.body_field is None:
        return None
    kind = route.body_field.field_info.annotation
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def parameters_of(route: APIRoute) -> list[tuple[str, Any]]:
    """The names, and types with their bounds, of what a route takes in its path, its query and headers."""
    taken = [*route.dependant.path_params, *route.dependant.query_params, *route.dependant.header_params]
    return [(one.name, one.field_info) for one in taken]
