"""Which tokens a server accepts, and what each may do."""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase


class Role(IntEnum):
    """What a token is for; each role may also do what those before it may."""

    READ = 1
    AGENT = 2
    ADMIN = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Grant:
    """What the bearer of a token may do.

    Attributes:
        role: in the groups of the scope.
        scope: shell pattern of the ids of those groups; None: all groups, and what concerns the whole server.
    """

    role: Role
    scope: str | None = None

    def covers(self, group_id: str) -> bool:
        """Whether a group is in the scope."""
        return self.scope is None or fnmatchcase(group_id, self.scope)

    def __str__(self) -> str:
        where = f", its groups are {self.scope}" if self.scope is not None else ""
        return f"role is {self.role}{where}"


EVERYTHING = Grant(Role.ADMIN)
"""What everybody may do if no token is required."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A token, as its hash, with its grant."""

    digest: bytes
    grant: Grant


class Tokens:
    """The tokens that a server accepts, each with its grant."""

    def __init__(self, granted: Mapping[str, Grant]) -> None:
        self._entries = entries(granted)

    @property
    def accepted(self) -> Sequence[Entry]:
        """All of them."""
        return self._entries

    def entry(self, given: str) -> Entry | None:
        """A token with its grant, or None. Compares with every token in constant time."""
        digest, known = _digest(given), None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                known = entry
        return known


def entries(granted: Mapping[str, Grant]) -> list[Entry]:
    """Tokens as a server keeps them: hashed."""
    return [Entry(_digest(token), grant) for token, grant in granted.items()]


def is_token(word: str) -> bool:
    """Whether an HTTP header can carry a token: one word of visible ASCII characters."""
    return re.fullmatch(r"[!-~]+", word) is not None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
