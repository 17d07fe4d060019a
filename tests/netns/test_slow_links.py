"""examples/network_check.py on hosts of their own, of which one has a slow link (tc's token bucket)."""

import re
import shutil
from pathlib import Path

import pytest

from tests.netns.cluster import HostCluster
from tests.netns.hosts import Host, Hosts

NODES = ("server", "a", "b", "c", "d")
CHECK = str(Path(__file__).parents[2] / "examples" / "network_check.py")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("tc") is None, reason="needs tc: apt-get install iproute2"),
]


def throttle(host: Host, mbit: int) -> None:
    """Let a host send no faster than that."""
    words = f"qdisc replace dev eth0 root tbf rate {mbit}mbit burst 64kb latency 50ms"
    host.run("tc", *words.split())


def check(folder: Path, hosts: list[Host]) -> list[str]:
    """Run the job on all hosts but the server's; returns what rank 0 has printed."""
    with HostCluster(folder, hosts, "--nnodes", "4") as job:
        for name in NODES[1:]:
            job.agent(name, 1, script=CHECK)
        assert {name: job.agents[name].wait(120) for name in NODES[1:]} == dict.fromkeys(NODES[1:], 0), (
            job.report()
        )
        return re.findall(r"^\w - \w: .*|^.* slow.*", job.agents["a"].stderr, re.MULTILINE)


def test_the_node_with_the_slow_link_is_named(tmp_path: Path, net: Hosts) -> None:
    lan = net.switch("lan")
    hosts = [lan.host(name) for name in NODES]
    for host in hosts[1:]:
        throttle(host, 100)
    throttle(hosts[3], 10)
    *pairs, verdict = check(tmp_path, hosts)
    assert len(pairs) == 6
    assert all("c" in line.split(":")[0] for line in pairs[:3]), pairs
    assert verdict.startswith("c is slow: at most ")
