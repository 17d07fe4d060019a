"""The check between agents, over real sockets: it finds a result, and never keeps a round from starting."""

import asyncio
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetagent.job.network import master, member, transfer
from hetagent.job.network.check import NetworkCheck
from hetagent.job.network.member import Message, Result
from hetagent.node.network import hold_port
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import MasterReply, StartReply
from hetrdzv.protocol.facts.parts import Quoted
from hetrdzv.protocol.rooms.network import (
    NetworkFound,
    NotAllChecked,
    NotChecked,
    Reached,
    SlowLink,
    SlowWay,
    Spread,
)
from hetrdzv.protocol.states import ReportKind

WAIT_S = 60.0


class Node:
    """An agent's part: a check, and the port that it holds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.check = NetworkCheck("job", name, lambda: "127.0.0.1")
        self.listener = hold_port("127.0.0.1", None)
        self.port: int = self.listener.getsockname()[1]

    def begin(self, rank: int, nodes: "Sequence[Node]", number: int = 1, address: str = "127.0.0.1") -> None:
        first = nodes[0]
        start = StartReply(
            group_rank=rank,
            rank_offset=rank,
            slots=1,
            role_offset=0,
            role_world_size=1,
            world_size=len(nodes),
            nnodes=len(nodes),
            restart_count=0,
            max_restarts=3,
            master=MasterReply(node_id=first.name, address=address, port=1, script_port=first.port),
        )
        self.check.check(number, start, self.listener)

    def result(self) -> Result:
        assert select.select([self.check], [], [], WAIT_S)[0], f"{self.name} has no result"
        found = self.check.take()
        assert found is not None
        assert not self.check.holds_start()
        return found

    def close(self) -> None:
        self.check.close()
        self.listener.close()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Node]]:
    monkeypatch.setattr(transfer, "MEASURE_S", 0.02)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Node(name))) for name in ("a", "b", "c")]


def test_all_hear_the_same_and_later_rounds_measure_nothing(nodes: list[Node]) -> None:
    for rank, node in enumerate(nodes):
        node.begin(rank, nodes)
    found = [node.result() for node in nodes]
    assert found[0].spread is not None
    assert found[0].spread.pairs == 3
    assert found[1:] == found[:-1]
    for node in nodes:
        assert node.listener.getblocking(), "as it was"
    for rank, node in enumerate(nodes):
        assert node.check.wanted
        node.begin(rank, nodes, number=2)
    assert [node.result() for node in nodes] == [Result()] * 3, "nobody is new"


def test_the_master_goes_on_once_all_have_heard(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    say = master.say

    async def slowly(writer: asyncio.StreamWriter, message: Message) -> None:
        await say(writer, message)
        if message["do"] == "end":
            await asyncio.sleep(0.2)

    monkeypatch.setattr(master, "say", slowly)
    for rank, node in enumerate(nodes):
        node.begin(rank, nodes)
    found = [node.result() for node in nodes]
    assert found[0].spread is not None
    assert found[1:] == found[:-1]


def test_a_node_that_does_not_take_part_is_counted(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master, "GATHER_S", 0.5)
    for rank, node in enumerate(nodes[:2]):
        node.begin(rank, nodes)
    for node in nodes[:2]:
        found = node.result()
        assert found.spread is not None
        assert found.spread.pairs == 1
        assert found.found == NetworkFound(absent=NotAllChecked(missing=1, nodes=3))
        assert not node.check.wanted, "nobody is waited for in every round"


def test_a_master_that_does_not_take_part(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "ANSWER_S", 0.3)
    nodes[1].begin(1, nodes)
    failed = NotChecked(master="a", why=Quoted("no answer in time"))
    assert nodes[1].result().found == NetworkFound(failed=failed)
    assert not nodes[1].check.wanted
    nodes[0].listener.close()
    nodes[1].begin(1, nodes)
    again = nodes[1].result().found.failed
    assert again is not None
    assert again.why.startswith("[Errno 111]")


def test_a_round_that_is_over_ends_its_check(nodes: list[Node]) -> None:
    nodes[0].begin(0, nodes)
    nodes[1].begin(1, nodes)
    assert nodes[0].check.take() is None, "it waits for c"
    for node in nodes[:2]:
        node.check.end()
        assert not node.check.holds_start()
        assert node.listener.getblocking()
    for rank, node in enumerate(nodes[:2]):
        node.begin(rank, nodes[:2], number=2)
    assert nodes[0].result().spread is not None


LOOKS_UP = """
import socket, subprocess, sys, threading
from tests.agent.job.network.test_check import Node

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for file in ("resolv.conf", "nsswitch.conf"):
    subprocess.run(["mount", "--bind", f"{sys.argv[1]}/{file}", f"/etc/{file}"], check=True)
resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
resolver.bind(("127.0.0.1", 53))

def looking():
    return sum(thread.name == "hetagent-look-up" for thread in threading.enumerate())

master, node = Node("a"), Node("b")
node.begin(1, [master, node], address="master.test")
resolver.recv(512)
node.check.end()
print("rested", node.check.holds_start(), node.listener.getblocking(), looking())
node.begin(1, [master, node], number=2, address="master.test")
print(node.result().found.failed.why)
node.begin(1, [master, node], number=3, address="master.test")
node.close()
print("closed", looking())
"""


@pytest.mark.netns
def test_a_resolver_that_does_not_answer_holds_nothing_up(tmp_path: Path) -> None:
    """Neither the round's end, nor its start, nor the agent's exit; the look-ups go on for longer than this test."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:5\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: files dns\n")
    done = subprocess.run(
        ["unshare", "--net", "--mount", sys.executable, "-c", LOOKS_UP, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.stdout.splitlines() == [
        "rested False True 1",
        "no answer in time",
        "closed 3",
    ], done.stderr


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"{}\n",
        b"[]\n",
        b"[" * 20_000 + b"\n",
        b'{"hetrdzv": "hello"}\n',
        b'{"hetrdzv": "hello", "version": 1, "group": "job", "round": 1, "rank": 1, "node": "x\\ny", "port": 1}\n',
        b'{"hetrdzv": "hello", "version": 1, "group": "other", "round": 1, "rank": 1, "node": "x", "port": 1}\n',
        b'{"hetrdzv": "data", "key": "0-1", "to_you": true}\n',
        b"\x00" * 100_000,
    ],
)
def test_strangers_change_nothing(nodes: list[Node], said: bytes) -> None:
    two = nodes[:2]
    two[0].begin(0, two)
    with socket.create_connection(("127.0.0.1", two[0].port), WAIT_S) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(said)
        two[1].begin(1, two)
        found = two[0].result()
    assert found.spread is not None
    assert found.spread.pairs == 1
    assert found.found == NetworkFound()


def test_a_peer_that_vanishes_while_it_is_measured_is_named(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port leads nowhere: whoever dials it gets no further, and the round goes on."""
    two = nodes[:2]
    monkeypatch.setattr(master, "STEP_S", 1.0)
    two[0].begin(0, two)
    hello = {"hetrdzv": "hello", "version": 1, "group": "job", "round": 1, "rank": 1, "node": "b"}
    with socket.create_connection(("127.0.0.1", two[0].port), WAIT_S) as peer:
        peer.sendall(json.dumps({**hello, "address": "127.0.0.1", "port": 1, "fresh": True}).encode() + b"\n")
        lines = peer.makefile("rb")
        assert [json.loads(lines.readline())["do"] for _ in range(2)] == ["wait", "dial"]
        found = two[0].result()
    cut = SlowWay(node_id="a", reached=Reached(node_id="b"))
    assert found == Result(spread=Spread(pairs=1), found=NetworkFound(ways=(cut,)))


WAY = SlowWay(node_id="a", reached=Reached(node_id="b", rate=1e9))


def test_what_a_master_says_comes_back() -> None:
    link = SlowLink(node_id="a", first=Reached(node_id="b"), again=Reached(node_id="c", rate=2.0), usual=1e9)
    for result in (
        Result(),
        Result(
            spread=Spread(pairs=2, slowest=2.0, fastest=3.0),
            found=NetworkFound(absent=NotAllChecked(missing=1, nodes=3), links=(link,), ways=(WAY,)),
            again=False,
        ),
    ):
        said = json.loads(json.dumps({"result": codec.plain(result)}))
        assert member._result(said) == result


@pytest.mark.parametrize(
    "result",
    [
        None,
        "text",
        {"again": "no"},
        {"spread": {"pairs": 0}},
        {"found": {"ways": [codec.plain(WAY)] * 9}},
        {"found": {"ways": [{**codec.plain(WAY), "node_id": "\x1b[2Jgone"}]}},
        {"found": {"links": [{**codec.plain(WAY), "kind": "\x1b[2Jgone"}]}},
        {"found": {"absent": {"missing": -1, "nodes": 2}}},
    ],
)
def test_nonsense_of_a_master_is_no_result(result: object) -> None:
    with pytest.raises(ValueError, match="its result makes no sense"):
        member._result({"result": result})


@pytest.mark.parametrize("rate", [0, -1, 1e300, 10**400, float("inf"), float("nan"), "1", None])
def test_a_rate_that_is_none_counts_as_nothing(rate: object) -> None:
    leader = master.Master("job", 1, 2)
    running = leader._running["0-1"] = master._Measured({"serve": 0, "dial": 1})
    leader._measured(0, {"key": "0-1", "end": "serve", "rate": rate})
    leader._measured(1, {"key": "0-1", "end": "dial", "rate": 5})
    assert running.rates == {"serve": None, "dial": 5.0}
    assert running.rate is None


def test_the_agent_shows_all_and_reports_what_is_wrong(nodes: list[Node]) -> None:
    told, warned = list[str](), list[str]()
    check = NetworkCheck("job", "a", lambda: "127.0.0.1", told.append, warned.extend)
    with contextlib.closing(check):
        for is_master in (True, False):
            check._assignment = SimpleNamespace(round=3, is_master=is_master)  # type: ignore[assignment]
            check._thread = threading.Thread()
            check._thread.start()
            found = NetworkFound(ways=(WAY,))
            check._result = Result(spread=Spread(pairs=1, slowest=1e9, fastest=1e9), found=found)
            check.look()
            assert check.report(ReportKind.STARTED) == {"network": found if is_master else None}
            assert check.report(ReportKind.SUCCEEDED) == {}
    assert told == ["round 3: network: 8 Gbit/s between the two nodes"] * 2
    assert warned == ["a and b reach 8 Gbit/s between them: check the way between them"] * 2
