"""TCP keepalive, by which each end of a connection notices that the other's host, or the network, is gone.

The kernel sends probes while nothing else is sent, so a poll may wait long without a loss being noticed any later.
"""

import math
import socket
import struct

SOCKET_HEADER = "Het-Socket"
"""With a poll: the agent's own end of its connection, as `host:port`. If the server sees another one, a proxy is in
between, whose connection says nothing about the agent's host."""

_LAST_HEARD = (52, 8)
"""Where Linux' `tcp_info` says how long ago data and how long ago an acknowledgement came (ms), and their size."""


def name_of(address: object) -> str | None:
    """A socket's address as `SOCKET_HEADER` has it; None if it is not one of TCP."""
    if not isinstance(address, tuple) or len(address) < 2:
        return None
    return f"{str(address[0]).partition('%')[0]}:{address[1]}"


def keep_alive(sock: socket.socket, within_s: float) -> bool:
    """Have the kernel break a connection a second before the other host has been silent for `within_s`.

    That second is the grace of a suspect (`SUSPECT_GRACE_S`): no node is lost before its lease ends, on which its
    workers may rely (`max_disconnect_s`). Seconds are the smallest unit, so it takes 2 s at least.

    Returns:
        whether this system can do that.
    """
    total_s = _total_s(within_s)
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


def count_silence(sock: socket.socket, within_s: float) -> None:
    """Before something is sent: its time limit begins when the other host was last heard, not now.

    Else a host that is gone would have `within_s` again from an answer that is sent to it in vain. The next
    `keep_alive` takes this back.
    """
    offset, size = _LAST_HEARD
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, offset + size)
        left_ms = 1_000 * _total_s(within_s) - min(struct.unpack_from("=II", info, offset))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, left_ms))
    except (AttributeError, OSError):  # the connection broke just now
        return


def _total_s(within_s: float) -> int:
    return max(2, math.ceil(within_s) - 1)
