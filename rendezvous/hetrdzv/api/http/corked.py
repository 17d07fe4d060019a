"""A transport that makes one write of the head and the body of a reply."""

import asyncio
from typing import Any


class Corked(asyncio.Transport):
    """Sends the head of a reply together with its body, if that follows in the same turn of the event loop.

    Args:
        transport: does the sending.
        unread_s: how long the client of a closed connection may take to read what it was sent (seconds).
    """

    def __init__(self, transport: asyncio.Transport, unread_s: float) -> None:
        super().__init__()
        self._transport = transport
        self._unread_s = unread_s
        self._head = b""
        self._holds = False
        # what is called all the time
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.abort = transport.abort  # type: ignore[method-assign]

    def write(self, data: Any) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            asyncio.get_running_loop().call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        if not self._transport.is_closing() and self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(self._unread_s, self._give_up)
        self._transport.close()

    def _give_up(self) -> None:
        """Drop what the client has not read; a transport that has sent all of it is gone, and cannot be aborted."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()

    def hold(self) -> None:
        """Read nothing until `release`, whatever `resume_reading` is called for."""
        if not self._holds:
            self._holds = True
            self._transport.pause_reading()

    def release(self, *, resume: bool) -> None:
        """End what `hold` began.

        Args:
            resume: whether nothing else pauses the reading.
        """
        if self._holds:
            self._holds = False
            if resume:
                self._transport.resume_reading()

    def resume_reading(self) -> None:
        if not self._holds:
            self._transport.resume_reading()
