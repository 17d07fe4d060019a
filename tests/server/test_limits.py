"""Limits on memory and time, each with a request that exceeds it."""

import asyncio
import http.client
import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from hetrdzv.api.app import TABLE
from hetrdzv.api.http.limits import (
    BODIES_BYTES,
    READS_PER_ADDRESS,
    SMALL_BODY_BYTES,
    Admission,
    Bodies,
    neighbourhood,
)
from hetrdzv.api.http.places import most_per_address
from hetrdzv.cli.hetserver import _within_open_files
from hetrdzv.core.commands import Cancel, Drain, Leave, Put, Undrain
from hetrdzv.protocol import bounds, codec
from hetrdzv.protocol.errors import Busy, TooManyGroups, TooManyNodes, TooManyPolls
from hetrdzv.protocol.http.route import Role, Size
from hetrdzv.protocol.requests.joining import JoinRequest, SpecFields
from hetrdzv.protocol.requests.reports import ReportRequest
from hetrdzv.settings import Limits
from tests.support.certificates import Authority
from tests.support.cluster import wait_for
from tests.support.programs.impatient import ARRIVAL_S
from tests.support.served import join, serving
from tests.support.servers import Hetserver, Impatient

WAIT_S = 30.0
IDLE_S = 3.0
POLLS, CONNECTIONS = 24, 96
SLACK_S = 2.5
"""How late a busy machine may be."""

OFFER = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000}


# -- groups and nodes --------------------------------------------------------------------------------------


async def test_groups_are_counted_whoever_makes_them() -> None:
    async with serving(limits=Limits(max_groups=3)) as (service, _):
        made = await asyncio.gather(
            *(service.execute(f"g{n}", Put({}) if n % 2 else join("a")) for n in range(5)),
            return_exceptions=True,
        )
        assert [type(one).__name__ for one in made] == ["Group"] * 3 + ["TooManyGroups"] * 2
        with pytest.raises(
            TooManyGroups, match=r"keeps 3 groups .*hetctl delete.*--max-groups.*--keep-finished"
        ):
            await service.execute("more", join("a"))
        await service.execute("g0", join("b"))
        await service.execute("g1", Cancel())
        await service.delete("g1")
        await service.execute("more", Put({}))


async def test_nodes_are_counted_while_they_live() -> None:
    async with serving(limits=Limits(max_nodes_per_group=2)) as (service, _):
        await service.execute("g", join("a", min_nodes=9))
        await service.execute("g", join("b"))
        with pytest.raises(
            TooManyNodes, match=r"group 'g' has 2 nodes .*another group.*--max-nodes-per-group"
        ):
            await service.execute("g", join("c"))
        await service.execute("g", join("a"))  # said twice
        await service.execute("other", join("c"))
        await service.execute("g", Leave(node_id="a", incarnation="1"))
        await service.execute("g", join("c"))
        with pytest.raises(TooManyNodes):
            await service.execute("g", join("a", "2"))
        for node_id in ("b", "c", "b"):
            await service.execute("g", Drain(node_id))
        with pytest.raises(TooManyNodes):
            await service.execute("g", Drain("a"))
        await service.execute("g", Undrain("b"))
        await service.execute("g", Drain("a"))


# -- what is under way, by address -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
    ],
)
def test_what_counts_as_one_address(address: str, counted: str) -> None:
    assert neighbourhood(address) == counted


async def nothing() -> None:
    """What a request does that is done at once."""


async def test_admission_forgets_who_has_left() -> None:
    admission, done = Admission(2), asyncio.Event()
    host, stream = "10.0.0.1", "text/event-stream"

    async def wait() -> None:
        await done.wait()

    waiting = [
        asyncio.create_task(admission.admit(size, host, stream, wait)) for size in (Size.SMALL, Size.STREAM)
    ]
    await asyncio.sleep(0)
    for size, accept in ((Size.SMALL, ""), (Size.STREAM, stream)):
        with pytest.raises(TooManyPolls, match=r"10\.0\.0\.1 has 2 polls .*--max-polls-per-address"):
            await admission.admit(size, host, accept, nothing)
    for size, accept in ((Size.ALWAYS, ""), (Size.LARGE, stream), (Size.STREAM, "")):
        await admission.admit(size, host, accept, nothing)
    for address in ("10.0.0.2", ""):
        await admission.admit(Size.SMALL, address, "", nothing)
    waiting[0].cancel()
    done.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not admission._polls
    assert not admission._reads


async def test_large_replies_to_one_address_take_turns() -> None:
    admission, done, inside, most = Admission(1), asyncio.Event(), 0, 0

    async def read() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await done.wait()
        inside -= 1

    sizes = [Size.LARGE, Size.STREAM]
    tasks = [
        asyncio.create_task(admission.admit(sizes[n % 2], "10.0.0.1", "", read))
        for n in range(READS_PER_ADDRESS + 9)
    ]
    await asyncio.sleep(0.01)
    assert inside == READS_PER_ADDRESS
    await admission.admit(Size.LARGE, "10.0.0.2", "", nothing)
    tasks[-1].cancel()
    done.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == READS_PER_ADDRESS
    assert not admission._reads


def test_whatever_agents_ask_counts_as_small() -> None:
    """Several nodes behind one address would wait for each other otherwise."""
    for row in TABLE.rows:
        assert (row.route.size is Size.SMALL) is (row.route.role is Role.AGENT), row.route


def test_large_bodies_share_what_there_is() -> None:
    bodies, large = Bodies(), bounds.MAX_BODY_BYTES
    bodies.grow(0, SMALL_BODY_BYTES)
    for _ in range(BODIES_BYTES // large):
        bodies.grow(0, large)
    with pytest.raises(Busy, match="too many large requests"):
        bodies.grow(SMALL_BODY_BYTES, SMALL_BODY_BYTES + 1)
    bodies.grow(0, SMALL_BODY_BYTES)
    for _ in range(BODIES_BYTES // large):
        bodies.grow(large, 0)
    assert bodies._held == 0


def unbounded(schema: Any, path: str = "") -> Iterator[str]:
    """The texts, lists and mappings in a JSON schema that may have any size."""
    if isinstance(schema, list):
        for n, one in enumerate(schema):
            yield from unbounded(one, f"{path}[{n}]")
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    bound = {"string": ("maxLength", "pattern", "enum", "const"), "array": ("maxItems",)}.get(
        str(kind), ("",)
    )
    if kind == "object" and "properties" not in schema:
        bound = ("maxProperties",)
    if bound != ("",) and not any(word in schema for word in bound):
        yield path
    for name, value in schema.items():
        yield from unbounded(value, f"{path}.{name}")


@pytest.mark.parametrize("model", [JoinRequest, ReportRequest, SpecFields])
def test_every_text_and_list_of_a_body_is_bounded(model: Any) -> None:
    schema = codec.adapter(model).json_schema()
    assert list(unbounded(schema)) == []
    assert schema["additionalProperties"] is False
    assert list(unbounded({"x": {"type": "string"}, "y": {"type": "array"}})) == [".x", ".y"]


# -- a real server -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Hetserver]:
    flags = {
        "--idle-timeout": f"{IDLE_S:g}s",
        "--max-polls-per-address": POLLS,
        "--max-connections": CONNECTIONS,
    }
    with Impatient("memory", 0, None, *(str(word) for pair in flags.items() for word in pair)) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def dial(server: Hetserver, stack: ExitStack, host: int = 1, receive: int = 0) -> socket.socket:
    """A connection from 127.0.0.N."""
    made = stack.enter_context(closing(socket.socket()))
    made.settimeout(WAIT_S)
    if receive:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    made.bind((f"127.0.0.{host}", 0))
    made.connect(("127.0.0.1", server.port))
    return made


def heard(stream: socket.socket) -> bytes:
    """All that it says until it is closed."""
    said = b""
    try:
        while more := stream.recv(1 << 16):
            said += more
    except ConnectionResetError:
        pass
    return said


def heard_after(stream: socket.socket, data: bytes) -> bytes:
    """All that it says, once it was sent something, until it is closed."""
    stream.sendall(data)
    return heard(stream)


def is_answered(stream: socket.socket) -> bool:
    """Whether its next answer, a short one, is a good one."""
    said = b""
    while not said.endswith(b"}"):
        more = stream.recv(1 << 16)
        if not more:
            return False
        said += more
    return said.startswith(b"HTTP/1.1 200")


def ask(server: Hetserver, method: str, path: str, body: object = None, host: int = 1) -> tuple[int, Any]:
    with closing(
        http.client.HTTPConnection(
            "127.0.0.1", server.port, timeout=WAIT_S, source_address=(f"127.0.0.{host}", 0)
        )
    ) as connection:
        content = json.dumps(body) if body is not None else None
        connection.request(method, path, content, {"Content-Type": "application/json", "Connection": "close"})
        response = connection.getresponse()
        said = response.read()
        return response.status, json.loads(said) if said.startswith(b"{") else said


def connections(server: Hetserver) -> int:
    return sum(one.status == "ESTABLISHED" for one in psutil.Process(server.pid).net_connections("tcp"))


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Connections of one test count for no other."""
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        wait_for(lambda: connections(server) == 0, "all connections are closed")


PARTS = [b"", b"GET /healthz", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"]
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_header_has_to_come_in_time(server: Hetserver, stack: ExitStack) -> None:
    """Nothing, a part, a part after a whole request, and a byte now and then: each is closed."""
    half = [dial(server, stack) for _ in PARTS]
    for stream, part in zip(half, PARTS, strict=True):
        stream.sendall(part)
    second, dripping = dial(server, stack), dial(server, stack)
    second.sendall(WHOLE)
    assert is_answered(second)
    second.sendall(PARTS[1])
    began = time.monotonic()
    for byte in PARTS[2]:
        try:
            dripping.sendall(bytes([byte]))
        except OSError:
            break
        if time.monotonic() - began > ARRIVAL_S + SLACK_S:
            break
        time.sleep(0.1)
    told = [heard(stream) for stream in (*half, second)]
    assert time.monotonic() - began < ARRIVAL_S + SLACK_S
    assert told[0] == b""
    for said in told[1:]:
        assert said.startswith(b"HTTP/1.1 408"), said
        assert b'"code":"request_too_slow"' in said
        assert b"header: it did not arrive within 1 s" in said
        assert b"Het-Api-Version: 1" in said
    assert b"408" in heard(dripping)


def test_a_poll_and_a_quiet_connection_may_take_longer_than_a_header(
    server: Hetserver, stack: ExitStack
) -> None:
    poll, quiet = dial(server, stack), dial(server, stack)
    body = json.dumps({**OFFER, "spec": {"min_nodes": 2, "lease_s": 60}})
    head = "PUT /v1/groups/patient/nodes/a?wait=2 HTTP/1.1\r\nHost: localhost\r\n"
    poll.sendall(
        f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    quiet.sendall(WHOLE)
    began = time.monotonic()
    assert is_answered(quiet)
    assert is_answered(poll)
    assert time.monotonic() - began > 1.9
    quiet.sendall(WHOLE)
    assert is_answered(quiet)
    began = time.monotonic()
    assert heard(quiet) == b""
    assert IDLE_S - 0.5 < time.monotonic() - began < IDLE_S + SLACK_S


def test_polls_of_one_address_are_counted(server: Hetserver, stack: ExitStack) -> None:
    ask(server, "PUT", "/v1/groups/polled", {"min_nodes": 99, "lease_s": 60})
    for n in range(POLLS):
        poll = dial(server, stack)
        body = json.dumps({**OFFER})
        head = f"PUT /v1/groups/polled/nodes/n{n}?wait=60 HTTP/1.1\r\nHost: localhost\r\n"
        poll.sendall(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
    wait_for(lambda: len(ask(server, "GET", "/v1/groups/polled", host=2)[1]["nodes"]) == POLLS, "all wait")
    for path, body_of in (("/nodes/more", OFFER), ("/nodes/n0", OFFER)):
        status, said = ask(server, "PUT", f"/v1/groups/polled{path}", body_of)
        assert (status, said["code"]) == (503, "too_many_polls")
        assert f"127.0.0.1 has {POLLS} polls" in said["detail"]
    assert ask(server, "PUT", "/v1/groups/polled/nodes/more", OFFER, host=2)[0] == 200
    assert ask(server, "GET", "/v1/groups")[0] == 200
    stack.close()
    wait_for(
        lambda: ask(server, "PUT", "/v1/groups/polled/nodes/again", OFFER)[0] == 200, "there is room again"
    )


GROUPS = b"GET /v1/groups HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_connections_are_counted_by_address_and_in_all(server: Hetserver, stack: ExitStack) -> None:
    kept = [dial(server, stack, 1 + n // (2 * POLLS)) for n in range(CONNECTIONS)]
    for stream in kept:
        stream.sendall(GROUPS)
        assert is_answered(stream)
    said = heard(dial(server, stack, 9)).decode()
    assert said.startswith("HTTP/1.1 503"), said
    assert "the server has 96 connections, the maximum" in said
    assert '"code":"busy"' in said
    assert "retry-after: 1" in said
    kept.pop().close()
    wait_for(lambda: connections(server) < CONNECTIONS, "one has gone")
    said = heard(dial(server, stack, 1)).decode()
    assert f"127.0.0.1 has {2 * POLLS} connections, the maximum for one address" in said
    fresh = dial(server, stack, 9)
    fresh.sendall(GROUPS)
    assert is_answered(fresh)
    assert server.log.count("--max-connections)") == 1


@pytest.mark.parametrize("first", [b"", b"GET /v1/gr", WHOLE])
def test_connections_without_an_accepted_request_give_way(
    server: Hetserver, stack: ExitStack, first: bytes
) -> None:
    """Who opens many ends its own; who comes newly ends the oldest."""
    agent = dial(server, stack, 3)
    agent.sendall(GROUPS)
    assert is_answered(agent)
    many = [dial(server, stack, 1 + n // (2 * POLLS)) for n in range(CONNECTIONS - 1)]
    for stream in many:
        stream.sendall(first)
        assert not first.startswith(WHOLE) or is_answered(stream)
    wait_for(lambda: connections(server) == CONNECTIONS, "all are there")
    for newcomer, goes in ((1, many[0]), (2, many[2 * POLLS]), (3, many[1]), (4, many[2])):
        stream = dial(server, stack, newcomer)
        stream.sendall(GROUPS)
        assert is_answered(stream)
        assert b"others asked first" in heard(goes)
    agent.sendall(GROUPS)
    assert is_answered(agent)


def test_no_address_can_have_all_connections() -> None:
    for limits in (Limits(), Limits(max_connections=16), Limits(max_polls_per_address=1_000_000)):
        assert most_per_address(limits) <= limits.max_connections * 3 // 4
    assert most_per_address(Limits()) > 16_000 * 3 // 2  # agents behind one NAT


def test_tls_connections_are_counted_before_their_handshake(stack: ExitStack, tmp_path: Path) -> None:
    tls = Authority(tmp_path).issue("server")
    flags = ("--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--max-connections", "16")
    with Hetserver("memory", 0, None, *flags) as server:
        silent = [dial(server, stack) for _ in range(13)]  # three quarters are 12
        assert heard(silent[0]) == b""
        assert connections(server) == 12


def test_what_is_no_request_is_logged_now_and_then(server: Hetserver, stack: ExitStack) -> None:
    """Each was a line of uvicorn's, an upgrade two."""
    before = len(server.log.splitlines())
    upgrade = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    stream = dial(server, stack)
    for _ in range(50):
        stream.sendall(upgrade)
        assert is_answered(stream)
        assert b'"code":"invalid_request"' in heard_after(dial(server, stack), b"garbage\r\n\r\n")
    said = "refused a request from 127.0.0.1: this is not an HTTP/1.1 request"
    wait_for(lambda: said in server.log, "it is logged")
    lines = server.log.splitlines()[before:]
    assert len([line for line in lines if said in line]) == 1
    assert len(lines) < 10  # its own, and what the tests before it left; not one for each request


# -- memory ------------------------------------------------------------------------------------------------


def grown(server: Hetserver, before: int) -> float:
    """By how many MiB the server is larger than before."""
    return (psutil.Process(server.pid).memory_info().rss - before) / (1 << 20)


def test_a_server_stays_small_whatever_it_is_sent_and_nobody_reads() -> None:
    """Replies that nobody reads would take 500 MiB, bodies that never end 130 MiB, were there no limits."""
    labels = {f"{n:0128d}": "x" * 128 for n in range(16)}
    flags = ("--idle-timeout", "3s")
    with Hetserver("memory", 0, None, *flags) as server, ExitStack() as stack:
        spec = {"min_nodes": 9_999, "lease_s": 3_600}
        for n in range(960):
            offer = {**OFFER, "labels": labels, "device": labels, "spec": spec}
            assert ask(server, "PUT", f"/v1/groups/g/nodes/n{n}", offer)[0] == 200
        assert len(json.dumps(ask(server, "GET", "/v1/groups/g")[1])) > 7 << 20
        before, most = psutil.Process(server.pid).memory_info().rss, 0.0
        unread = [dial(server, stack, receive=4096) for _ in range(64)]
        for stream in unread:
            stream.sendall(b"GET /v1/groups/g HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        until_s = time.monotonic() + 2.0
        while time.monotonic() < until_s:
            most = max(most, grown(server, before))
            time.sleep(0.02)
        print(f"64 unread replies of 8 MiB: {most:.0f} MiB more")
        assert most < 260
        assert ask(server, "GET", "/healthz")[0] == 200
        head = b"PUT /v1/groups/b/nodes/n HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        bodies = [dial(server, stack, 2) for _ in range(150)]
        for stream in bodies:
            stream.settimeout(WAIT_S)
            stream.sendall(head)
            with suppress(OSError):
                stream.sendall(b" " * 900_000)
        before_bodies, refused = most, set[socket.socket]()

        def are_refused() -> bool:
            nonlocal most
            most = max(most, grown(server, before))
            for stream in bodies:
                stream.setblocking(False)
                with suppress(OSError):
                    if b"busy" in stream.recv(1 << 16):
                        refused.add(stream)
            return len(refused) > 50

        wait_for(are_refused, "what is too much is refused")
        print(f"and 150 bodies of 900 KB: {most - before_bodies:.0f} MiB more")
        assert most < 260 + 120
        assert ask(server, "PUT", "/v1/groups/small", {}, host=3)[0] == 200
        wait_for(lambda: connections(server) < 170, "those that do not read are cut")
        stack.close()
        wait_for(lambda: connections(server) == 0, "all have gone")
        assert ask(server, "GET", "/v1/groups", host=4)[0] == 200
        assert server.stop() == 0
        assert "Traceback" not in server.log


def send_ahead(streams: list[socket.socket], data: bytes) -> None:
    """Send until nobody takes any more for a while."""
    left = dict.fromkeys(streams, data)
    quiet_since = time.monotonic()
    for stream in streams:
        stream.setblocking(False)
    while time.monotonic() < quiet_since + 1.0:
        for stream in streams:
            with suppress(BlockingIOError):
                sent = stream.send(left[stream])
                left[stream] = left[stream][sent:]
                quiet_since = time.monotonic() if sent else quiet_since
        time.sleep(0.02)


AHEAD = 200
BIG = bounds.MAX_BODY_BYTES - 1_000


def poll_of(server: Hetserver, node: str, stack: ExitStack, padding: int = 0) -> socket.socket:
    """A poll that waits, of a new node."""
    reply = ask(
        server, "PUT", f"/v1/groups/p/nodes/{node}", {**OFFER, "spec": {"min_nodes": 9_999, "lease_s": 600}}
    )
    body = json.dumps({"incarnation": "1", "after": reply[1]["version"], "wait_s": 60}) + " " * padding
    stream = dial(server, stack)
    stream.sendall(
        f"POST /v1/groups/p/nodes/{node}/directive HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return stream


def open_polls(server: Hetserver) -> int:
    (line,) = [one for one in ask(server, "GET", "/metrics")[1].decode().splitlines()
               if one.startswith("hetrdzv_open_polls ")]  # fmt: skip
    return int(float(line.split()[1]))


def test_what_is_sent_ahead_of_an_answer_stays_outside(stack: ExitStack) -> None:
    """126 KiB for each of these connections were kept once."""
    with Hetserver("memory") as server:
        polls = [poll_of(server, f"n{n}", stack) for n in range(AHEAD)]
        wait_for(lambda: open_polls(server) == AHEAD, "all wait")
        before = psutil.Process(server.pid).memory_info().rss
        send_ahead(polls, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 8_000)
        each = grown(server, before) * 1024 / AHEAD
        print(f"{each:.1f} KiB for each of {AHEAD} polls")
        assert each < 20


def test_large_polls_that_wait_take_no_room(stack: ExitStack) -> None:
    """100 polls of 1 MB wait, where 64 MiB is the most of all large bodies."""
    with Hetserver("memory") as server:
        before, polls = psutil.Process(server.pid).memory_info().rss, list[socket.socket]()
        for n in range(100):
            polls.append(poll_of(server, f"n{n}", stack, BIG))
            wait_for(lambda: open_polls(server) == len(polls), "it waits")
        assert grown(server, before) < 30


@pytest.mark.parametrize(
    ("files", "connections", "possible", "warned"),
    [
        (1_000_000, None, 32_768, False),
        (resource.RLIM_INFINITY, 100_000, 100_000, False),
        (20_000, None, 15_180, False),
        (1_024, None, 614, True),
        (20_000, 30_000, 15_180, True),
        (20_000, 10_000, 10_000, False),
    ],
)
def test_there_are_as_many_connections_as_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int | None, possible: int, warned: bool
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, files))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    limits = Limits() if connections is None else Limits(max_connections=connections)
    within, warning = _within_open_files(limits)
    assert within == replace(limits, max_connections=possible)
    assert (f"so {possible} connections, and not {limits.max_connections}" in warning) is warned
    assert bool(warning) is warned
    assert possible < raised[0][0]
