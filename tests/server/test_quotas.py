"""The groups of one token leave the rest of the server to the others."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from hetrdzv.core.commands import Cancel
from hetrdzv.protocol.errors import TooManyGroups, TooMuchStored
from hetrdzv.protocol.rooms.progress import Collectives, NodeProgress, Worker
from hetrdzv.service import quotas
from hetrdzv.service.quotas import (
    CPU_AHEAD_S,
    CPU_OWED_S,
    CPU_SHARE,
    LINES_AHEAD,
    OTHERS_S,
    WAIT_S,
    Quotas,
    metered,
)
from hetrdzv.settings import Limits
from tests.support.served import FaultyStore, join, serving, two_nodes
from tests.support.servers import Hetserver

OFFER = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000}
EVIL, GOOD, OPS = "evil-" * 8, "good-" * 8, "ops-" * 8


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(clock: Clock, *scopes: str) -> Quotas:
    known = frozenset(scopes)
    return Quotas(lambda: known, clock)


def test_nobody_waits_who_is_alone_or_has_no_pattern(clock: Clock) -> None:
    found = made(clock, "evil*", "good*")
    assert found.asks(None) is None
    clock.now += 2 * OTHERS_S
    evil = found.asks("evil*")
    assert evil is not None
    evil.spent(100.0)
    assert evil.overdrawn_s() == 0.0
    found.asks("good*")
    assert evil.overdrawn_s() == CPU_OWED_S / CPU_SHARE < WAIT_S
    evil.spent(1.0)
    clock.now += OTHERS_S
    evil.spent(3.0)
    assert evil.overdrawn_s() == 0.0


def test_what_a_group_costs_is_paid_by_the_longest_pattern_that_covers_it(clock: Clock) -> None:
    found = made(clock, "t*", "team-a-*", "team-b-*")
    paying = [found.of_group(group_id) for group_id in ("team-a-1", "team-c-1", "else")]
    assert [one.scope if one is not None else None for one in paying] == ["team-a-*", "t*", None]


def test_a_pattern_has_half_of_the_groups(clock: Clock) -> None:
    found, limits = made(clock, "evil*"), Limits(max_groups=4)
    found.require_room("evil2", {"evil1", "x"}, limits)
    found.require_room("good", {"evil1", "evil2", "x"}, limits)
    with pytest.raises(TooManyGroups, match=r"groups of evil\* are 2, half .*hetctl delete"):
        found.require_room("evil3", {"evil1", "evil2"}, limits)


def test_lines_are_counted_when_there_are_too_many(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    found = made(clock, "evil*")
    logged = sum(found.may_log("evil1", 1) for _ in range(1_000))
    assert logged == LINES_AHEAD + 1
    assert all(found.may_log("good", 1) for _ in range(1_000))
    clock.now += 1.0
    assert found.may_log("evil1", 1)
    assert "799 events of the groups of evil* were not logged" in caplog.text


async def test_each_step_is_charged_and_errors_pass() -> None:
    steps: list[float] = []

    async def work() -> str:
        await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        return "done"

    task = asyncio.ensure_future(_run(metered(work(), steps.append)))
    while len(steps) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    assert await task == "done"
    assert len(steps) == 3
    with pytest.raises(ZeroDivisionError):
        await metered(_fail(), steps.append)


async def _run(work: Any) -> Any:
    return await work


async def _fail() -> None:
    raise ZeroDivisionError


async def test_who_has_used_up_its_share_waits_in_order_and_then_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "WAIT_S", 0.3)
    known = frozenset({"evil*"})
    found, done = Quotas(lambda: known), list[int]()
    found.asks(None)
    evil = found.asks("evil*")
    assert evil is not None

    async def note(number: int) -> None:
        done.append(number)

    evil.spent(CPU_AHEAD_S + 0.05)
    await asyncio.gather(*(evil.charged(note(number)) for number in range(20)))
    assert done == list(range(20))
    evil.spent(100.0)
    with pytest.raises(quotas.Busy, match=r"groups of evil\* have used their share"):
        await evil.charged(note(20))
    assert done == list(range(20))


# -- a real server -----------------------------------------------------------------------------------------


def ask(server: Hetserver, token: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        said = response.read()
        return response.status, json.loads(said) if said.startswith(b"{") else said


def flood(server: Hetserver, thread: int, over: threading.Event, told: Counter[str]) -> None:
    """Joins and leaves of new nodes, each of which begins another round, as fast as they are answered."""
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)) as stream:
        for number in range(1_000_000):
            if over.is_set():
                return
            body = json.dumps({**OFFER, "spec": {"min_nodes": 1}})
            path = f"/v1/groups/evil{thread}/nodes/n{number}"
            head = f"Host: x\r\nAuthorization: Bearer {EVIL}\r\nContent-Type: application/json\r\n"
            stream.sendall(f"PUT {path} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            said = b""
            while not said.endswith(b"}"):
                said += stream.recv(1 << 16)
            told[said[9:12].decode()] += 1


def test_an_evil_token_at_full_speed_beside_another_tokens_polls(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{EVIL} agent group=evil*\n{GOOD} agent group=good*\n{OPS} admin\n")
    path.chmod(0o600)
    with Hetserver("memory", 0, path, "--max-groups", "16") as server:
        told, over = Counter[str](), threading.Event()
        offer = {**OFFER, "spec": {"min_nodes": 2}}
        assert ask(server, GOOD, "PUT", "/v1/groups/good/nodes/a", offer)[0] == 200
        threads = [threading.Thread(target=flood, args=(server, n, over, told)) for n in range(12)]
        process, began = psutil.Process(server.pid), time.monotonic()
        before = sum(process.cpu_times()[:2])
        for thread in threads:
            thread.start()
        try:
            took = []
            while told.total() < 1_500 and time.monotonic() < began + 30:
                sent = time.monotonic()
                status, said = ask(server, GOOD, "GET", "/v1/groups/good/nodes/a/directive?incarnation=1")
                took.append(time.monotonic() - sent)
                assert status == 200, said
            assert ask(server, GOOD, "PUT", "/v1/groups/good2/nodes/a", offer)[0] == 200
        finally:
            over.set()
            for thread in threads:
                thread.join()
        wall_s, cpu_s = time.monotonic() - began, sum(process.cpu_times()[:2]) - before
        print(
            f"{dict(told)} of evil in {wall_s:.1f} s with {cpu_s:.1f} s of CPU; "
            f"{len(took)} polls, the slowest in {1000 * max(took):.0f} ms"
        )
        assert told["409"] > 0  # half of the groups
        assert set(told) <= {"200", "409", "503"}
        lines = [line for line in server.log.splitlines() if "group 'evil" in line]
        assert len(lines) < LINES_AHEAD + 15 * (wall_s + 5)
        assert "not logged" in server.log
        assert server.stop() == 0
        assert "Traceback" not in server.log


async def test_groups_that_hold_their_share_of_the_memory_do_not_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "MOST_HELD", 3_000)
    known = frozenset({"evil*", "good*"})
    async with serving(quotas=Quotas(lambda: known)) as (service, store):
        joined = 0
        while service._quotas.may_grow("evil"):
            await service.execute("evil", join(f"n{joined}", min_nodes=200))
            joined += 1
        with pytest.raises(TooMuchStored, match=r"the groups of evil\* hold 0 MiB of this server's memory"):
            await service.execute("evil", join("more"))
        held = service._ledger.sizes.of("evil")
        assert 3_000 < held == sum(map(len, store.content.records.values()))
        with pytest.raises(TooMuchStored):
            await service.execute("evil-2", join("n0"))
        assert len((await service.execute("evil", join("n0", min_nodes=200))).nodes) == joined  # it is there
        assert (await service.execute("good", join("n0"))).nodes.keys() == {"n0"}
    async with serving(FaultyStore(store.content), quotas=Quotas(lambda: known)) as (service, _):
        with pytest.raises(TooMuchStored):
            await service.execute("evil", join("new"))
        await service.execute("evil", Cancel())
        await service.delete("evil")
        assert (await service.execute("evil", join("new"))).nodes.keys() == {"new"}


async def test_samples_count_and_are_not_kept_beyond_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    known = frozenset({"g*"})
    async with serving(quotas=Quotas(lambda: known)) as (service, _):
        await two_nodes(service)
        stored = service._ledger.sizes.of("g")
        monkeypatch.setattr(quotas, "MOST_HELD", stored + 100)
        lanes = (Collectives(name="default", size=2, enqueued=1, started=1, op="all_reduce"),) * 3
        told = NodeProgress(round=1, workers=(Worker(rank=0, collectives=lanes),))
        service.progress.note("g", "a", told, 1.0)
        assert service.progress.workers(service.group("g")).keys() == {0}
        other = replace(told, workers=(replace(told.workers[0], rank=1),))
        service.progress.note("g", "b", other, 1.0)
        assert service.progress.workers(service.group("g")).keys() == {0}  # unknown, not idle
        await service.execute("g", Cancel())
        account = service._quotas.of_group("g")
        assert account is not None
        assert account.held == service._ledger.sizes.of("g")
