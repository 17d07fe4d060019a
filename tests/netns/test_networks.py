"""Networks other than a plain IPv4 one, with the commands of docs/deploy.md: two per node, IPv6 only, firewalls."""

import re
import shlex
from pathlib import Path

import pytest

from tests.netns.cluster import HostCluster
from tests.netns.hosts import Host, Hosts
from tests.support.pages import commands

NODES = ("server", "a", "b")
NOBODY = "no node can be master: a cannot be reached from b; b cannot be reached from a"
ADVICE = (
    "check the firewall, --port-range, --interface and --local-addr; to begin again: start hetagent again"
)


GIVEN = ["--gpus", "4", "--server", "http://10.0.0.1:29400", "--token-file", "token"]
"""What the tests replace in every command of an agent in docs/deploy.md."""

LOOK = commands("docs/deploy.md", "Network")
INTERFACE, ADDRESS = commands("docs/deploy.md", "A network for control, another for data")
(INFINIBAND,) = commands("docs/deploy.md", "InfiniBand and RoCE")
PORTS, KERNEL = commands("docs/deploy.md", "Firewalls")


def start_two(job: HostCluster, line: str = "") -> None:
    """Start nodes a and b with a worker each, as a command of the page says."""
    words = shlex.split(line)
    if line:
        at = words.index("hetagent") + 1
        assert words[at : at + len(GIVEN)] == GIVEN
        assert words[-1] == "train.py"
        words = words[at + len(GIVEN) : -1]
    for name in "ab":
        flags = [word.replace("10.0.1.7", job.hosts[name].ipv4.get("eth1", "")) for word in words]
        job.agent(name, 1, *flags)


def expect_no_master(job: HostCluster) -> None:
    """The job must fail before any worker starts, and say who could not reach whom."""
    start_two(job)
    assert {name: job.agents[name].wait() for name in "ab"} == {"a": 1, "b": 1}, job.report()
    for name in "ab":
        said = job.agents[name].stderr
        assert f"root cause: {NOBODY}\n" in said
        assert f"  next: {ADVICE}\n" in said
    status = job.hetctl("get", "job")
    assert NOBODY in status
    assert re.search(rf"^next +{re.escape(ADVICE)}$", status, re.MULTILINE), status
    first, second = job.told("round_ended")
    assert first.startswith("round 1 ended: b cannot reach the master a: timed out after 3 s (10.77.1.2:")
    assert second.startswith("round 2 ended: a cannot reach the master b: timed out after 3 s (10.77.1.3:")
    assert (job.group()["restarts"], job.lines()) == (0, [])


def addresses(job: HostCluster) -> list[str]:
    """The members' addresses, in rank order."""
    return [member["address"] for member in job.group()["current_round"]["members"]]


def worker_of(job: HostCluster, name: str) -> dict[str, str]:
    """The environment of a node's worker."""
    found: dict[str, str] = job.agents[name].workers()[0].environ()
    return found


@pytest.mark.long
@pytest.mark.parametrize("line", [INTERFACE, ADDRESS, INFINIBAND], ids=["interface", "address", "InfiniBand"])
def test_two_networks_of_which_one_joins_the_nodes(
    tmp_path: Path, net: Hosts, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, value = line.split()[0].partition("=")
    if value:  # all that can be tried of InfiniBand here
        monkeypatch.setenv(name, value)
    control, data = net.switch("control"), net.switch("data")
    hosts = [control.host(name) for name in NODES]
    for host in hosts[1:]:
        data.attach(host, "eth1")
    control.cut("a", "b")
    with HostCluster(tmp_path, hosts, "--nnodes", "2") as job:
        job.light = line != INTERFACE
        if line == INTERFACE:
            expect_no_master(job)
        start_two(job, line)
        job.world(2)
        assert addresses(job) == ["10.77.2.1", "10.77.2.2"]
        worker, node = worker_of(job, "b"), job.hosts["b"]
        assert worker["MASTER_ADDR"] == "10.77.2.1"
        assert (worker["GLOO_SOCKET_IFNAME"], worker["NCCL_SOCKET_IFNAME"]) == ("eth1", "=eth1")
        assert worker.get(name, "") == value
        shown, route, status = LOOK
        assert {*node.ipv4.values()} <= {word.split("/")[0] for word in node.run(*shown.split()).split()}
        way = node.run(*route.replace("10.0.0.1", job.hosts["server"].address).split())
        assert f"src {node.ipv4['eth0']}" in way
        assert node.ipv4["eth1"] in job.hetctl(*status.replace("default", "job").split()[1:])
        job.end_well("a", "b")


@pytest.mark.long
def test_two_networks_that_both_join_the_nodes(tmp_path: Path, net: Hosts) -> None:
    """By default a node offers the address from which it reaches the server."""
    other, control = net.switch("other"), net.switch("control")
    hosts = [Host(name) for name in NODES]
    for host in hosts:
        net.add(host)
        other.attach(host, "eth0")
        control.attach(host, "eth1")
    with HostCluster(tmp_path, hosts, "--nnodes", "2") as job:
        job.server.url = f"http://{hosts[0].ipv4['eth1']}:29400"
        start_two(job)
        job.world(2)
        assert addresses(job) == ["10.77.2.2", "10.77.2.3"]
        worker = worker_of(job, "a")
        assert worker["GLOO_SOCKET_IFNAME"] == "eth1", "the host name is not this host's address"
        assert "NCCL_SOCKET_IFNAME" not in worker, "NCCL may use every network"
        job.end_well("a", "b")


@pytest.mark.long
def test_ipv6_only(tmp_path: Path, net: Hosts) -> None:
    lan = net.switch("lan")
    hosts = [lan.host(name, ipv4=False, ipv6=True) for name in NODES]
    with HostCluster(tmp_path, hosts, "--nnodes", "2") as job:
        start_two(job)
        first = job.world(2)
        assert addresses(job) == ["fd77:1::2", "fd77:1::3"]
        assert f"round {first}: rank 1 of 2 on 2 nodes, master a ([fd77:1::2]:" in job.agents["b"].stderr
        assert "master    a at fd77:1::2 port" in job.hetctl("get", "job")
        job.post("restart")
        job.world(2, round_above=first)
        job.end_well("a", "b")


@pytest.mark.long
@pytest.mark.gloo
def test_a_firewall_that_opens_only_the_port_range(tmp_path: Path, net: Hosts) -> None:
    """gloo and NCCL let the kernel pick ports, so its range must be open too."""
    lan = net.switch("lan")
    hosts = [lan.host(name) for name in NODES]
    for host in hosts[1:]:
        host.firewall(opened="29500-29799")
    with HostCluster(tmp_path, hosts, "--nnodes", "2") as job:
        expect_no_master(job)
        for host in hosts[1:]:
            assert host.refused() > 0
            host.run(*shlex.split(KERNEL))
            host.firewall(opened="29500-29799")
        start_two(job, PORTS)
        first = job.world(2)
        master = job.group()["current_round"]["master"]
        assert all(29500 <= master[port] <= 29519 for port in ("port", "script_port"))
        job.post("restart")
        job.world(2, round_above=first)
        assert [host.refused() for host in hosts[1:]] == [0, 0]
        job.end_well("a", "b")
