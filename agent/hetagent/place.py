"""Where peers reach this node: changes when what a node does that gets another address does."""

import time
from collections.abc import Callable
from typing import TypeVar

from hetagent import network

RESOLVE_PAUSE_S = 1.0
"""How long to wait before a server's name is looked up again (seconds)."""

_T = TypeVar("_T")


class Place:
    """The address that this node offers, and its interface.

    Args:
        find: looks for them; may raise `network.NetworkError`.
        fixed: the person gave the address, so it never changes.

    Attributes:
        interface: None where none of this node has the address (NAT), or it is a name.
    """

    def __init__(self, find: Callable[[], tuple[str, str | None]], *, fixed: bool) -> None:
        self._find = find
        self._fixed = fixed
        self.address, self.interface = find()

    def moved(self) -> bool:
        """Look for another address where this node has lost the one it had; whether there is one now.

        A container that was cut from its network and connected again has another, and so has a laptop.
        """
        if self._fixed or self.interface is None or network.interface_of(self.address) is not None:
            return False
        try:
            self.address, self.interface = self._find()
        except network.NetworkError:
            return False  # no better one is known
        return True


def patiently(find: Callable[[], _T], patience_s: float, tell: Callable[[str], None]) -> _T:
    """What `find` returns, tried again while names cannot be looked up: a container may start before its network.

    Args:
        patience_s: for how long (seconds).
        tell: shows one line to the person at the terminal, once.

    Raises:
        network.NamesAway: they still cannot.
    """
    until = time.monotonic() + patience_s
    told = False
    while True:
        try:
            return find()
        except network.NamesAway as error:
            if time.monotonic() >= until:
                raise
            if not told:
                tell(f"{error}; trying again")
            told = True
            time.sleep(RESOLVE_PAUSE_S)
