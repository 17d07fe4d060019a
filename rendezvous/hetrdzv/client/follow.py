"""Follows a group's history: server-sent events, over as many connections as it takes."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import httpx
from httpx_sse import EventSource, SSEError

from hetrdzv.protocol.errors import NotHetserver, Unreachable
from hetrdzv.protocol.pages import Event

SILENCE_S = 45.0
"""A stream that is silent for longer, keep-alive comments included, is connected again (seconds)."""

Connect = Callable[[str], Awaitable[httpx.Response]]
"""Opens a stream of the events after a place: a number, or what a server gave as an event's id."""


async def history(connect: Connect, parse: Callable[[str], Event], after: int) -> AsyncIterator[Event]:
    """The events after number `after`, for as long as the caller wants.

    If the group is deleted and created again meanwhile, its events follow, from number 1.

    Raises:
        Unreachable: no server answered the first connection. Later ones are retried forever.
        HetError: a server refused; for one, there is no such group any more.
    """
    place, connected, failures = str(after), False, 0
    while True:
        try:
            response = await connect(place)
        except Unreachable:
            if not connected:
                raise
        else:
            connected = True
            try:
                async with aclosing(EventSource(response).aiter_sse()) as stream:
                    async for sent in stream:
                        place = sent.id or place
                        if sent.data:  # else an empty block, as after a comment
                            failures = 0
                            yield parse(sent.data)
            except SSEError:
                raise NotHetserver(f"{response.url} answered, but not with an event stream") from None
            except httpx.TransportError:
                pass  # cut, or silent for too long
            finally:
                await response.aclose()
        failures += 1
        await asyncio.sleep(random.uniform(0.5, 1.0) * min(2.0, 0.05 * 2.0 ** min(failures, 10)))
