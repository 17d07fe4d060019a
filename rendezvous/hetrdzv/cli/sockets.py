"""The socket that hetserver listens on: a new one, or one inherited from its parent."""

import errno
import socket

from hetrdzv.api.server import BACKLOG
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.http.keepalive import keep_alive
from hetrdzv.settings import Settings

SILENT_S = 75.0
"""After how long the kernel closes the connection of a host that is gone (seconds). Leases do not depend on it."""


class CannotServe(HetError, code="cannot_serve"):
    """The command line asks for something that cannot be done here."""


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket on a host name or address; IPv4 if a name such as localhost stands for both.

    Raises:
        CannotServe: this machine has no such address, or the port is taken.
    """
    bare = host.strip("[]")
    try:
        if not bare:
            raise socket.gaierror
        places = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise CannotServe(f"unknown host name '{host}': give --host an address of this machine") from None
    family, kind, proto, _, address = min(places, key=lambda entry: entry[0] != socket.AF_INET)
    try:
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise CannotServe(f"cannot listen on {host}: {error.strerror}; give --host another address") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keep_alive(listener, SILENT_S)  # which connections inherit
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        hint = {
            errno.EADDRINUSE: f"choose another --port, or stop what listens there (ss -ltnp sport = :{port})",
            errno.EADDRNOTAVAIL: "give --host an address of this machine (ip address), or 0.0.0.0",
            errno.EACCES: "choose a --port of 1024 or above",
        }.get(error.errno or 0, "choose another --host or --port")
        raise CannotServe(f"cannot listen on {host} port {port}: {error.strerror}; {hint}") from None
    return listener


def inherited(fd: int) -> socket.socket:
    """The listening socket that a parent process left open.

    Raises:
        CannotServe: the descriptor is not such a socket.
    """
    try:
        listener = socket.socket(fileno=fd)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CannotServe(f"--fd {fd} is not an inherited socket: {reason}") from None
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        wrong = f"is a {listener.family.name} socket: hetserver needs a TCP socket"
    elif not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        wrong = "is a socket that does not listen: call listen() on it first"
    else:
        return listener
    listener.close()
    raise CannotServe(f"--fd {fd} {wrong}")


def url_of(settings: Settings, host: str, port: int) -> str:
    """The URL of a server that listens there."""
    scheme = "https" if settings.tls_cert is not None else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
