"""TCP keepalive, by which each end of a connection notices that the other's host, or the network, is gone.

The kernel sends probes while nothing else is sent, so a poll may wait long without a loss being noticed any later.
"""

import socket

SOCKET_HEADER = "Het-Socket"
"""With a poll: the agent's own end of its connection, as `host:port`. If the server sees another one, a proxy is in
between, whose connection says nothing about the agent's host."""


def name_of(address: object) -> str | None:
    """A socket's address as `SOCKET_HEADER` has it; None if it is not one of TCP."""
    if not isinstance(address, tuple) or len(address) < 2:
        return None
    return f"{str(address[0]).partition('%')[0]}:{address[1]}"


def keep_alive(sock: socket.socket, within_s: float) -> bool:
    """Have the kernel break a connection whose other host does not answer, four fifths of `within_s` after it last did.

    Seconds are the smallest unit, so that it takes 2 s at least.

    Returns:
        whether this system can do that.
    """
    try:
        options = (
            (socket.TCP_KEEPIDLE, max(1, int(within_s * 0.4))),
            (socket.TCP_KEEPINTVL, max(1, int(within_s * 0.2))),
            (socket.TCP_KEEPCNT, 2),
            # data on its way is bounded by this alone; on an idle connection it only shortens the probes
            (socket.TCP_USER_TIMEOUT, max(2_000, int(within_s * 800))),
        )
        for option, value in options:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except (AttributeError, OSError):  # not on Linux, or no TCP
        return False
    return True
