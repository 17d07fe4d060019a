"""Which tokens a server accepts, and what each may do."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase

from hetrdzv.protocol.errors import Forbidden


class Role(IntEnum):
    """What a token is for; each role may also do what those before it may."""

    READ = 1
    AGENT = 2
    ADMIN = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Grant:
    """What the bearer of a token may do.

    Attributes:
        role: in the groups of the scope.
        scope: shell pattern of the ids of those groups; None: all groups, and what concerns the whole server.
        anonymous: there is no token, since none is required.
    """

    role: Role
    scope: str | None = None
    anonymous: bool = False

    def covers(self, group_id: str) -> bool:
        """Whether a group is in the scope."""
        return self.scope is None or fnmatchcase(group_id, self.scope)

    def check(self, role: Role, group_id: str | None, asked: str, *, filters_by_scope: bool = False) -> None:
        """Check that a request is permitted that needs a role, and names a group; else raise `Forbidden`.

        `filters_by_scope`: it names none, but shows only groups in the scope of the token.
        """
        if self.role < role:
            why = f"needs the role {role}"
        elif group_id is not None and not self.covers(group_id):
            why = f"is about group '{group_id[:128]}'"
        elif group_id is None and self.scope is not None and not filters_by_scope:
            why = "is about all groups"
        else:
            return
        raise Forbidden(
            f"this token may not do that: its {self}, but {asked[:200]} {why}: "
            f"use another token, or change its line in hetserver's token file"
        )

    def describe_bearer(self, host: str) -> str:
        """Who asks, as far as the server knows: `an admin of team-a-* at 10.0.0.9`. Never the token."""
        who = "someone"
        if not self.anonymous:
            of = f" of {self.scope}" if self.scope is not None else ""
            who = f"{'an' if self.role is not Role.READ else 'a'} {self.role}{of}"
        return f"{who} at {host}" if host else who

    def __str__(self) -> str:
        where = f", its groups are {self.scope}" if self.scope is not None else ""
        return f"role is {self.role}{where}"


FULL_GRANT = Grant(Role.ADMIN)
"""What a bare token may do."""

ANONYMOUS_GRANT = Grant(Role.ADMIN, anonymous=True)
"""What everybody may do if no token is required."""


class Tokens:
    """The tokens that a server accepts: their grants, by SHA-256."""

    def __init__(self, granted: Mapping[str, Grant]) -> None:
        self.set_tokens(granted)

    def set_tokens(self, granted: Mapping[str, Grant]) -> None:
        """Accept these tokens, and no others."""
        self.grants = {token_digest(token): grant for token, grant in granted.items()}

    def grant(self, token: str) -> Grant | None:
        """What a token may do; None: it is not accepted."""
        return self.grants.get(token_digest(token))


def is_valid_token(word: str) -> bool:
    """Whether an HTTP header can carry a token: one word of visible ASCII characters."""
    return re.fullmatch(r"[!-~]+", word) is not None


def token_digest(token: str) -> bytes:
    """How a token is kept in memory."""
    return hashlib.sha256(token.encode()).digest()
