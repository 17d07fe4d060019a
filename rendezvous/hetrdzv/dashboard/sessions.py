"""Signing in to the dashboard: a token entered once becomes a signed cookie, which stands for it and has an end.

Starlette's SessionMiddleware signs the cookie with a key that this process alone has. It holds a fingerprint of the
token and an end, never the token, and is for pages only: `/v1` does not know of sessions.
"""

import hmac
import secrets
import time

from starlette.requests import Request

from hetrdzv.auth.hosts import is_same_origin
from hetrdzv.auth.tokens import ANONYMOUS_GRANT, Grant, Role, Tokens, token_digest
from hetrdzv.protocol.errors import ForeignHost, Unauthorized

SESSION_LIFETIME_S = 12 * 3600
"""How long a browser stays signed in at most (seconds)."""

SESSION_COOKIE = "hetrdzv"


class Sessions:
    """Who looks at the pages of a server; without tokens everybody may do everything. `key` signs cookies."""

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens
        self.key = secrets.token_urlsafe(32)

    def sign_in(self, request: Request, token: str) -> None:
        """Sign the browser in with a token, or raise `Unauthorized`."""
        if self._tokens is None or self._tokens.grant(token) is None:
            raise Unauthorized("this server does not accept that token: check that it was copied whole")
        request.session.update(
            fingerprint=self._fingerprint(token_digest(token)), end=time.time() + SESSION_LIFETIME_S
        )

    def _find_grant(self, request: Request) -> Grant:
        """What the token may do, as it is now, that the browser has signed in with."""
        if self._tokens is None:
            return ANONYMOUS_GRANT
        known, end = request.session.get("fingerprint", ""), request.session.get("end", 0)
        if known and time.time() < end:
            for of_token, grant in self._tokens.grants.items():
                if hmac.compare_digest(self._fingerprint(of_token), known):
                    return grant
        raise Unauthorized("not signed in, or no longer: reload the page")

    def check(self, request: Request, role: Role, group_id: str | None) -> Grant:
        """What the browser may do, unless that is not what needs this role, in that group."""
        grant = self._find_grant(request)
        grant.check(role, group_id, "this page", filters_by_scope=True)
        return grant

    def _fingerprint(self, of_token: bytes) -> str:
        return hmac.new(self.key.encode(), of_token, "sha256").hexdigest()


def require_same_origin(request: Request) -> None:
    """Refuse a request which changes something unless it comes from a page of this server.

    A cookie that is `SameSite=Strict` stays at home, and no page of another site can send htmx's header here; both are
    needed, since other ports of a host are the same site.
    """
    headers = request.headers
    if "hx-request" not in headers or not is_same_origin(headers.get("origin"), headers.get("host", "")):
        raise ForeignHost("this request does not come from a page of this server: reload the page")
