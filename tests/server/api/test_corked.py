"""The head of a reply and its body are one write."""

import asyncio
import socket
from typing import Any

from hetrdzv.api.http.corked import Corked

HEAD, BODY = b"HTTP/1.1 200 OK\r\n\r\n", b"{}"


class Written(asyncio.Transport):
    """Remembers what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = self.aborted = False
        self.unread = 0
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def write(self, data: Any) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True


async def test_a_head_goes_with_its_body() -> None:
    written = Written()
    corked = Corked(written, 0.01)
    for _ in range(2):
        corked.write(HEAD)
        corked.write(BODY)
        corked.write(BODY)
    await asyncio.sleep(0)
    assert written.writes == [HEAD + BODY, BODY] * 2


async def test_a_head_without_a_body_waits_for_the_end_of_the_turn_only() -> None:
    written = Written()
    Corked(written, 0.01).write(HEAD)
    assert not written.writes
    await asyncio.sleep(0)
    assert written.writes == [HEAD]


async def test_a_head_is_sent_before_the_end() -> None:
    written = Written()
    corked = Corked(written, 0.01)
    corked.write(HEAD)
    corked.close()
    await asyncio.sleep(0)
    assert written.writes == [HEAD]
    assert written.closed


async def test_a_client_that_does_not_read_is_given_up_after_the_end() -> None:
    written = Written()
    written.unread = 1
    Corked(written, 0.01).close()
    assert not written.aborted
    async with asyncio.timeout(10):
        while not written.aborted:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def test_what_is_held_is_not_read_whoever_resumes() -> None:
    written = Written()
    corked = Corked(written, 0.01)
    corked.hold()
    corked.resume_reading()
    assert not written.reads
    corked.release(resume=False)
    assert not written.reads
    corked.resume_reading()
    assert written.reads
    corked.hold()
    corked.release(resume=True)
    assert written.reads


async def test_a_client_that_reads_the_rest_after_the_end_is_not_given_up_again() -> None:
    """asyncio cannot abort a transport that has sent everything and is gone."""
    loop, told = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: told.append(context))
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, ours)
    corked = Corked(transport, 0.05)
    corked.write(bytes(4 << 20))
    assert transport.get_write_buffer_size()
    corked.close()
    given_up = loop.time() + 0.05
    while await loop.sock_recv(theirs, 1 << 20):
        pass
    while loop.time() <= given_up + 0.01:  # noqa: ASYNC110 - only time makes it give up
        await asyncio.sleep(0.01)
    theirs.close()
    assert told == []
