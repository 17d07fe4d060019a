"""TCP keepalive: the kernel closes connections to hosts that are gone."""

import math
import socket


def keep_alive(sock: socket.socket, within_s: float) -> bool:
    """Have the kernel break a connection, or all that a socket accepts, once the other host is silent for `within_s`.

    Seconds are the smallest unit, so it takes 2 s at least.
    """
    total_s = max(2, math.ceil(within_s))
    interval_s = max(1, total_s // 4)
    try:
        options = (
            (socket.TCP_KEEPIDLE, max(1, total_s - 2 * interval_s)),
            (socket.TCP_KEEPINTVL, interval_s),
            (socket.TCP_KEEPCNT, 2),
            # data on its way is bounded by this alone; on an idle connection it only shortens the probes
            (socket.TCP_USER_TIMEOUT, 1_000 * total_s),
        )
        for option, value in options:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except (AttributeError, OSError):  # not on Linux, or no TCP
        return False
    return True
