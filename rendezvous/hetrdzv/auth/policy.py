"""What a request may do: the grant of its token, held against the role that its route requires.

docs/security.md shows the roles; they are in the rows of routes (protocol/http/routes.py).
"""

from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from hetrdzv.auth.tokens import Entry, Grant, Tokens
from hetrdzv.protocol.errors import Forbidden
from hetrdzv.protocol.http.route import Role, Route

_KEY = "hetrdzv.permit"


class Permit:
    """What a request may do.

    Args:
        grant: of its token.
        entry: that token; None if none is required.
        tokens: those that the server accepts.
    """

    def __init__(self, grant: Grant, entry: Entry | None = None, tokens: Tokens | None = None) -> None:
        self.grant = grant
        self.entry = entry
        self._tokens = tokens

    @property
    def is_valid(self) -> bool:
        """Whether the token still has this grant; ask again during a long reply."""
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

    def put_into(self, scope: Scope) -> None:
        """Put this permit into the ASGI scope of a request."""
        scope[_KEY] = self

    def check(self, route: Route[Any], group_id: str | None, method: str, path: str) -> None:
        """Check that a request is permitted. What is no route is for admins of all groups, who hear that it is none.

        Args:
            group_id: the group that it names, if it does.

        Raises:
            Forbidden: it is not; says what the token is for and what was asked.
        """
        grant = self.grant
        if grant.role is Role.ADMIN and grant.scope is None:
            return
        asked = f"{method} {path[:200]}"
        if route.role is None or not route.path:
            raise _forbidden(grant, asked, "is not a route, or is one for admins of all groups")
        if grant.role < route.role:
            raise _forbidden(grant, asked, f"needs the role {route.role}")
        if group_id is not None:
            if not grant.covers(group_id):
                raise _forbidden(grant, asked, f"is about group '{group_id[:128]}'")
        elif grant.scope is not None and not route.scoped:
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
    permit: Any = request.scope[_KEY]
    assert isinstance(permit, Permit)
    return permit


def _forbidden(grant: Grant, asked: str, why: str) -> Forbidden:
    return Forbidden(
        f"this token may not do that: its {grant}, but {asked} {why}: "
        f"use another token, or change its line in hetserver's token file"
    )
