"""Checks that a peer can be reached, before workers depend on it."""

import asyncio
import errno
import os
import socket

RETRY_S = 0.1
"""Pause after a refused connection (seconds): the peer may be about to listen."""

AGAIN_S = 0.5
"""How long a connection may stay unanswered before another one is tried beside it (seconds).

The kernel repeats a lost packet of a connection only once a second: if one packet in ten is lost, that alone would make
one master in fifty look unreachable.
"""


async def reachable(
    address: str, port: int, timeout_s: float = 3.0, *, interface: str | None = None, source: str = ""
) -> str | None:
    """Try TCP connections until one succeeds or the time is over.

    Args:
        address: a host name or an IP address, IPv6 without brackets.
        timeout_s: for everything, the look-up of the name included (seconds).
        interface: the only one of this node's that may be used; None: any.
        source: an address of it, which kernels before 5.7 go by.

    Returns:
        None if one succeeded, else why not: `connection refused`, `timed out after 3 s`, `cannot resolve 'x'`. Errors
        that may pass are retried: a host that is back is "no route to host" until its neighbours look for it again.
    """
    reason = f"timed out after {timeout_s:g} s"
    tries: set[asyncio.Task[None]] = set()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                tries.add(asyncio.create_task(_connect(address, port, interface, source)))
                done, tries = await asyncio.wait(tries, timeout=AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    error = attempt.exception()
                    if error is None:
                        return None
                    if not isinstance(error, OSError) or isinstance(error, socket.gaierror):
                        raise error
                    reason = _reason(error)
                if done:
                    await asyncio.sleep(RETRY_S)
    except TimeoutError:
        return reason
    except (socket.gaierror, UnicodeError):
        return f"cannot resolve '{address}'"
    finally:
        for attempt in tries:
            attempt.cancel()
        await asyncio.gather(*tries, return_exceptions=True)


async def _connect(address: str, port: int, interface: str | None, source: str) -> None:
    """Connect to any of a name's addresses.

    Raises:
        OSError: that of the last address. (`asyncio.open_connection` hides them in one text when there are
            several.)
    """
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for family, kind, protocol, _, sockaddr in places:
        with socket.socket(family, kind, protocol) as sock:
            sock.setblocking(False)
            try:
                if interface is not None:
                    _bind(sock, interface, source)
                await loop.sock_connect(sock, sockaddr)
                if sock.getsockname() != sockaddr:
                    return
                # TCP lets a socket connect to itself: nobody listens, and the kernel chose this very port for it
                failure = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            except OSError as error:
                failure = error
    assert failure is not None, "getaddrinfo returns at least one address or raises"
    raise failure


def _bind(sock: socket.socket, interface: str, source: str) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except PermissionError:
        sock.bind((source, 0))


def _reason(error: OSError) -> str:
    if error.errno == errno.ETIMEDOUT:
        return "timed out"
    return os.strerror(error.errno).lower() if error.errno else str(error)
