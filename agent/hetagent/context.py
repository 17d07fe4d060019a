"""What is known of this node before it joins, of which all parts of its agent are made."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hetagent.launch.base import Launch
from hetagent.launch.command import WorkerCommand
from hetagent.node import network
from hetagent.node.gpu.devices import Devices
from hetagent.node.network import AdvertisedAddress
from hetagent.node.processes.identity import AgentIdentity, ServerAccess
from hetagent.options.model import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """What is known of this node before it joins, of which all parts of its agent are made."""

    options: Options
    access: ServerAccess
    identity: AgentIdentity
    command: WorkerCommand | None  # what the workers run; None: the group's
    devices: Devices
    address: AdvertisedAddress
    launch: Launch
    versions: Mapping[str, str]  # of torch, the driver and others
    tell: Callable[[str], None]  # shows one line at the terminal

    def hold_port(self) -> socket.socket:
        """A listening socket on the address that this node offers."""
        return network.hold_port(self.address.address, self.options.port_range)

    def hold_script_port(self) -> socket.socket:
        """The same for a port that may be free for some seconds before the script opens it."""
        return network.hold_port(self.address.address, self.options.port_range or network.SCRIPT_PORTS)
