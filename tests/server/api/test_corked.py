"""The head of a reply and its body are one write."""

import asyncio
from typing import Any

from hetrdzv.api.http.corked import Corked

HEAD, BODY = b"HTTP/1.1 200 OK\r\n\r\n", b"{}"


class Written(asyncio.Transport):
    """Remembers what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True


async def test_a_head_goes_with_its_body() -> None:
    written = Written()
    corked = Corked(written)
    for _ in range(2):
        corked.write(HEAD)
        corked.write(BODY)
        corked.write(BODY)
    await asyncio.sleep(0)
    assert written.writes == [HEAD + BODY, BODY] * 2


async def test_a_head_without_a_body_waits_for_the_end_of_the_turn_only() -> None:
    written = Written()
    Corked(written).write(HEAD)
    assert not written.writes
    await asyncio.sleep(0)
    assert written.writes == [HEAD]


async def test_a_head_is_sent_before_the_end() -> None:
    written = Written()
    corked = Corked(written)
    corked.write(HEAD)
    corked.close()
    await asyncio.sleep(0)
    assert written.writes == [HEAD]
    assert written.closed
