"""What is known of this node before it joins, of which all parts of its agent are made."""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetagent.launch.base import Launch
from hetagent.launch.command import WorkerCommand
from hetagent.node import network
from hetagent.node.gpu.devices import Devices
from hetagent.node.network import AdvertisedAddress
from hetagent.node.processes import proctree as processes
from hetagent.options.model import Options
from hetrdzv.auth.client_token import reread_token
from hetrdzv.auth.tls import ClientTls
from hetrdzv.client.client import Client


@dataclass(frozen=True, slots=True)
class Identity:
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
    token: str | None
    token_file: Path | None
    tls: ClientTls

    def newest_token(self) -> str | None:
        """What the token's file holds by now; None: there is no file."""
        return reread_token(self.token_file)

    def secrets(self) -> list[str]:
        """What must not be shown to anybody."""
        return list(filter(None, [self.token, self.newest_token()]))

    def client(self) -> Client:
        """A connection."""
        return Client(self.servers, token=self.token, renew_token=self.newest_token, tls=self.tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """What is known of this node before it joins, of which all parts of its agent are made.

    Attributes:
        command: what the workers run; None: the group's command.
        devices: those that were chosen; None: nobody has looked at them.
        address:its address.
        versions: of torch, the driver and others, by name.
        tell: shows one line to the person at the terminal.
    """

    options: Options
    access: ServerAccess
    identity: Identity
    command: WorkerCommand | None
    devices: Devices | None
    slots: int
    address: AdvertisedAddress
    launch: Launch
    versions: Mapping[str, str]
    tell: Callable[[str], None]

    def hold_port(self) -> socket.socket:
        """A listening socket on the address that this node offers."""
        return network.hold_port(self.address.address, self.options.port_range)

    def hold_script_port(self) -> socket.socket:
        """The same for a port that may be free for some seconds before the script opens it."""
        return network.hold_port(
            self.address.address,
            self.options.port_range,
            chosen_by_kernel=not self.launch.releases_script_port,
        )
