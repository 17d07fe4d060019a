"""Routes of pages: errors are pages too, or parts of one where a page asked for a part."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute

from hetrdzv.api import problems
from hetrdzv.dashboard.render import refusal
from hetrdzv.protocol.errors import HetError, InvalidRequest


class PageRoute(APIRoute):
    """A route whose errors a browser can show; programs get problem details as everywhere."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except HetError as error:
                return answer(request, error)
            except RequestValidationError:
                return answer(request, InvalidRequest("that is not the name of a group or of a node"))

        return handled


def answer(request: Request, error: HetError) -> Response:
    """An error for whoever asked."""
    return refusal(error, request.headers) or problems.answer(error).response()
