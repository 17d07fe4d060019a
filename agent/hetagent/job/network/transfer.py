"""Measures how fast one direction of a TCP connection is: who receives decides when it ends."""

import asyncio
import contextlib
import socket
import time

MEASURE_S = 0.5
"""How long a direction is measured (seconds)."""

FIRST_S = 2.0
"""How long the first byte may take (seconds)."""

CHUNK = bytes(1 << 20)


async def receive(sock: socket.socket) -> float:
    """How much comes in (bytes/s), from the first byte on; then the connection is closed.

    Raises:
        OSError: nothing came.
    """
    loop, buffer, total = asyncio.get_running_loop(), bytearray(len(CHUNK)), 0
    with sock:
        async with asyncio.timeout(FIRST_S):
            if not await loop.sock_recv_into(sock, buffer):
                raise ConnectionError("closed before the first byte")
        begun = time.monotonic()
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(MEASURE_S):
                while size := await loop.sock_recv_into(sock, buffer):
                    total += size
        return total / (time.monotonic() - begun)


async def send(sock: socket.socket) -> None:
    """Send until the other end closes the connection."""
    loop = asyncio.get_running_loop()
    with sock, contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(FIRST_S + 2 * MEASURE_S):
            while True:
                await loop.sock_sendall(sock, CHUNK)
