"""Everything that comes in has bounds, in its type: all routes, and every type inside."""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from annotated_types import Ge, Le, Lt, MaxLen
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from hetrdzv.api.app import create_app, require_permissions
from hetrdzv.protocol import routes as clients
from hetrdzv.protocol.bounds import MAX_JSON_VALUES
from hetrdzv.protocol.routes import Route
from hetrdzv.service.service import Service
from hetrdzv.storage.base import MemoryStore
from tests.server.api.test_requests import JOIN, NODE, problem
from tests.support.routes import body_of, parameters_of, role_of, routes
from tests.support.served import api, serving


def limits_of(about: list[Any]) -> dict[str, Any]:
    """What annotations say of a value, by name."""
    limits: dict[str, Any] = {}
    for each in about:
        match each:
            case Ge(ge):
                limits["ge"] = max(ge, limits.get("ge", ge))
            case Le(le):
                limits["le"] = min(le, limits.get("le", le))
            case Lt(lt):
                limits["lt"] = lt
            case MaxLen(max_length):
                limits["max_length"] = max_length
            case FieldInfo(metadata=more):
                limits |= limits_of(more)
    return limits


def unbounded(kind: Any, about: list[Any], path: str) -> Iterator[str]:
    """What has no bounds in a type with annotations, with the place where it is."""
    kind = getattr(kind, "__supertype__", kind)
    origin, limits = get_origin(kind), limits_of(about)
    if origin is Annotated:
        inner, *more = get_args(kind)
        yield from unbounded(inner, [*about, *more], path)
    elif origin in (Union, UnionType):
        for each in get_args(kind):
            yield from unbounded(each, about, path)
    elif origin in (list, dict, tuple, Mapping):
        if "max_length" not in limits and (origin is not tuple or ... in get_args(kind)):
            yield f"{path}: a {origin.__name__} of any length"
        for part in get_args(kind):
            if part is not ...:
                yield from unbounded(part, [], f"{path}[]")
    elif origin is Literal or kind in (bool, NoneType) or issubclass(kind, Enum):
        pass
    elif is_dataclass(kind) or is_typeddict(kind):
        if kind.__pydantic_config__.get("extra") != "forbid":
            yield f"{path}: fields of any name"
        for name, hint in get_type_hints(kind, include_extras=True).items():
            if not name.startswith("__"):
                yield from unbounded(hint, [], f"{path}.{name}")
    elif kind in (int, float):
        if not ("ge" in limits and {"le", "lt"} & limits.keys()):
            yield f"{path}: any {kind.__name__}"
    elif kind is not str or "max_length" not in limits:
        yield f"{path}: any {kind.__name__}"


def parameters() -> Iterator[tuple[str, Any]]:
    """All that the routes take: a name and a type."""
    for name, route in routes().items():
        for taken, field in parameters_of(route):
            yield (
                f"{name} {taken}",
                Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation,
            )
        if (body := body_of(route)) is not None:
            yield f"{name} body", body


def test_everything_that_comes_in_has_bounds() -> None:
    taken = dict(parameters())
    assert len(taken) > 50
    assert any(name.endswith("/nodes/{node_id} body") for name in taken)
    assert [wrong for place, kind in taken.items() for wrong in unbounded(kind, [], place)] == []


async def test_what_all_workers_have_together_is_bounded() -> None:
    workers = [{"rank": 0, "collectives": [{"name": "0", "size": 2}] * 32}] * 33
    body = {"incarnation": "i", "progress": {"round": 1, "workers": workers}}
    async with serving() as (service, _), api(service) as client:
        reply = await client.post(f"{NODE}/directive", json=body)
        problem(reply, 422, "invalid_request", "progress.workers")


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"labels": {f"x{n}": 1 for n in range(30_000)}}, 422, "body: 30000 of its fields are"),
        ({"spec": {"command": [[]] * 10_000}}, 422, "spec.command.0"),
        ({"x": [[]] * MAX_JSON_VALUES}, 413, f"more than {MAX_JSON_VALUES} values"),
        ({"x": ['\\"', '"' * 9, "\\"] * 12_000}, 413, f"more than {MAX_JSON_VALUES} values"),
    ],
)
async def test_a_body_with_many_mistakes_costs_no_more_than_its_size(
    change: dict[str, Any], status: int, says: str
) -> None:
    async with serving() as (service, _), api(service) as client:
        reply = await client.put(NODE, json=JOIN | change)
        assert reply.status_code == status
        assert says in reply.json()["detail"]
        assert len(reply.content) < 1_000


# -- routes as FastAPI's tutorial has them, each with a permission -------------------------------------------


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
    asked = [
        route for route in (*vars(clients.Routes).values(), clients.POLL_ROUTE) if isinstance(route, Route)
    ]
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
