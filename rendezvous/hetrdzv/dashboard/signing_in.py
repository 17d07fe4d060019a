"""Signing in with a code that works once, and out."""

from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api.bound import Handlers
from hetrdzv.auth.policy import permit_of
from hetrdzv.dashboard import routing
from hetrdzv.dashboard.actions import require_own_page
from hetrdzv.dashboard.render import HEADERS, own_url, page
from hetrdzv.dashboard.sessions import CODE_S, SESSION_S, Sessions, SignedIn, cookie_name
from hetrdzv.protocol import codec
from hetrdzv.protocol.rooms.dashboard import SIGN_IN_CODE, SignInReply

handlers = Handlers()


@handlers(SIGN_IN_CODE)
async def make_code(request: Request) -> bytes:
    """A link for a browser, which works once and signs it in to the dashboard as whoever asks."""
    sessions: Sessions = request.app.state.sessions
    entry = permit_of(request).entry
    reply = SignInReply(path="/")
    if entry is not None:
        reply = SignInReply(path=f"/sign-in?code={sessions.code(entry)}", expires_in_s=CODE_S)
    return codec.write(reply, nulls=True)


@handlers(routing.SIGN_IN)
async def sign_in(request: Request, code: str, group: str | None) -> Response:
    """Use up a code: the browser is signed in, and goes on at once to a page without it."""
    sessions: Sessions = request.app.state.sessions
    if not code:
        return page("sign_in.html", why="", url=own_url(request))
    cookie = sessions.redeem(code)
    if cookie is None:
        return page(
            "sign_in.html", 403, why="This link has been used already, or is too old.", url=own_url(request)
        )
    where = "/" if group is None else f"/groups/{group}"
    # Not a redirect: after a link on another site (a chat, a terminal in the browser) that would still count as the
    # other site's request, which gets no strict cookie. This page's own does.
    response = page("signed_in.html", where=where)
    response.headers["Refresh"] = f"0; url={where}"
    response.set_cookie(
        cookie_name(request.headers.get("host", "")),
        cookie,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@handlers(routing.SIGN_OUT)
async def sign_out(request: Request) -> Response:
    """End the session of this browser."""
    require_own_page(request)
    permit = permit_of(request)
    if isinstance(permit, SignedIn):
        permit.session.over = True
    response = Response(status_code=204, headers={**HEADERS, "HX-Redirect": "/sign-in"})
    response.delete_cookie(cookie_name(request.headers.get("host", "")), httponly=True, samesite="strict")
    return response
