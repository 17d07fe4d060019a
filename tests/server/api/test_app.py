"""The application is FastAPI, as its tutorial has it: typed routes, each with a permission."""

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from hetrdzv.api.app import create_app, require_permissions
from hetrdzv.protocol import routes as clients
from hetrdzv.protocol.routes import Route
from hetrdzv.service.service import Service
from hetrdzv.storage.memory import MemoryStore
from tests.support.routes import role_of, routes


def test_it_is_a_fastapi_whose_routes_are_typed_and_say_who_may_use_them() -> None:
    app = create_app(Service(MemoryStore()))
    assert isinstance(app, FastAPI)
    found = [route for route in app.routes if route.path.startswith("/v1/")]  # type: ignore[attr-defined]
    assert len(found) > 20
    for route in found:
        assert isinstance(route, APIRoute)
        assert route.response_model is not None or route.status_code == 204, route.path
        assert role_of(route) is not None, route.path


def test_what_clients_ask_is_what_the_application_answers() -> None:
    asked = [route for route in (*vars(clients.Routes).values(), clients.POLL) if isinstance(route, Route)]
    assert len(asked) > 20
    for route in asked:
        answers = routes()[str(route)]
        assert answers.response_model is route.reply or answers.status_code == 204, route


def test_a_route_without_a_permission_is_refused() -> None:
    router = APIRouter()

    @router.get("/v1/secrets")
    async def secrets() -> str:
        return "all of them"

    with pytest.raises(TypeError, match="/v1/secrets does not say who may use it"):
        require_permissions(router.routes)
