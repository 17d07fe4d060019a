"""Members try to reach their master before they start workers; one that some cannot reach is replaced."""

import re
from pathlib import Path

from tests.netns.cluster import HostCluster
from tests.netns.hosts import Hosts

PORTS = "29500-29509"


def test_a_master_that_some_cannot_reach_is_replaced_and_the_state_says_who(
    tmp_path: Path, net: Hosts
) -> None:
    lan = net.switch("lan")
    hosts = [lan.host(name) for name in ("server", "a", "b", "c")]
    _, a, _, c = hosts
    a.firewall(closed=PORTS, closed_to=c.address)
    with HostCluster(tmp_path, hosts, "--nnodes", "3", "--port-range", PORTS) as job:
        job.light = True
        assert job.start(dict.fromkeys("abc", 1)) == 2
        (why,) = job.told("round_ended")
        assert re.fullmatch(
            r"round 1 ended: c cannot reach the master a: timed out after 3 s \(10.77.1.2:2950\d\)", why
        )
        assert "cannot reach the master a: timed out after 3 s (10.77.1.2:2950" in job.agents["c"].stderr
        group = job.group()
        assert group["unreachable"] == [["c", "a"]]
        assert [member["node_id"] for member in group["current_round"]["members"]] == ["b", "a", "c"]
        assert {line["round"] for line in job.lines()} == {2}
        status = job.hetctl("get", "job")
        assert "unreachable  a from c\n" in status
        assert "master       b at 10.77.1.3 port 295" in status
        job.end_well("a", "b", "c")
