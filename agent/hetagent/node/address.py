"""The address that this node offers, and a new one when the node has lost it."""

import time
from collections.abc import Callable, Mapping, Sequence

from hetagent.node import network

RESOLVE_PAUSE_S = 1.0
"""Pause between two look-ups of a server's name (seconds)."""

NEWS_S = 10.0
"""How often to log that names cannot be looked up (seconds)."""


class AdvertisedAddress:
    """The address that this node offers, and its interface.


    Attributes:
        interface: None where no interface of this node has the address (NAT), or it is a name.
    """

    def __init__(self, local_addr: str | None, interface: str | None, servers: Sequence[str]) -> None:
        self._given = (local_addr, interface)
        self._servers = servers
        self.address, self.interface = network.offered_address(local_addr, interface, servers)

    def moved(self) -> bool:
        """Look for another address if this node has lost its own; whether there is one.

        A container that was cut from its network and connected again gets another, and so does a laptop.
        """
        is_fixed = self._given[0] is not None or self.interface is None
        if is_fixed or network.interface_of(self.address) is not None:
            return False
        try:
            self.address, self.interface = network.offered_address(*self._given, self._servers)
        except network.NetworkError:
            return False  # there is no better one yet
        return True

    def socket_env(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What workers need in their environment to use this address: see `network.socket_env`."""
        return network.socket_env(self.address, self.interface, environ, chosen=any(self._given))


def find_address(
    local_addr: str | None,
    interface: str | None,
    servers: Sequence[str],
    timeout_s: float,
    log: Callable[[str], None],
) -> AdvertisedAddress:
    """The address to offer; waits until names can be looked up, for a container may start before its network."""
    until = time.monotonic() + timeout_s
    log_at = 0.0
    while True:
        try:
            return AdvertisedAddress(local_addr, interface, servers)
        except network.NamesAway as error:
            now = time.monotonic()
            if now >= until:
                raise
            if now >= log_at:
                log_at = now + NEWS_S
                log(f"{error}; trying again for {until - now:.0f} s")
            time.sleep(RESOLVE_PAUSE_S)
