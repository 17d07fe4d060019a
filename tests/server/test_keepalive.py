"""Connections to hosts that are gone are closed by the kernel: both ends have TCP keepalive."""

import socket
from contextlib import closing

import pytest

from hetrdzv.cli.sockets import SILENT_S, keep_alive, listen


@pytest.mark.parametrize(("within_s", "total_s"), [(0.5, 2), (5.0, 5), (5.5, 6), (40.0, 40), (75.0, 75)])
def test_the_kernel_gives_up_in_time(within_s: float, total_s: int) -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        closing(socket.create_connection(listener.getsockname())) as sock,
    ):
        assert keep_alive(sock, within_s)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, every, count = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + every * count == max(total_s, 3)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1_000 * total_s


def test_connections_inherit_that_from_the_socket_that_listens() -> None:
    with (
        closing(listen("127.0.0.1", 0)) as listener,
        closing(socket.create_connection(listener.getsockname())),
        closing(listener.accept()[0]) as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1_000 * SILENT_S


def test_a_socket_that_is_not_tcp_is_not_watched() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        assert not keep_alive(ours, 5.0)
