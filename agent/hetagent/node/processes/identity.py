"""Who an agent is, which marks its processes, and how it speaks to the servers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hetagent.node.processes import proctree as processes
from hetrdzv.auth.files import reread_token
from hetrdzv.auth.tls import ClientTls
from hetrdzv.client.client import Client


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """Who this agent is: what marks its workers as its own."""

    group: str
    node_id: str
    incarnation: str

    @property
    def process_env(self) -> dict[str, str]:
        """The environment of its processes, by which whoever clears away after it finds them."""
        return {
            processes.GROUP: self.group,
            processes.NODE_ID: self.node_id,
            processes.INCARNATION: self.incarnation,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """How to speak to the servers."""

    servers: Sequence[str]
    token: str | None = None
    token_file: Path | None = None
    tls: ClientTls = field(default_factory=ClientTls)

    def read_newest_token(self) -> str | None:
        """What the token's file holds by now; None: there is no file."""
        return reread_token(self.token_file)

    def secrets(self) -> list[str]:
        """What must not be shown to anybody."""
        return list(filter(None, [self.token, self.read_newest_token()]))

    def client(self) -> Client:
        """A connection."""
        return Client(self.servers, token=self.token, renew_token=self.read_newest_token, tls=self.tls)
