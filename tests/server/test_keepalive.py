"""Connections to hosts that are gone are closed by the kernel: all that a server accepts have TCP keepalive."""

import socket
from contextlib import closing

from hetrdzv.cli.sockets import KEEP_ALIVE, listen


def test_connections_inherit_that_from_the_socket_that_listens() -> None:
    with (
        closing(listen("127.0.0.1", 0)) as listener,
        closing(socket.create_connection(listener.getsockname())),
        closing(listener.accept()[0]) as accepted,
    ):
        for level, option, value in KEEP_ALIVE:
            assert accepted.getsockopt(level, option) == value
