"""Follows a group's history: server-sent events, over as many connections as it takes."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import httpx
from httpx_sse import EventSource, SSEError

from hetrdzv.protocol.errors import InvalidRequest, NotHetserver, Problem, Unreachable
from hetrdzv.protocol.wire import EventReply

SILENCE_S = 45.0
"""A stream that is silent for longer, keep-alive comments included, is connected again (seconds)."""

REMEMBERED = 1_000
"""How many events are kept to recognise duplicates: as many as a server keeps of a group."""

Connect = Callable[[int, str | None], Awaitable[httpx.Response]]
"""Opens a stream of the events after a number, or, if there is one, after a place that a server gave."""


async def history(
    connect: Connect, parse: Callable[[str], EventReply], after: int
) -> AsyncIterator[EventReply]:
    """The events after number `after`, each once, for as long as the caller wants.

    If the group is deleted and created again meanwhile, its events follow, from number 1.

    Raises:
        Unreachable: no server answered the first connection. Later ones are retried forever.
        HetError: a server refused; for one, there is no such group any more.
    """
    position, connected, failures = _Position(after), False, 0
    while True:
        try:
            response = await connect(position.ask_after, position.place)
        except Unreachable:
            if not connected:
                raise
        except Problem as problem:
            if position.place is None or problem.status != InvalidRequest.status:
                raise
            position.place = None  # a server of API 1.0 took over, which knows numbers only
        else:
            connected = True
            try:
                async with aclosing(EventSource(response).aiter_sse()) as stream:
                    async for sent in stream:
                        if "@" in sent.id:  # an id of API 1.0 is the number alone
                            position.place = sent.id
                        if not sent.data:  # an empty block, as after a comment
                            continue
                        event = parse(sent.data)
                        if position.advance(event):
                            failures = 0
                            yield event
                        elif position.is_lost:
                            break
            except SSEError:
                raise NotHetserver(f"{response.url} answered, but not with an event stream") from None
            except httpx.TransportError:
                pass  # cut, or silent for too long
            finally:
                await response.aclose()
            if position.is_lost:
                position = _Position(0)
        failures += 1
        await asyncio.sleep(random.uniform(0.5, 1.0) * min(2.0, 0.05 * 2.0 ** min(failures, 10)))


class _Position:
    """How far a history has been read; recognises duplicates, and a new group under the same name.

    A new group counts from 1 again. A server since API 1.1 tells it from the old one by the place, and sends all of it.
    For API 1.0 there is only the number: a server that is asked for what comes after a number that the group has not
    reached sends everything. If the new group has already got further, only the event of that number tells them
    apart, so that one is asked for again.

    Attributes:
        place: the id that a server gave the last event; None: it gave none, or only a number.
        is_lost: this is a new group, and its first events were not asked for.
    """

    def __init__(self, after: int) -> None:
        self.place: str | None = None
        self.is_lost = False
        self._after = after
        self._seen: dict[int, EventReply] = {}

    @property
    def ask_after(self) -> int:
        """The number to ask a server with: it sends the events after it."""
        return self._after - 1 if self._after in self._seen else self._after

    def advance(self, event: EventReply) -> bool:
        """Take an event as read; False: it is not to be shown."""
        if event.number <= self._after:
            if self._seen.get(event.number) == event:
                return False
            if event.number > self.ask_after:
                self.is_lost = True
                return False
            self._seen.clear()
        self._after = event.number
        self._seen[event.number] = event
        self._seen.pop(event.number - REMEMBERED, None)
        return True
