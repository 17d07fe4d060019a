"""Who may use which route: the role that each route requires, checked against the grant of a token.

docs/security.md shows the same table. A route without a row is for admins of all groups only, so one that was forgotten
here is open to nobody else.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fastapi import Request
from starlette.types import Scope

from hetrdzv.auth.sessions import Session, Sessions
from hetrdzv.auth.tokens import Entry, Grant, Role, Tokens
from hetrdzv.protocol.errors import Forbidden

_GROUP = "/v1/groups/{group_id}"
_NODE = f"{_GROUP}/nodes/{{node_id}}"

_PAGE = "/groups/{group_id}"
_PAGE_NODE = f"{_PAGE}/nodes/{{node_id}}"

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json", "/sign-in", "/static/{name}"})
"""Paths that need neither token nor certificate: they reveal nothing about any group."""

_STATIC = re.compile(r"/static/[^/]+")

ROLES: Mapping[str, Role] = {
    "GET /": Role.READ,
    f"GET {_PAGE}": Role.READ,
    f"GET {_PAGE}/restart": Role.ADMIN,
    f"POST {_PAGE}/restart": Role.ADMIN,
    f"GET {_PAGE}/cancel": Role.ADMIN,
    f"POST {_PAGE}/cancel": Role.ADMIN,
    f"GET {_PAGE_NODE}/drain": Role.ADMIN,
    f"POST {_PAGE_NODE}/drain": Role.ADMIN,
    f"GET {_PAGE_NODE}/undrain": Role.ADMIN,
    f"POST {_PAGE_NODE}/undrain": Role.ADMIN,
    "POST /sign-out": Role.READ,
    "POST /v1/sign-in-codes": Role.READ,
    "GET /v1/groups": Role.READ,
    "GET /metrics": Role.READ,
    f"GET {_GROUP}": Role.READ,
    f"PUT {_GROUP}": Role.ADMIN,
    f"DELETE {_GROUP}": Role.ADMIN,
    f"GET {_GROUP}/export": Role.ADMIN,
    f"POST {_GROUP}/restart": Role.ADMIN,
    f"POST {_GROUP}/cancel": Role.ADMIN,
    f"POST {_GROUP}/stacks": Role.ADMIN,
    f"POST {_GROUP}/logs": Role.ADMIN,
    f"POST {_GROUP}/plan": Role.READ,
    f"GET {_GROUP}/events": Role.READ,
    f"PUT {_NODE}": Role.AGENT,
    f"GET {_NODE}/directive": Role.AGENT,
    f"POST {_NODE}/directive": Role.AGENT,
    f"POST {_NODE}/stacks": Role.AGENT,
    f"POST {_NODE}/shares": Role.AGENT,
    f"POST {_NODE}/report": Role.AGENT,
    f"POST {_NODE}/daemon": Role.AGENT,
    f"DELETE {_NODE}": Role.AGENT,
    f"POST {_NODE}/drain": Role.ADMIN,
    f"POST {_NODE}/undrain": Role.ADMIN,
}
"""The lowest role that may use a route."""

SCOPED = frozenset({"GET /", "POST /sign-out", "POST /v1/sign-in-codes", "GET /v1/groups"})
"""Routes that name no group, but show only groups in the scope of the token, or none."""

_KEY = "hetrdzv.permit"


class Row(NamedTuple):
    """A route with the role that it requires."""

    route: str
    method: str
    path: re.Pattern[str]
    role: Role


def _row(route: str, role: Role) -> Row:
    method, _, template = route.partition(" ")
    return Row(route, method, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template)), role)


_ROWS = [_row(route, role) for route, role in ROLES.items()]


def is_open(path: str) -> bool:
    """Whether a path needs neither token nor certificate."""
    return path in OPEN_PATHS or _STATIC.fullmatch(path) is not None


def is_page(path: str) -> bool:
    """Whether a path is one of the dashboard's, to which a browser that is signed in has access."""
    return path in ("/", "/sign-out") or path.startswith("/groups/")


class Permit:
    """What a request may do.

    Args:
        grant: of its token.
        entry: that token; None if none is required.
        tokens: those that the server accepts.
        session: of the browser that is signed in instead of sending the token, if so.
        sessions: all of them.

    Attributes:
        csrf: what a request from a page that changes something must bring along; None: it brings its token.
    """

    def __init__(
        self,
        grant: Grant,
        entry: Entry | None = None,
        tokens: Tokens | None = None,
        session: Session | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self.grant = grant
        self.entry = entry
        self.session = session
        self._tokens = tokens
        self._sessions = sessions
        self.csrf: str | None = None
        if session is not None:
            self.csrf = session.csrf
        elif entry is None and sessions is not None:
            self.csrf = sessions.open_csrf

    @property
    def is_valid(self) -> bool:
        """Whether the token still has this grant, and nobody has signed out; ask again during a long reply."""
        if self.session is not None and self._sessions is not None:
            return self._sessions.is_live(self.session)
        return self._tokens is None or (self.entry is not None and self._tokens.holds(self.entry))

    def bearer(self, host: str) -> str:
        """Who made the request, as far as the server knows: `an admin of team-a-* at 10.0.0.9`. Never the token.

        Args:
            host: the address that the request came from; empty if it is not known.
        """
        who = "someone"
        if self.entry is not None:
            of = f" of {self.grant.scope}" if self.grant.scope is not None else ""
            who = f"{'an' if self.grant.role is not Role.READ else 'a'} {self.grant.role}{of}"
        return f"{who} at {host}" if host else who

    def put_into(self, scope: Scope) -> Scope:
        """The ASGI scope of a request, with this permit in it."""
        return {**scope, _KEY: self}

    def check(self, method: str, path: str) -> None:
        """Check that a request is permitted.

        Raises:
            Forbidden: it is not; says what the token is for and what was asked.
        """
        grant = self.grant
        if grant.role is Role.ADMIN and grant.scope is None:
            return
        asked = f"{method} {path[:200]}"
        for row in _ROWS:
            if row.method == method and (found := row.path.fullmatch(path)) is not None:
                break
        else:
            raise _forbidden(grant, asked, "is not a route, or is one for admins of all groups")
        if grant.role < row.role:
            raise _forbidden(grant, asked, f"needs the role {row.role}")
        group_id = found.groupdict().get("group_id")
        if group_id is not None:
            if not grant.covers(group_id):
                raise _forbidden(grant, asked, f"is about group '{group_id[:128]}'")
        elif grant.scope is not None and row.route not in SCOPED:
            raise _forbidden(grant, asked, "is about all groups")

    def check_command(self, group_id: str) -> None:
        """Check that a token may set the command that agents run.

        Raises:
            Forbidden: it may not.
        """
        if self.grant.role < Role.ADMIN:
            what = f"a command for group '{group_id}' in the spec of a join"
            raise _forbidden(self.grant, what, "needs the role admin, since other nodes would run it")


def permit_of(request: Request) -> Permit:
    """The permit of a request."""
    found: Any = request.scope[_KEY]
    assert isinstance(found, Permit)
    return found


def _forbidden(grant: Grant, asked: str, why: str) -> Forbidden:
    return Forbidden(
        f"this token may not do that: its {grant}, but {asked} {why}: "
        f"use another token, or change its line in hetserver's token file"
    )
