"""What is known of the client of an open request: whether it showed a certificate, and whether it is gone."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Receive, Scope

from hetrdzv.service.liveness.caller import Caller

CALLER = "hetrdzv.caller"
"""In the `state` of a request's scope: the `Caller` of its connection (connections.py)."""

CERTIFIED = "hetrdzv.certified"
"""In the `state` of a request's scope: whether its connection showed a trusted client certificate."""


@contextmanager
def calling(scope: Scope, receive: Receive) -> Iterator[Caller]:
    """The client of a request, for as long as it waits for the answer.

    Our own connections tell when they are lost. Under another ASGI server a task listens for that.
    """
    known: Caller | None = scope.get("state", {}).get(CALLER)
    if known is not None:
        yield known
        return
    caller = Caller()

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        caller.hang_up()

    listening = asyncio.ensure_future(listen())
    try:
        yield caller
    finally:
        listening.cancel()
