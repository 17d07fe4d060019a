"""What is known of the client of an open request: whether it showed a certificate, and whether it is gone."""

import asyncio
from contextlib import AbstractContextManager
from typing import Self

from starlette.types import Receive, Scope

from hetrdzv.service.liveness.caller import Caller

CALLER = "hetrdzv.caller"
"""In the `state` of a request's scope: the `Caller` of its connection (connections.py)."""

CERTIFIED = "hetrdzv.certified"
"""In the `state` of a request's scope: whether its connection showed a trusted client certificate."""


ACCEPT = "hetrdzv.accept"
"""In the `state` of a request's scope: called once the request is whole and allowed (places.py)."""


def calling(scope: Scope, receive: Receive) -> AbstractContextManager[Caller]:
    """The client of a request, for as long as it waits for the answer.

    Our own connections tell when they are lost. Under another ASGI server a task listens for that.
    """
    known: Caller | None = scope.get("state", {}).get(CALLER)
    return known if known is not None else _Listener(receive)


class _Listener(Caller):
    """A client whose connection is listened to during a `with` block."""

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive

    def __enter__(self) -> Self:
        self._listening = asyncio.ensure_future(self._listen())
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.cancel()

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.hang_up()
