"""How many connections there are, in all and by address, and which ends when another one needs its place."""

import logging
from collections.abc import Callable

from hetrdzv.api.refused import RefusalLog
from hetrdzv.protocol.errors import Busy
from hetrdzv.settings import Limits

logger = logging.getLogger(__name__)

READ_BODY_BYTES = 1 << 16
"""How much of a body is read at a time, if its length is known."""

PER_POLL = 2
"""Connections allowed per poll of an address: an agent may open another before the old one is closed."""


def most_per_address(limits: Limits) -> int:
    """How many connections one address may have: never all of them, whatever the settings are."""
    return min(PER_POLL * limits.max_polls_per_address, limits.max_connections * 3 // 4)


class Place:
    """The place of one connection. It is safe once a request of the connection was accepted.

    Args:
        connections: where it is counted.
        address: of the client.
        give_way: ends the connection.
    """

    def __init__(self, connections: "Connections", address: str, give_way: Callable[[], None]) -> None:
        self._connections = connections
        self.address = address
        self.give_way = give_way

    def accept(self) -> None:
        """The connection brought a whole request that was allowed."""
        self._connections.accepted(self)

    def leave(self) -> None:
        """The connection has ended."""
        self.give_way = _nothing  # else it would refer to the connection for as long as that refers to it
        self._connections.left(self)


class Connections:
    """Counts connections, in all and by address.

    Args:
        limits: how many there may be.

    Attributes:
        buffer: what is read from any of them comes here first.
        refusals: logs who sends what is not HTTP.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.buffer = memoryview(bytearray(READ_BODY_BYTES))
        self.refusals = RefusalLog()
        self._most_per_address = most_per_address(limits)
        self._by_address: dict[str, set[Place]] = {}
        self._all = 0
        # without an accepted request, oldest first
        self._strangers: dict[Place, None] = {}
        self._strangers_by_address: dict[str, dict[Place, None]] = {}
        self._warned = False

    def take(self, address: str, give_way: Callable[[], None]) -> Place:
        """Count a new connection. If there is no room, the oldest that has brought no accepted request gives way.

        One of the same address does first: who opens many ends its own.

        Args:
            give_way: ends this connection, when its turn comes.

        Raises:
            Busy: the address, or all together, have as many as they may, each with an accepted request.
        """
        limits, own = self.limits, self._strangers_by_address.get(address, {})
        if len(self._by_address.get(address, ())) >= self._most_per_address:
            if not own:
                raise Busy(
                    f"{address} has {self._most_per_address} connections, the maximum for one address: close some, "
                    f"or start hetserver with a larger --max-polls-per-address and --max-connections"
                )
            self._end(next(iter(own)))
        elif self._all >= limits.max_connections:
            if not self._warned:
                self._warned = True
                logger.warning("%d connections are open, the maximum (--max-connections)", self._all)
            if not self._strangers:
                raise Busy(
                    f"the server has {self._all} connections, the maximum: try again, or try another server"
                )
            self._end(next(iter(own or self._strangers)))
        place = Place(self, address, give_way)
        self._all += 1
        self._by_address.setdefault(address, set()).add(place)
        self._strangers[place] = None
        self._strangers_by_address.setdefault(address, {})[place] = None
        return place

    def accepted(self, place: Place) -> None:
        """A connection has brought a request that was allowed."""
        if place in self._strangers:
            del self._strangers[place]
            own = self._strangers_by_address[place.address]
            del own[place]
            if not own:
                del self._strangers_by_address[place.address]

    def left(self, place: Place) -> None:
        """A connection has ended."""
        own = self._by_address.get(place.address, set())
        if place not in own:
            return
        self.accepted(place)
        own.remove(place)
        if not own:
            del self._by_address[place.address]
        self._all -= 1
        self._warned = self._warned and self._all > self.limits.max_connections * 9 // 10

    def _end(self, place: Place) -> None:
        give_way = place.give_way
        place.leave()
        give_way()


def _nothing() -> None:
    """Where nothing is left to end."""
