"""Limits on what a client address may have in progress at once, and on large bodies, to bound memory.

Requests of agents are small and may wait long. All others may have large replies, so only a few are made at once.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from functools import lru_cache

from hetrdzv.protocol.errors import Busy, TooManyPolls
from hetrdzv.protocol.http.route import Size

READS_PER_ADDRESS = 16
"""How many other requests of one address are in progress at once; more have to wait."""

SMALL_BODY_BYTES = 1 << 16
"""Bodies up to this size are not counted; those of agents are far smaller."""

BODIES_BYTES = 64 << 20
"""How much all larger bodies may take together."""


@lru_cache(4096)
def neighbourhood(address: str) -> str:
    """What an address counts as: IPv6 addresses by their /64, since one network can use all of it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((parsed, 64), strict=False))


class Admission:
    """Counts what is in progress, by client address.

    Args:
        max_polls: how many polls and event streams an address may have open.
    """

    def __init__(self, max_polls: int) -> None:
        self._max_polls = max_polls
        self._polls: dict[str, int] = {}
        self._reads: dict[str, tuple[asyncio.Semaphore, int]] = {}
        self.bodies = Bodies()

    async def admit(self, size: Size, host: str, accept: str, go_on: Callable[[], Awaitable[None]]) -> None:
        """Let a request proceed when it is its turn.

        Args:
            host: the address of its client.
            accept: which media types it takes.

        Raises:
            TooManyPolls: its address has the maximum number open.
        """
        if size is Size.ALWAYS:
            await go_on()
            return
        address = neighbourhood(host)
        follows = size is Size.STREAM and "text/event-stream" in accept
        if size is not Size.SMALL and not follows:
            await self._read(address, go_on)
            return
        open_now = self._polls.get(address, 0)
        if open_now >= self._max_polls:
            raise TooManyPolls(
                f"{address or 'this address'} has {self._max_polls} polls and event streams open, the maximum: "
                f"close some, or start hetserver with a larger --max-polls-per-address"
            )
        self._polls[address] = open_now + 1
        try:
            await go_on()
        finally:
            self._polls[address] -= 1
            if not self._polls[address]:
                del self._polls[address]

    async def _read(self, address: str, go_on: Callable[[], Awaitable[None]]) -> None:
        turn, users = self._reads.get(address) or (asyncio.Semaphore(READS_PER_ADDRESS), 0)
        self._reads[address] = turn, users + 1
        try:
            async with turn:
                await go_on()
        finally:
            turn, users = self._reads.pop(address)
            if users > 1:
                self._reads[address] = turn, users - 1


class Bodies:
    """Counts the large bodies in memory."""

    def __init__(self) -> None:
        self._held = 0

    def grow(self, before: int, after: int) -> None:
        """Note that a body has grown (bytes), or, with 0, that its request is over.

        Raises:
            Busy: all large bodies together would take too much.
        """
        before, after = (size if size > SMALL_BODY_BYTES else 0 for size in (before, after))
        if after > before and self._held + after - before > BODIES_BYTES:
            raise Busy("the server is handling too many large requests; send it again in a moment")
        self._held += after - before
