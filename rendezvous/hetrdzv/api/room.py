"""What an optional feature adds to the API: all that the application and the gate know of it."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api.bound import Handlers
from hetrdzv.auth.policy import Permit
from hetrdzv.auth.tokens import Tokens
from hetrdzv.protocol.errors import HetError


class Room:
    """An optional feature of the server. This base class adds nothing; a feature overrides what it needs.

    Args:
        app: whose `state` its handlers find.
        tokens: those that the server accepts; None: it needs none.

    Attributes:
        handlers: what answers its routes.
    """

    handlers: ClassVar[Sequence[Handlers]] = ()

    def __init__(self, app: Starlette, tokens: Tokens | None) -> None:
        """Make what its handlers share."""

    def permit(self, headers: Mapping[str, str]) -> Permit | None:
        """What a request for a page may do that brings no token; None: it does not know.

        Raises:
            Unauthorized: nothing.
        """
        return None

    @staticmethod
    def refusal(error: HetError, request: Request) -> Response | None:
        """An error of a route for people, as they see it; None: as programs do."""
        return None
