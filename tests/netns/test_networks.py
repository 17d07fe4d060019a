"""Networks other than a single plain IPv4 one: two per node, IPv6 only, a firewall between nodes."""

import re
from pathlib import Path

import pytest

from tests.netns.cluster import HostCluster
from tests.netns.hosts import Host, Hosts

NODES = ("server", "a", "b")
NOBODY = "no node can be master: a cannot be reached from b; b cannot be reached from a"
ADVICE = "check the firewall, --port-range, --interface and --local-addr; to begin again: start hetagent on each node"


def start_two(job: HostCluster, *flags: str) -> None:
    """Start nodes a and b with a worker each."""
    for name in "ab":
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


def environment(job: HostCluster, name: str) -> dict[str, str]:
    """The environment of a node's worker."""
    found: dict[str, str] = job.agents[name].workers()[0].environ()
    return found


@pytest.mark.long
def test_two_networks_of_which_one_joins_the_nodes(tmp_path: Path, net: Hosts) -> None:
    control, data = net.switch("control"), net.switch("data")
    hosts = [control.host(name) for name in NODES]
    for host in hosts[1:]:
        data.switch.attach(host, "eth1")
    control.switch.cut("a", "b")
    with HostCluster(tmp_path, hosts, "--nnodes", "2") as job:
        expect_no_master(job)
        start_two(job, "--interface", "eth1")
        job.world(2)
        assert addresses(job) == ["10.77.2.1", "10.77.2.2"]
        worker = environment(job, "b")
        assert worker["MASTER_ADDR"] == "10.77.2.1"
        assert (worker["GLOO_SOCKET_IFNAME"], worker["NCCL_SOCKET_IFNAME"]) == ("eth1", "=eth1")
        job.end_well("a", "b")


@pytest.mark.long
def test_two_networks_that_both_join_the_nodes(tmp_path: Path, net: Hosts) -> None:
    """By default a node offers the address from which it reaches the server."""
    other, control = net.switch("other"), net.switch("control")
    hosts = [Host(name) for name in NODES]
    for host in hosts:
        net.add(host)
        other.switch.attach(host, "eth0")
        control.switch.attach(host, "eth1")
    with HostCluster(tmp_path, hosts, "--nnodes", "2") as job:
        job.server.url = f"http://{hosts[0].ipv4['eth1']}:29400"
        start_two(job)
        job.world(2)
        assert addresses(job) == ["10.77.2.2", "10.77.2.3"]
        worker = environment(job, "a")
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
def test_a_firewall_that_opens_only_the_port_range(tmp_path: Path, net: Hosts) -> None:
    """gloo and NCCL let the kernel pick ports, so its range must be open too (docs/deploy.md)."""
    lan = net.switch("lan")
    hosts = [lan.host(name) for name in NODES]
    for host in hosts[1:]:
        host.firewall(opened="29500-29599")
    with HostCluster(tmp_path, hosts, "--nnodes", "2") as job:
        expect_no_master(job)
        for host in hosts[1:]:
            assert host.refused() > 0
            host.ephemeral_ports(29520, 29599)
            host.firewall(opened="29500-29599")
        start_two(job, "--port-range", "29500-29519")
        first = job.world(2)
        assert 29500 <= job.group()["current_round"]["master"]["port"] <= 29519
        assert 29500 <= job.group()["current_round"]["master"]["script_port"] <= 29519
        job.post("restart")
        job.world(2, round_above=first)
        assert [host.refused() for host in hosts[1:]] == [0, 0]
        job.end_well("a", "b")
