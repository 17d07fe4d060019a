"""The address that this node offers, and a new one when the node has lost it."""

import time
from collections.abc import Callable, Mapping, Sequence

from hetagent.node import network
from hetagent.node.console import WarnOnce

RESOLVE_PAUSE_S = 1.0
"""Pause between two look-ups of a server's name (seconds)."""


class AdvertisedAddress:
    """The address that this node offers, and its interface.

    Attributes:
        interface: None where no interface of this node has the address (NAT), or it is a name.
    """

    def __init__(self, local_addr: str | None, interface: str | None, servers: Sequence[str]) -> None:
        self._asked = (local_addr, interface, servers)
        self._is_chosen = local_addr is not None or interface is not None
        self.address, self.interface = network.offered_address(*self._asked)

    def moved(self) -> bool:
        """Look for another address if this node has lost its own; whether there is one.

        A container that was cut from its network and connected again gets another, and so does a laptop.
        """
        is_fixed = self._asked[0] is not None or self.interface is None
        if is_fixed or network.interface_of(self.address) is not None:
            return False
        try:
            self.address, self.interface = network.offered_address(*self._asked)
        except network.NetworkError:
            return False  # there is no better one yet
        return True

    def socket_env(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What workers need in their environment to use this address: see `network.socket_env`."""
        return network.socket_env(self.address, self.interface, environ, chosen=self._is_chosen)


def find_address(
    local_addr: str | None,
    interface: str | None,
    servers: Sequence[str],
    timeout_s: float,
    log: Callable[[str], None],
) -> AdvertisedAddress:
    """The address to offer; waits until names can be looked up, for a container may start before its network."""
    until, log_once = time.monotonic() + timeout_s, WarnOnce(log)
    while True:
        try:
            return AdvertisedAddress(local_addr, interface, servers)
        except network.NamesAway as error:
            if time.monotonic() >= until:
                raise
            log_once(f"{error}; trying again for {timeout_s:.0f} s")
        time.sleep(RESOLVE_PAUSE_S)
