"""Checks that a peer can be reached, before workers depend on it."""

import asyncio
import os
import socket
import time

RETRY_S = 0.1
"""Pause after a refused connection (seconds): the peer may be about to listen."""

ATTEMPT_S = 0.5
"""How long one connection may take while there is time for another (seconds): the kernel repeats a lost packet of a
connection only after a second."""


async def find_connect_error(address: str, port: int, timeout_s: float = 3.0) -> str | None:
    """Try TCP connections until one succeeds or the time is over.

    Args:
        address: a host name or an IP address, IPv6 without brackets.
        timeout_s: for everything, name resolution included (seconds).

    Returns:
        None if one succeeded, else why not: `connection refused`, `timed out after 3 s`, `cannot resolve 'x'`. Errors
        that may pass are retried: a host that is back is "no route to host" until its neighbours look for it again.
    """
    reason = f"timed out after {timeout_s:g} s"
    until = time.monotonic() + timeout_s
    while (left_s := until - time.monotonic()) > 0:
        # The last attempt may take all that is left: on slow links a connection takes longer.
        attempt_s = ATTEMPT_S if left_s > 3 * ATTEMPT_S else left_s
        try:
            async with asyncio.timeout(attempt_s):
                _, writer = await asyncio.open_connection(address, port)
            writer.close()
            return None
        except TimeoutError:
            continue
        except (socket.gaierror, UnicodeError):
            return f"cannot resolve '{address}'"
        except OSError as error:
            # that of a name with several addresses has no number
            reason = (
                os.strerror(error.errno).lower() if error.errno else "no connection to any of its addresses"
            )
            await asyncio.sleep(min(RETRY_S, max(0.0, until - time.monotonic())))
    return reason
