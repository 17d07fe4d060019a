"""Polls whose connection breaks when the host does may be long; through a proxy they stay short. Real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

import pytest

from hetrdzv.api.http.connections import TcpCaller
from hetrdzv.client.client import Client
from hetrdzv.core.rounds.timers import SUSPECT_GRACE_S
from hetrdzv.protocol.http.keepalive import count_silence, keep_alive, name_of
from hetrdzv.protocol.requests.joining import JoinRequest, SpecFields
from hetrdzv.service.liveness.leases import MAX_BLIND_POLL_S, MAX_POLL_S
from tests.support.cluster import wait_for
from tests.support.servers import Hetserver

LEASE_S = 100.0
"""So long that half of it is more than a poll behind a proxy may wait."""

SHORT_S, LONG_S = MAX_BLIND_POLL_S, LEASE_S / 2
assert SHORT_S < LONG_S < MAX_POLL_S


@pytest.fixture(scope="module")
def server() -> Iterator[Hetserver]:
    with Hetserver("memory", 0, None) as running:
        asyncio.run(_join(running))
        yield running
        assert running.stop() == 0


async def _join(server: Hetserver) -> None:
    async with Client([server.url]) as client:
        spec = SpecFields(min_nodes=2, lease_s=LEASE_S)
        offer = JoinRequest(incarnation="1", slots=1, address="10.0.0.1", port=4000, spec=spec)
        await client.join("g", "n0", offer)


async def poll_s(client: Client) -> float:
    return (await client.directive("g", "n0", "1", None, 0.0)).poll_s


async def test_polls_are_long_once_both_ends_watch_the_connection(server: Hetserver) -> None:
    async with Client([server.url]) as client:
        assert await poll_s(client) == SHORT_S
        assert await poll_s(client) == LONG_S


async def test_a_new_connection_is_short_at_first(server: Hetserver) -> None:
    async with Client([server.url]) as client:
        await poll_s(client)
        client._polls_from = "127.0.0.1:1"
        assert await poll_s(client) == SHORT_S
        assert await poll_s(client) == LONG_S


async def test_behind_a_proxy_polls_stay_short(server: Hetserver) -> None:
    async with proxy(server.port) as port, Client([f"http://127.0.0.1:{port}"]) as client:
        for _ in range(3):
            assert await poll_s(client) == SHORT_S


@asynccontextmanager
async def proxy(to: int) -> AsyncIterator[int]:
    """Passes connections on."""

    passing: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while data := await reader.read(1 << 16):
                writer.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", to)
        for ends in ((reader, back), (there, writer)):
            passing.add(asyncio.ensure_future(pump(*ends)))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)


@pytest.mark.parametrize(("within_s", "total_s"), [(0.5, 2), (5.0, 4), (5.5, 5), (40.0, 39), (60.0, 59)])
def test_the_kernel_gives_up_a_second_before_the_lease_is_over(within_s: float, total_s: int) -> None:
    """Not earlier: a suspect is lost after a second, and no workers may run beside those that take their place."""
    assert total_s + SUSPECT_GRACE_S >= within_s
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


def test_what_is_sent_has_as_long_as_the_other_end_has_not_been_silent() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        closing(socket.create_connection(listener.getsockname())) as sock,
        closing(listener.accept()[0]) as other,
    ):

        def left_ms() -> int:
            count_silence(sock, 40.0)
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

        wait_for(lambda: left_ms() <= 39_000 - 500, "half a second of silence")
        other.send(b"x")
        sock.recv(1)
        assert left_ms() > 39_000 - 500
        wait_for(lambda: left_ms() <= 39_000 - 500, "half a second of silence")
        sock.send(b"x")  # the other end's kernel acknowledges it
        wait_for(lambda: left_ms() > 39_000 - 500, "an acknowledgement")
        count_silence(sock, 0.0)
        assert keep_alive(sock, 40.0)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 39_000


def test_an_answer_has_that_time_until_the_next_poll() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        closing(socket.create_connection(listener.getsockname())) as sock,
    ):
        caller = TcpCaller()
        caller.socket = sock

        def limit_ms() -> int:
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

        def answered() -> bool:
            assert caller.watch(40.0)
            assert limit_ms() == 39_000
            caller.answering(lambda: None, 5.0)
            return limit_ms() < 39_000

        wait_for(answered, "silence that counts")


def test_a_socket_that_is_not_tcp_is_not_watched() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        assert not keep_alive(ours, 5.0)
        count_silence(ours, 5.0)
        assert name_of(ours.getsockname()) is None
    assert name_of(("fe80::1%eth0", 5, 0, 2)) == "fe80::1:5"
