"""What a request may do: the grant of its token, held against the role that its route requires (docs/security.md)."""

from hetrdzv.auth.tokens import EVERYTHING, Entry, Role
from hetrdzv.protocol.errors import Forbidden


class Permit:
    """What a request may do.

    Args:
        entry: its token; None if none is required.

    Attributes:
        grant: of that token.
    """

    def __init__(self, entry: Entry | None) -> None:
        self.entry = entry
        self.grant = entry.grant if entry is not None else EVERYTHING

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

    def check(self, role: Role, group_id: str | None, asked: str, *, scoped: bool) -> None:
        """Check that a request is permitted.

        Args:
            role: the lowest that may use its route.
            group_id: the group that it names, if it does.
            asked: what it asks for, for the error.
            scoped: it names no group, but shows only groups in the scope of the token.

        Raises:
            Forbidden: it is not; says what the token is for and what was asked.
        """
        grant = self.grant
        if grant.role < role:
            why = f"needs the role {role}"
        elif group_id is not None and not grant.covers(group_id):
            why = f"is about group '{group_id[:128]}'"
        elif group_id is None and grant.scope is not None and not scoped:
            why = "is about all groups"
        else:
            return
        raise Forbidden(
            f"this token may not do that: its {grant}, but {asked[:200]} {why}: "
            f"use another token, or change its line in hetserver's token file"
        )
