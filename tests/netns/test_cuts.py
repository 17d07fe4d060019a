"""Cuts the network under a running job, for shorter and longer than the lease, or drops some packets."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.cluster import Ends, HostCluster
from tests.netns.hosts import Hosts
from tests.support.cluster import wait_for

FLAGS = ("--nnodes", "2:3", "--last-call-s", "1", "--stop-timeout-s", "3")
LEASE_S = 5


class Job(HostCluster):
    """Nodes a, b and c in one network, with a worker each."""

    def __init__(self, folder: Path, net: Hosts, *flags: str) -> None:
        self.switch = lan = net.switch("lan")
        super().__init__(folder, [lan.host(name) for name in ("server", "a", "b", "c")], *FLAGS, *flags)

    def start_three(self) -> int:
        """Start them; returns the number of the first round of all three."""
        return self.start(dict.fromkeys("abc", 1))

    def new(self, node: str, after: int) -> float:
        """When the first worker of a later round than `after` was started on a node."""
        return min(float(line["started"]) for line in self.lines(node=node) if line["round"] > after)


@pytest.fixture
def job(tmp_path: Path, net: Hosts) -> Iterator[Job]:
    with Job(tmp_path, net, "--lease-s", str(LEASE_S)) as made:
        made.light = True
        yield made


SILENT = (f"no heartbeat for {LEASE_S} s", "its connection was cut")
"""Why a node is lost whose packets go nowhere: the kernel and the lease notice it at about the same time."""


@pytest.mark.parametrize(
    ("rank", "only"),
    [
        (2, ""),
        pytest.param(0, "from", marks=pytest.mark.long),
        pytest.param(2, "to", marks=pytest.mark.long),
    ],
    ids=["both ways", "what the master says", "what it hears"],
)
def test_a_node_that_is_cut_off_comes_back_without_its_old_workers(job: Job, rank: int, only: str) -> None:
    first = job.start_three()
    order = [member["node_id"] for member in job.group()["current_round"]["members"]]  # one may join late
    node = order[rank]
    said = len(job.agents[node].stderr)
    old = Ends(job.pids(node))
    job.switch.cut(node, only=only)
    second = job.world(2, round_above=first)
    [lost] = job.told("node_lost")
    why = lost.removeprefix(f"{node} lost: ")
    assert why in SILENT
    assert job.told("round_ended") == [f"round {first} ended: {node} lost: {why}"]
    assert (job.node(node)["state"], job.node(node)["reason"]["message"]) == ("lost", why)
    assert f"round {first} is over: {node} lost: {why}" in job.agents[order[1]].stderr
    job.says(
        node,
        r"no server answers \(http://10.77.1.1:29400: timed out after \d.*; the round continues for .*, trying",
        said,
    )

    job.switch.heal()
    third = job.world(3, round_above=second)
    assert old.last() < job.new(node, first)
    assert {line["round"] for line in job.lines(node=node)} == {first, third}
    assert job.told("node_returned") == [f"{node} is back"]
    job.says(node, "the server is back", said)
    job.says(node, f"round {first} is over: {node} lost: {why}", said)
    current = job.group()["current_round"]
    assert [member["node_id"] for member in current["members"]] == order
    assert current["master"]["node_id"] == order[0]
    job.end_well("a", "b", "c")


def test_a_short_cut_changes_nothing_and_a_cable_that_is_pulled_out_costs_a_round(job: Job) -> None:
    """Unlike a cut, the node itself notices a cable."""
    first = job.start_three()
    pids = job.pids()
    for only in ("", "from", "to"):
        began = time.monotonic()
        job.switch.cut("c", only=only)
        length_s = LEASE_S / 5
        wait_for(lambda: job.switch.lost() and time.monotonic() > began + length_s, "packets that are lost")  # noqa: B023
        job.switch.heal()
        healed = time.monotonic()
        job.progress(first)
        wait_for(lambda: time.monotonic() - job.node("c")["heard_s_ago"] > healed, "a poll of c")  # noqa: B023
        assert (job.pids(), job.group()["round"]) == (pids, first)
    assert job.told("node_lost") == []
    old = Ends(job.pids("c"))
    job.switch.plug("c", "down")
    second = job.world(2, round_above=first)
    job.switch.plug("c", "up")
    job.world(3, round_above=second)
    assert old.last() < job.new("c", first)
    job.end_well("a", "b", "c")


@pytest.mark.long
def test_one_packet_in_ten_is_lost(tmp_path: Path, net: Hosts) -> None:
    """No node is declared lost, and a new round forms whose workers all meet.

    The lease is long, since TCP needs 3 s to connect if it loses the first packet twice, and 7 s for three times.
    """
    with Job(tmp_path, net, "--lease-s", "20") as job:
        first = job.start_three()
        job.switch.lose(0.1)
        job.progress(first)
        job.post("restart")
        job.world(3, round_above=first)
        wait_for(lambda: job.group()["state"] == "running", "a running round")
        assert job.switch.lost() > 0
        tried = sum("cannot reach the master" in text for text in job.told("round_ended"))  # not within 3 s
        assert (job.told("node_lost"), job.group()["round"]) == ([], first + 1 + tried)
        job.switch.heal()
        job.end_well("a", "b", "c")


@pytest.mark.long
def test_a_node_that_gives_up_in_time_never_writes_beside_its_successors(tmp_path: Path, net: Hosts) -> None:
    """1.5 times max_disconnect_s plus stop_timeout_s is less than the lease: docs/operations.md."""
    with Job(tmp_path, net, "--lease-s", "7", "--max-disconnect-s", "2") as job:
        first = job.start_three()
        old = Ends(job.pids("a"))
        job.switch.cut("a")
        second = job.world(2, round_above=first)
        assert old.last() < min(line["started"] for line in job.lines(round=second))
        assert "no server has answered for 2 s (max_disconnect_s)" in job.agents["a"].stderr
        job.switch.heal()
        job.world(3, round_above=second)
        job.end_well("a", "b", "c")
