"""Turns of the server's event loop stay short, and every socket gets its turn."""

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from hetrdzv.api.http.turns import SOCKETS_PER_TURN, new_event_loop
from hetrdzv.service.liveness.clock import ServedClock
from hetrdzv.service.liveness.silence import Silence

MANY = 10 * SOCKETS_PER_TURN


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Sockets that all have something to be read."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    pairs = [socket.socketpair() for _ in range(MANY)]
    for _, other in pairs:
        other.send(b"x")
    yield [one for one, _ in pairs]
    for one, other in pairs:
        one.close()
        other.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_turn_takes_something_from_few_sockets(sockets: list[socket.socket]) -> None:
    read: list[bytes] = []
    per_turn: list[int] = []

    async def count() -> None:
        loop = asyncio.get_running_loop()
        for one in sockets:
            loop.add_reader(one, lambda one=one: read.append(one.recv(1)))
        while len(read) < MANY:
            before = len(read)
            await asyncio.sleep(0)
            per_turn.append(len(read) - before)
        for one in sockets:
            loop.remove_reader(one)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(count())
    assert max(per_turn) == SOCKETS_PER_TURN


def test_sockets_that_always_have_something_keep_no_other_waiting(sockets: list[socket.socket]) -> None:
    turns: Counter[int] = Counter()

    async def count() -> None:
        loop = asyncio.get_running_loop()
        for one in sockets:
            loop.add_reader(one, turns.update, [one.fileno()])  # nothing is ever read
        for _ in range(5 * MANY // SOCKETS_PER_TURN):
            await asyncio.sleep(0)
        for one in sockets:
            loop.remove_reader(one)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(count())
    assert len(turns) == MANY
    assert max(turns.values()) - min(turns.values()) <= 1


def test_before_a_node_is_judged_every_socket_of_every_node_gets_its_turn(
    sockets: list[socket.socket],
) -> None:
    read: list[bytes] = []

    async def listen() -> None:
        loop = asyncio.get_running_loop()
        silence = Silence(ServedClock(0.0), dict, lambda task: task.close(), lambda group_id: None)
        for number in range(MANY // 2):  # one connection for its polls, one for what it reports
            silence.leases.heard("g", f"n{number}", "1", 5.0, 0.0)
        for one in sockets:
            loop.add_reader(one, lambda one=one: read.append(one.recv(1)))
        await silence.listen()
        for one in sockets:
            loop.remove_reader(one)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(listen())
    assert len(read) == MANY
