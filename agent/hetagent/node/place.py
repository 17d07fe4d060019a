"""The address that this node offers, and a new one when the node has lost it."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hetagent.node import network

RESOLVE_PAUSE_S = 1.0
"""Pause between two look-ups of a server's name (seconds)."""

NEWS_S = 10.0
"""While names cannot be looked up, that is said again this often (seconds)."""

_T = TypeVar("_T")


class Place:
    """The address that this node offers, and its interface.

    Args:
        find: looks for both; may raise `network.NetworkError`.
        fixed: the person gave the address, so it never changes.
        chosen: the person gave the address or the interface, so traffic is bound to it.

    Attributes:
        interface: None where no interface of this node has the address (NAT), or it is a name.
    """

    def __init__(
        self, find: Callable[[], tuple[str, str | None]], *, fixed: bool, chosen: bool = False
    ) -> None:
        self._find = find
        self._fixed = fixed
        self._chosen = chosen
        self.address, self.interface = find()

    def moved(self) -> bool:
        """Look for another address if this node has lost its own; whether there is one.

        A container that was cut from its network and connected again gets another, and so does a laptop.
        """
        if self._fixed or self.interface is None or network.interface_of(self.address) is not None:
            return False
        try:
            self.address, self.interface = self._find()
        except network.NetworkError:
            return False  # there is no better one yet
        return True

    def socket_env(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What workers need in their environment to use this address: see `network.socket_env`."""
        return network.socket_env(self.address, self.interface, environ, chosen=self._chosen)


def find_place(
    local_addr: str | None,
    interface: str | None,
    servers: Sequence[str],
    patience_s: float,
    tell: Callable[[str], None],
) -> Place:
    """The address to offer, waiting for the resolver where it is not up yet.

    Args:
        local_addr, interface: what the person gave; at most one of them.
        servers: URLs; the address towards them is taken where neither was given.
        patience_s: how long to wait (seconds).
        tell: shows a line at the terminal.

    Raises:
        network.NetworkError: there is none.
    """

    def find() -> tuple[str, str | None]:
        return network.offered_address(local_addr, interface, servers)

    fixed = local_addr is not None
    chosen = fixed or interface is not None
    return patiently(lambda: Place(find, fixed=fixed, chosen=chosen), patience_s, tell)


def patiently(find: Callable[[], _T], patience_s: float, tell: Callable[[str], None]) -> _T:
    """Call `find` until names can be looked up, for a container may start before its network; returns its result.

    Args:
        patience_s: how long to keep trying (seconds).
        tell: shows a line at the terminal, now and every `NEWS_S`.

    Raises:
        network.NamesAway: they still cannot be looked up.
    """
    began_at = time.monotonic()
    tell_at = 0.0
    while True:
        try:
            return find()
        except network.NamesAway as error:
            now = time.monotonic()
            if now >= began_at + patience_s:
                raise
            if now >= tell_at:
                tell_at = now + NEWS_S
                tell(f"{error}; trying again for {began_at + patience_s - now:.0f} s")
            time.sleep(RESOLVE_PAUSE_S)
