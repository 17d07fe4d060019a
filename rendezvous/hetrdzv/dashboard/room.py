"""The dashboard, as the application knows it."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from starlette.applications import Starlette
from starlette.requests import Request, cookie_parser
from starlette.responses import Response

from hetrdzv.api.bound import Handlers
from hetrdzv.api.room import Room
from hetrdzv.auth.policy import Permit
from hetrdzv.auth.token_files import TokenFile
from hetrdzv.auth.tokens import Tokens
from hetrdzv.dashboard import actions, pages, render, signing_in
from hetrdzv.dashboard.live import Hub
from hetrdzv.dashboard.sessions import Sessions, cookie_name
from hetrdzv.protocol.errors import HetError, Unauthorized


class Dashboard(Room):
    """Pages for people, who sign in with a link."""

    handlers: ClassVar[Sequence[Handlers]] = (pages.handlers, actions.handlers, signing_in.handlers)

    def __init__(self, app: Starlette, tokens: Tokens | None) -> None:
        self._sessions = app.state.sessions = Sessions(tokens)
        app.state.hub = Hub()
        app.state.token_file = str(tokens.path.absolute()) if isinstance(tokens, TokenFile) else ""

    def permit(self, headers: Mapping[str, str]) -> Permit:
        """That of the browser that is signed in."""
        cookie = cookie_parser(headers.get("cookie", "")).get(cookie_name(headers.get("host", "")))
        permit = self._sessions.permit(cookie) if cookie else None
        if permit is None:
            raise Unauthorized(
                "nobody is signed in here: run hetctl dashboard, and open the link that it prints"
            )
        return permit

    @staticmethod
    def refusal(error: HetError, request: Request) -> Response | None:
        """A page to a browser that asked for one."""
        return render.refusal(error, request)
