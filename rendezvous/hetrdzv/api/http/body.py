"""Reads the body of a request, with a limit on its size and on the time that it may take."""

import asyncio
from collections.abc import Mapping
from typing import Self

from starlette.types import Message, Receive

from hetrdzv.protocol.bounds import MAX_BODY_BYTES, MAX_VALUES
from hetrdzv.protocol.errors import BodyTooLarge, RequestTooSlow

ARRIVAL_S = 10.0
"""How long a body may take to arrive (seconds)."""

PARSED = "hetrdzv.parsed"
"""In the scope of a request: to be called if its body is dropped long before its answer (`Body.parsed`)."""


class Body:
    """The whole body of a request, which is small; nothing beyond the limit is ever held or parsed.

    Args:
        headers: of the request, by lower-case names.
        receive: the ASGI channel that the body comes from.
    """

    def __init__(self, headers: Mapping[str, str], receive: Receive) -> None:
        self._headers = headers
        self._receive = receive
        self._first: list[Message] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.parsed()

    def parsed(self) -> None:
        """The body is not needed any more."""
        self._first.clear()

    async def receive(self) -> Message:
        """The ASGI channel for the application: the whole body at once, then whatever follows."""
        return self._first.pop() if self._first else await self._receive()

    async def read(self) -> bool:
        """Read the body; False if the client disconnected before it had sent everything.

        Raises:
            BodyTooLarge, RequestTooSlow: it is refused.
        """
        length = self._headers.get("content-length", "0")
        if _number(length) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"body: it has {length} bytes; the limit is {MAX_BODY_BYTES}")
        if length == "0" and "transfer-encoding" not in self._headers:
            return True
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(ARRIVAL_S):
                while more:
                    message = await self._receive()
                    if message["type"] != "http.request":
                        return False
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > MAX_BODY_BYTES:
                        raise BodyTooLarge(f"body: it has more than {MAX_BODY_BYTES} bytes")
        except TimeoutError:
            raise RequestTooSlow(f"body: it did not arrive within {ARRIVAL_S:g} s") from None
        if len(body) > MAX_VALUES and _has_many_values(body):
            raise BodyTooLarge(f"body: it has more than {MAX_VALUES} values")
        self._first = [{"type": "http.request", "body": bytes(body), "more_body": False}]
        return True


def _has_many_values(body: bytes | bytearray) -> bool:
    """Whether a JSON text has more than `MAX_VALUES`: an MB of small ones takes 0.1 s to parse, and 30 MB."""
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * MAX_VALUES:  # a name and a text for each
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return sum(map(outside.count, (b",", b"[", b"{"))) > MAX_VALUES


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else 0
