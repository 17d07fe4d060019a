"""A peer that cannot be reached is told from one that can, with the reason."""

import asyncio
import socket

import pytest

from hetagent.session.preflight import find_connect_error


async def test_a_refused_connection_is_tried_again_until_the_end() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert await find_connect_error("127.0.0.1", port, timeout_s=0.2) == "connection refused"
        asyncio.get_running_loop().call_later(0.15, sock.listen)
        assert await find_connect_error("127.0.0.1", port) is None


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
        reason = await find_connect_error("127.0.0.1", sock.getsockname()[1], timeout_s=0.25)
        for filler in fillers:
            filler.close()
        assert reason == "timed out after 0.25 s"


async def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await find_connect_error("no.such.host", 1) == "cannot resolve 'no.such.host'"
    monkeypatch.undo()
    assert await find_connect_error("a" * 70 + ".example", 1) == f"cannot resolve '{'a' * 70}.example'"


@pytest.mark.parametrize("silent", [True, False])
async def test_a_host_that_is_back_is_reached_however_the_first_attempt_failed(
    monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    begun = 0

    async def connect(*_: object) -> None:
        nonlocal begun
        begun += 1
        if begun == 1 and silent:
            await asyncio.Event().wait()
        if begun == 1:
            raise OSError(113, "No route to host")
        await real(*_)

    with socket.create_server(("127.0.0.1", 0)) as sock:
        real = asyncio.get_running_loop().sock_connect
        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", connect)
        assert await find_connect_error("127.0.0.1", sock.getsockname()[1], timeout_s=2.0) is None
        assert begun == 2
        assert len(asyncio.all_tasks()) == 1
