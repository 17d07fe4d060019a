"""Requests of newer clients: what this version does not know is left out instead of refused.

For all others an unknown name is an error, since it is a typo.
"""

import logging
from collections.abc import Callable, Coroutine
from functools import cache, lru_cache
from typing import Any, get_args

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from hetrdzv.protocol import versions

logger = logging.getLogger(__name__)


class LenientRoute(APIRoute):
    """A route that ignores fields of a newer client's body which its model does not have."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, for FastAPI."""
        handle = super().get_route_handler()
        model = self.body_field.field_info.annotation if self.body_field is not None else None
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return handle

        async def lenient(request: Request) -> Response:
            if versions.is_newer(request.headers):
                request = _NewerRequest(request.scope, request.receive, model)
            return await handle(request)

        return lenient


class _NewerRequest(Request):
    """A request whose JSON has the fields of a model only."""

    def __init__(self, scope: Any, receive: Any, model: type[BaseModel]) -> None:
        super().__init__(scope, receive)
        self._model = model

    async def json(self) -> Any:
        return without_unknown(self._model, await super().json())


def without_unknown(model: type[BaseModel], data: Any) -> Any:
    """JSON without the fields that a model, or one inside it, does not have."""
    if not isinstance(data, dict):
        return data
    models = _fields(model)
    known = {}
    for name, value in data.items():
        if name not in models:
            ignored(f"field '{name[:80]}' of a {model.__name__}")
        elif (inner := models[name]) is not None:
            known[name] = without_unknown(inner, value)
        else:
            known[name] = value
    return known


@lru_cache(maxsize=256)
def ignored(what: str) -> None:
    """Log, once, that something in a newer client's requests is ignored."""
    logger.warning("ignoring %s: a client is newer than this server; upgrade hetserver to use it", what)


@cache
def _fields(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The fields of a model, each with the model that it holds, if it does."""
    return {name: _model_in(field.annotation) for name, field in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for option in get_args(annotation) or (annotation,):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None
