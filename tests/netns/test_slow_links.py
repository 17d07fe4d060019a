"""`--check-network` on hosts of their own, of which one has a slow link (tc's token bucket)."""

import shutil
from pathlib import Path

import pytest

from tests.netns.cluster import HostCluster
from tests.netns.hosts import Host, Hosts

NODES = ("server", "a", "b", "c", "d")

pytestmark = pytest.mark.skipif(shutil.which("tc") is None, reason="needs tc (iproute2)")


def throttle(host: Host, mbit: int) -> None:
    """Let a host send no faster than that."""
    words = f"qdisc replace dev eth0 root tbf rate {mbit}mbit burst 64kb latency 50ms"
    host.run("tc", *words.split())


@pytest.mark.long
def test_the_node_with_the_slow_link_is_named_on_all_nodes(tmp_path: Path, net: Hosts) -> None:
    lan = net.switch("lan")
    hosts = [lan.host(name) for name in NODES]
    for host in hosts[1:]:
        throttle(host, 100)
    throttle(hosts[3], 10)
    with HostCluster(tmp_path, hosts, "--nnodes", "4") as job:
        job.light = True
        for name in NODES[1:]:
            job.agent(name, 1, "--check-network")
        job.world(4)
        for name in NODES[1:]:
            said = job.agents[name].stderr
            assert ": network: " in said
            [warning] = [line for line in said.splitlines() if "warning: " in line]
            assert "warning: the network of node c is slow: " in warning
        assert [text.partition(" is slow")[0] for text in job.group()["warnings"]] == [
            "the network of node c"
        ]
        job.end_well(*NODES[1:])


@pytest.mark.long
def test_a_way_that_is_cut_between_two_nodes_is_named_and_stops_nothing(tmp_path: Path, net: Hosts) -> None:
    lan = net.switch("lan")
    hosts = [lan.host(name) for name in NODES]
    for host in hosts[1:]:
        throttle(host, 100)  # so that a busy machine is not what limits some of them
    lan.switch.cut("c", "d")
    with HostCluster(tmp_path, hosts, "--nnodes", "4") as job:
        for name in NODES[1:]:
            job.agent(name, 1, "--check-network")
        text = "warning: c and d reach nothing between them; .* is usual here: check the way between them"
        for name in NODES[1:]:
            job.says(name, text)
