"""Cuts the network under a running job, for shorter and longer than the lease, or drops some packets.

Most tests here share one job: each finds it running on all nodes, and leaves it so.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.cluster import Ends, HostCluster
from tests.netns.hosts import Hosts, Switch
from tests.support.cluster import wait_for

MOST_LENT = 2
"""How many tests share a job, whose logs grow with each."""

FLAGS = ("--nnodes", "2:3", "--last-call-s", "1", "--stop-timeout-s", "3")
LEASE_S = 5


class Job(HostCluster):
    """Nodes a, b and c in one network, with a worker each.

    Attributes:
        first: the round that a test found running.
        order: the nodes in rank order; not always a, b, c, since one may join late on a busy machine.
    """

    first = 0
    order: tuple[str, ...] = ()

    def __init__(self, folder: Path, net: Hosts, *flags: str) -> None:
        lan = net.switch("lan")
        self.switch: Switch = lan.switch
        super().__init__(folder, [lan.host(name) for name in ("server", "a", "b", "c")], *FLAGS, *flags)

    def start_three(self) -> int:
        """Start them; returns the number of the first round of all three."""
        for name in "abc":
            self.agent(name, 1)
        return self.world(3)

    def new(self, node: str, after: int) -> float:
        """When the first worker of a later round than `after` was started on a node."""
        return min(float(line["started"]) for line in self.lines(node=node) if line["round"] > after)


class Shared:
    """A job that runs from test to test; a new one after a test that failed, and before a node has gone too often."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._job: Job | None = None
        self._lent = 0
        self._number = 0

    @contextlib.contextmanager
    def lend(self, request: pytest.FixtureRequest) -> Iterator[Job]:
        """Lend the job, running on all nodes; keep it if the test passes."""
        failed = request.session.testsfailed
        job, self._job = self._job or self._begin(), None
        wait_for(lambda: job.group()["state"] == "running", "a running round")
        job.first, job.mark = job.group()["round"], job.events()[-1]["number"]
        job.order = tuple(member["node_id"] for member in job.group()["current_round"]["members"])
        yield job
        job.switch.heal()
        self._lent += 1
        if request.session.testsfailed != failed:
            self._stack.close()
        elif self._lent == MOST_LENT:
            with self._stack:
                job.end_well("a", "b", "c")
        else:
            self._job = job

    def _begin(self) -> Job:
        self._number, self._lent = self._number + 1, 0
        net = self._stack.enter_context(Hosts())
        folder = self._folder / str(self._number)
        folder.mkdir()
        job = self._stack.enter_context(Job(folder, net, "--lease-s", str(LEASE_S)))
        job.light = True
        job.start_three()
        return job

    def close(self) -> None:
        """End the job, which must succeed on all nodes."""
        with self._stack:
            if self._job is not None:
                self._job.end_well("a", "b", "c")


@pytest.fixture(scope="module")
def shared(able: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    made = Shared(tmp_path_factory.mktemp("job"))
    yield made
    made.close()


SILENT = (f"no heartbeat for {LEASE_S} s", "its connection was cut")
"""Why a node is lost whose packets go nowhere: the kernel and the lease notice it at about the same time."""


@pytest.fixture
def job(shared: Shared, request: pytest.FixtureRequest) -> Iterator[Job]:
    with shared.lend(request) as lent:
        yield lent


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
    node = job.order[rank]
    said = len(job.agents[node].stderr)
    old = Ends(job.pids(node))
    job.switch.cut(node, only=only)
    second = job.world(2, round_above=job.first)
    [lost] = job.told("node_lost")
    why = lost.removeprefix(f"{node} lost: ")
    assert why in SILENT
    assert job.told("round_ended") == [f"round {job.first} ended: {node} lost: {why}"]
    assert (job.node(node)["state"], job.node(node)["reason"]["message"]) == ("lost", why)
    assert f"round {job.first} is over: {node} lost: {why}" in job.agents[job.order[1]].stderr
    job.says(
        node,
        r"no server answers \(http://10.77.1.1:29400: timed out after \d.*; workers continue for .*, trying",
        said,
    )

    job.switch.heal()
    third = job.world(3, round_above=second)
    assert old.last() < job.new(node, job.first)
    assert {line["round"] for line in job.lines(node=node) if line["round"] >= job.first} == {
        job.first,
        third,
    }
    assert job.told("node_returned") == [f"{node} is back"]
    job.says(node, "the server is back", said)
    job.says(node, f"round {job.first} is over: {node} lost: {why}", said)
    current = job.group()["current_round"]
    assert tuple(member["node_id"] for member in current["members"]) == job.order
    assert current["master"]["node_id"] == job.order[0]


def test_a_cable_is_pulled_out(job: Job) -> None:
    """Unlike a cut, the node itself notices this."""
    old = Ends(job.pids("c"))
    job.switch.plug("c", "down")
    second = job.world(2, round_above=job.first)
    job.switch.plug("c", "up")
    job.world(3, round_above=second)
    assert old.last() < job.new("c", job.first)


@pytest.mark.parametrize("only", ["", "from", "to"], ids=["both ways", "what it says", "what it hears"])
def test_a_cut_shorter_than_the_lease_changes_nothing(job: Job, only: str) -> None:
    pids = job.pids()
    began = time.monotonic()
    job.switch.cut("c", only=only)
    length_s = LEASE_S / 5
    wait_for(lambda: job.switch.lost() and time.monotonic() > began + length_s, "packets that are lost")
    job.switch.heal()
    healed = time.monotonic()
    job.progress(job.first)
    wait_for(lambda: time.monotonic() - job.node("c")["heard_s_ago"] > healed, "a poll of c")
    assert (job.pids(), job.group()["round"]) == (pids, job.first)
    assert job.told("node_lost") == []


@pytest.mark.long
def test_the_server_is_out_of_reach_for_some_nodes_only(job: Job) -> None:
    """Its peers stop when it is lost; that its workers then fail costs no restart."""
    old = Ends(job.pids("c"))
    job.switch.cut("c", "server")
    second = job.world(2, round_above=job.first)
    [lost] = job.told("node_lost")
    assert lost.removeprefix("c lost: ") in SILENT
    job.switch.heal()
    job.world(3, round_above=second)
    assert old.last() < job.new("c", job.first)
    assert job.told("worker_failed") == []


def test_the_server_is_out_of_reach_for_all(job: Job) -> None:
    """It declares all lost; when it is reachable again they form a round, which costs no restart."""
    old = {name: Ends(job.pids(name)) for name in "abc"}
    job.switch.cut("server")
    wait_for(lambda: len(job.told("node_lost")) == 3, "three losses")
    assert job.group()["state"] == "waiting"
    assert not any(ends.at for ends in old.values())
    job.switch.heal()
    job.world(3, round_above=job.first)
    for name in "abc":
        assert old[name].last() < job.new(name, job.first)
    assert job.told("worker_failed") == []


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
