"""How much one address may have under way at once, and how many bodies are held: what bounds memory.

Requests of agents are small and wait; all others may have large replies, so few of them are made at once.
"""

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable
from functools import lru_cache

from starlette.types import Scope

from hetrdzv.errors import Busy, TooManyPolls

READS_PER_ADDRESS = 16
"""So many replies to people and programs are made and sent at once for one address; others wait."""

SMALL_BODY_BYTES = 1 << 16
"""Bodies up to this size are not counted: what an agent sends is far below."""

BODIES_BYTES = 64 << 20
"""What all larger bodies together may hold."""

HEALTH = ("/healthz", "/readyz")
"""What is always answered, whoever has how much open."""

_SMALL = re.compile(r"/healthz|/readyz|/v1/groups/[^/]+/nodes/[^/]+(/directive|/report)?")
"""What has small replies: health, and the requests of agents."""


@lru_cache(4096)
def neighbourhood(address: str) -> str:
    """What an address is counted as: IPv6 by its /64, which is one network's to choose from."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((parsed, 64), strict=False))


class Admission:
    """What is under way, by address.

    Args:
        max_polls: how many polls and followed histories one address may have open.
    """

    def __init__(self, max_polls: int) -> None:
        self._max_polls = max_polls
        self._polls: dict[str, int] = {}
        self._reads: dict[str, tuple[asyncio.Semaphore, int]] = {}
        self.bodies = Bodies()

    async def admit(self, scope: Scope, accept: str, go_on: Callable[[], Awaitable[None]]) -> None:
        """Let a request go on, when it is its turn.

        Raises:
            TooManyPolls: its address has as many open as it may.
        """
        path: str = scope["path"]
        client = scope.get("client")
        address = neighbourhood(client[0]) if client else ""
        if _SMALL.fullmatch(path) is None and not (
            path.endswith("/events") and "text/event-stream" in accept
        ):
            await self._read(address, go_on)
            return
        if path in HEALTH:
            await go_on()
            return
        open_now = self._polls.get(address, 0)
        if open_now >= self._max_polls:
            raise TooManyPolls(
                f"{address or 'this address'} has {self._max_polls} polls and followed histories open, and may "
                f"have no more: close some, or start hetserver with a larger --max-polls-per-address"
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
    """The large bodies that are held."""

    def __init__(self) -> None:
        self._held = 0

    def grow(self, before: int, after: int) -> None:
        """A body has grown (bytes); 0 after its request.

        Raises:
            Busy: too much is held.
        """
        before, after = (size if size > SMALL_BODY_BYTES else 0 for size in (before, after))
        if after > before and self._held + after - before > BODIES_BYTES:
            raise Busy("the server holds as many large bodies as it may; send it again in a moment")
        self._held += after - before
