"""The socket that hetserver listens on: a new one, or one inherited from its parent."""

import os
import socket
from contextlib import suppress

from hetrdzv.api.server import LISTEN_BACKLOG
from hetrdzv.protocol.errors import HetError

KEEP_ALIVE_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 39),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 18),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 75_000),  # of data on its way, in ms
)
"""The kernel closes the connection of a host that is silent for 75 s. Leases do not depend on it."""


class CannotServe(HetError, code="cannot_serve"):
    """The command line asks for something that cannot be done here."""


def open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket on a host name or address; IPv4 if a name such as localhost stands for both."""
    try:
        if not host:
            raise socket.gaierror
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise CannotServe(f"unknown host name '{host}': give --host an address of this machine") from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(address, family=family, backlog=LISTEN_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        advice = "give --host an address of this machine, and --port a free one of 1024 or above (ss -ltnp)"
        reason = os.strerror(error.errno or 0)
        raise CannotServe(f"cannot listen on {host} port {port}: {reason}; {advice}") from None
    for option in KEEP_ALIVE_OPTIONS:
        with suppress(OSError):  # a system without it
            listener.setsockopt(*option)  # which connections inherit
    return listener


def inherited_socket(fd: int) -> socket.socket:
    """The listening socket that a parent process left open."""
    try:
        listener = socket.socket(fileno=fd)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except (OSError, ValueError) as error:
        raise CannotServe(f"--fd {fd} is not an inherited socket: {error}") from None
    if not listens:
        listener.close()
        raise CannotServe(f"--fd {fd} is not a TCP socket that listens")
    return listener


def listener_url(host: str, port: int, *, tls: bool) -> str:
    """The URL of a server that listens there."""
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
