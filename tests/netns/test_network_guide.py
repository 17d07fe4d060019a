"""Types the commands of docs/deploy.md on hosts with two networks, and with a firewall."""

import shlex
from pathlib import Path

import pytest

from tests.netns.cluster import HostCluster
from tests.netns.hosts import Host, Hosts
from tests.support.pages import commands

NODES = ("server", "a", "b")
GIVEN = ["--gpus", "4", "--server", "http://10.0.0.1:29400", "--token-file", "token"]
"""What the tests replace in every command of an agent."""


def flags_of(line: str) -> list[str]:
    """The flags of an agent's command that matter here."""
    words = shlex.split(line)
    at = words.index("hetagent") + 1
    assert words[at : at + len(GIVEN)] == GIVEN
    assert words[-1] == "train.py"
    return words[at + len(GIVEN) : -1]


def start(job: HostCluster, line: str) -> None:
    """Start nodes a and b, as a command of the page says."""
    for name in "ab":
        flags = [word.replace("10.0.1.7", job.hosts[name].ipv4.get("eth1", "")) for word in flags_of(line)]
        job.agent(name, 1, *flags)


def two_networks(net: Hosts) -> list[Host]:
    """A server and two nodes; the nodes reach each other on the second network only."""
    control, data = net.switch("control"), net.switch("data")
    hosts = [control.host(name) for name in NODES]
    for host in hosts[1:]:
        data.switch.attach(host, "eth1")
    control.switch.cut("a", "b")
    return hosts


LOOK = commands("docs/deploy.md", "Network")
INTERFACE, ADDRESS = commands("docs/deploy.md", "A network for control, another for data")
(INFINIBAND,) = commands("docs/deploy.md", "InfiniBand and RoCE")
PORTS, KERNEL = commands("docs/deploy.md", "Firewalls")


@pytest.mark.parametrize("line", [INTERFACE, ADDRESS], ids=["interface", "address"])
@pytest.mark.long
def test_a_network_for_control_another_for_data(tmp_path: Path, net: Hosts, line: str) -> None:
    addresses, route, status = LOOK
    with HostCluster(tmp_path, two_networks(net)) as job:
        job.light = True
        start(job, line)
        job.world(2)
        node = job.hosts["b"]
        assert {*node.ipv4.values()} <= {word.split("/")[0] for word in node.run(*addresses.split()).split()}
        assert f"src {node.ipv4['eth0']}" in node.run(
            *route.replace("10.0.0.1", job.hosts["server"].address).split()
        )
        assert node.ipv4["eth1"] in job.hetctl(*status.replace("default", "job").split()[1:])
        worker = job.agents["b"].workers()[0].environ()
        assert (worker["GLOO_SOCKET_IFNAME"], worker["NCCL_SOCKET_IFNAME"]) == ("eth1", "=eth1")
        job.end_well("a", "b")


@pytest.mark.long
def test_variables_that_are_set_reach_the_workers(
    tmp_path: Path, net: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that can be tried of InfiniBand here."""
    name, value = INFINIBAND.split()[0].split("=")
    monkeypatch.setenv(name, value)
    with HostCluster(tmp_path, two_networks(net)) as job:
        job.light = True
        start(job, INFINIBAND)
        job.world(2)
        worker = job.agents["b"].workers()[0].environ()
        assert (worker[name], worker["GLOO_SOCKET_IFNAME"]) == (value, "eth1")
        job.end_well("a", "b")


@pytest.mark.long
@pytest.mark.gloo
def test_the_ports_behind_a_firewall(tmp_path: Path, net: Hosts) -> None:
    lan = net.switch("lan")
    hosts = [lan.host(name) for name in NODES]
    for host in hosts[1:]:
        host.run(*shlex.split(KERNEL))
        host.firewall(opened="29500-29799")
    with HostCluster(tmp_path, hosts) as job:
        start(job, PORTS)
        job.world(2)
        assert 29500 <= job.group()["current_round"]["master"]["port"] <= 29519
        assert [host.refused() for host in hosts[1:]] == [0, 0]
        job.end_well("a", "b")
