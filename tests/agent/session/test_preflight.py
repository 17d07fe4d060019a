"""A peer that cannot be reached is told from one that can, with the reason."""

import asyncio
import socket
import time

import pytest
from tests.support.servers import free_port

from hetagent.session import preflight
from hetagent.session.preflight import reachable


def listening(family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    sock = socket.socket(family)
    sock.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    sock.listen()
    return sock


def has_ipv6() -> bool:
    try:
        listening(socket.AF_INET6).close()
    except OSError:
        return False
    return True


async def test_a_listening_port() -> None:
    with listening() as sock:
        assert await reachable("127.0.0.1", sock.getsockname()[1]) is None


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
async def test_ipv6() -> None:
    with listening(socket.AF_INET6) as sock:
        assert await reachable("::1", sock.getsockname()[1]) is None


async def test_a_name_with_several_addresses_needs_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as sock, listening() as closed:
        port, refusing = sock.getsockname()[1], closed.getsockname()[1]
        closed.close()

        async def resolve(*_: object, **__: object) -> list[object]:
            tcp = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
            return [(*tcp, ("127.0.0.1", refusing)), (*tcp, ("127.0.0.1", port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        assert await reachable("several", port) is None


async def test_a_refused_connection_is_tried_again() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        asyncio.get_running_loop().call_later(0.15, sock.listen)
        assert await reachable("127.0.0.1", sock.getsockname()[1]) is None


async def test_refused_until_the_end() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        assert await reachable("127.0.0.1", sock.getsockname()[1], timeout_s=0.2) == "connection refused"


async def test_a_connection_to_itself_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    port, connect = free_port(), asyncio.get_running_loop().sock_connect

    async def from_its_port(sock: socket.socket, address: tuple[str, int]) -> None:
        sock.bind(("127.0.0.1", port))
        await connect(sock, address)

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", from_its_port)
    monkeypatch.setattr(preflight, "RETRY_S", 60)
    assert await reachable("127.0.0.1", port, timeout_s=0.25) == "connection refused"


async def test_a_full_backlog_times_out() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(sock.getsockname())
            fillers.append(filler)
        began = time.monotonic()
        reason = await reachable("127.0.0.1", sock.getsockname()[1], timeout_s=0.25)
        for filler in fillers:
            filler.close()
        assert reason == "timed out after 0.25 s"
        assert time.monotonic() - began < 15  # not the minutes of a TCP connect


async def test_a_connection_that_is_not_answered_does_not_hold_up_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = 0

    async def connect(*_: object) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", connect)
    assert await reachable("127.0.0.1", 1, timeout_s=2.0) is None
    assert begun == 2
    assert len(asyncio.all_tasks()) == 1


async def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await reachable("no.such.host", 1) == "cannot resolve 'no.such.host'"
    monkeypatch.undo()
    assert await reachable("a" * 70 + ".example", 1) == f"cannot resolve '{'a' * 70}.example'"


async def test_another_reason_is_said_in_words_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = 0

    async def connect(*_: object) -> None:
        nonlocal begun
        begun += 1
        raise OSError(113, "No route to host")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", connect)
    assert await reachable("127.0.0.1", 1, timeout_s=0.25) == "no route to host"
    assert begun > 1


async def test_a_host_that_is_back_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = 0

    async def connect(*_: object) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise OSError(113, "No route to host")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", connect)
    assert await reachable("127.0.0.1", 1) is None
