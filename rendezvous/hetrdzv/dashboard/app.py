"""The dashboard as an ASGI application of its own: pages for people, whose sections htmx polls.

What is around it (api/app.py) has checked the host name of a server without tokens, and limits bodies.
"""

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from hetrdzv.api.errors import requested_target
from hetrdzv.auth.hosts import is_same_origin
from hetrdzv.auth.token_files import TokenFile
from hetrdzv.auth.tokens import Role, Tokens
from hetrdzv.dashboard import pages
from hetrdzv.dashboard.actions import GROUP_ACTIONS, NODE_ACTIONS
from hetrdzv.dashboard.cache import SectionCache
from hetrdzv.dashboard.render import PAGE_HEADERS, render_page
from hetrdzv.dashboard.sessions import SESSION_COOKIE, SESSION_LIFETIME_S, Sessions, require_same_origin
from hetrdzv.protocol.errors import ForeignHost, HetError, LeaderLost, NotLeader, Unauthorized
from hetrdzv.service.service import Replica, Service

Handler = Callable[..., Awaitable[Response]]
LogRefusal = Callable[[HetError, Request], None]

MAX_FORM_BYTES = 4096
"""How much is read of the form that takes a token; no token that an HTTP header can carry is longer."""

PAGE_PATHS = re.compile(r"/(groups/.*|static/.*|sign-in|sign-out)?")
"""What is a page."""


class PageFiles(StaticFiles):
    """What pages load: scripts, a style sheet, a picture; the same for everybody."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(PAGE_HEADERS)
        response.headers["Cache-Control"] = "no-cache"  # of another version, an upgrade would be half seen
        return response


def make_dashboard(replica: Replica, tokens: Tokens | None, *, secure: bool, note: LogRefusal) -> Starlette:
    """The pages. If `secure`, browsers reach this server over TLS; `note` logs a refusal."""
    group = "/groups/{group_id}"
    routes: list[BaseRoute] = [
        Mount("/static", PageFiles(directory=Path(__file__).parent / "static")),
        Route("/sign-in", sign_in_page),
        Route("/sign-in", sign_in, methods=["POST"]),
        Route("/sign-out", sign_out, methods=["POST"]),
        _route("/", pages.groups_page),
        _route(group, pages.group),
        _route(f"{group}/output", pages.output_page, Role.ADMIN),
        _route(f"{group}/stacks", pages.stacks_page, Role.ADMIN),
    ]
    for at, possible in ((group, GROUP_ACTIONS), (f"{group}/nodes/{{node_id}}", NODE_ACTIONS)):
        for name, action in possible.items():
            routes += [
                _route(f"{at}/{name}", action.show_question, Role.ADMIN),
                _route(f"{at}/{name}", action.perform, Role.ADMIN, "POST"),
            ]
    sessions, middleware = Sessions(tokens), []
    if tokens is not None:
        from starlette.middleware.sessions import SessionMiddleware  # only needed where people sign in

        middleware.append(
            Middleware(
                SessionMiddleware,
                secret_key=sessions.key,
                session_cookie=SESSION_COOKIE,
                max_age=SESSION_LIFETIME_S,
                same_site="strict",
                https_only=secure,
            )
        )

    async def answer_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HetError)
        note(error, request)
        return _make_error_page(request, error)

    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={HetError: answer_error, HTTPException: _http_error},
    )
    app.router.redirect_slashes = False
    app.state.replica = replica
    app.state.note = note
    app.state.sessions = sessions
    app.state.cache = SectionCache()
    app.state.token_file = str(tokens.path.absolute()) if isinstance(tokens, TokenFile) else ""
    return app


def _route(path: str, handler: Handler, role: Role = Role.READ, method: str = "GET") -> Route:
    """A route for people with a role; what it answers is of the leader, or is not sent."""

    async def endpoint(request: Request) -> Response:
        state, group_id = request.app.state, request.path_params.get("group_id")
        sessions: Sessions = state.sessions
        grant = sessions.check(request, role, group_id)
        if method == "POST":
            require_same_origin(request)
        service: Service = state.replica.service()
        response = await handler(request, service, grant)
        if not state.replica.may_send_reply(service):
            raise LeaderLost("this server lost the leadership while it worked on this: reload the page")
        return response

    return Route(path, endpoint, methods=[method])


# -- signing in --------------------------------------------------------------------------------------------


async def sign_in_page(request: Request) -> Response:
    """The form that takes a token."""
    return render_page("sign_in.html", why="", where="/")


async def sign_in(request: Request) -> Response:
    """Sign this browser in with the token of the form."""
    if not is_same_origin(request.headers.get("origin"), request.headers.get("host", "")):
        raise ForeignHost("only a page of this server signs in: open its address")
    form = parse_qs((await request.body())[:MAX_FORM_BYTES].decode("ascii", "replace"))
    where = form.get("where", ["/"])[0]
    where = where if re.fullmatch(r"/(groups/[\w.-]+)?", where, re.ASCII) else "/"
    try:
        request.app.state.sessions.sign_in(request, form.get("token", [""])[0].strip())
    except Unauthorized as error:
        request.app.state.note(error, request)
        return render_page("sign_in.html", error.status, why=str(error), where=where)
    return RedirectResponse(where, 303, dict(PAGE_HEADERS))


async def sign_out(request: Request) -> Response:
    """Have this browser forget that it was signed in."""
    require_same_origin(request)
    if "session" in request.scope:
        request.session.clear()
    return Response(status_code=204, headers={**PAGE_HEADERS, "HX-Redirect": "/sign-in"})


# -- everything else ---------------------------------------------------------------------------------------


def _make_error_page(request: Request, error: HetError) -> Response:
    """An error as people see it: a page, or a part of one where a page asked for that."""
    if isinstance(error, NotLeader):
        return RedirectResponse(error.leader + requested_target(request), 307, dict(PAGE_HEADERS))
    if "hx-request" in request.headers:
        return render_page("wrong.html", error.status, why=str(error))
    if isinstance(error, Unauthorized):
        return render_page("sign_in.html", error.status, why="", where=request.url.path)
    return render_page("error.html", error.status, title=HTTPStatus(error.status).phrase, why=str(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    why = f"There is nothing at {request.url.path[:200]}." if status == 404 else str(error.detail)
    return render_page("error.html", status, title=HTTPStatus(status).phrase, why=why)
