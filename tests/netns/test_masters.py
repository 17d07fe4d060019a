"""Members try to reach their master before they start workers; one that some cannot reach is replaced."""

import re
from pathlib import Path

import pytest

from tests.netns.cluster import HostCluster
from tests.netns.hosts import Hosts

PORTS = "29500-29509"
SILENCE = "(timed out after 3 s|no route to host)"
"""The error for a silent neighbour; the latter once three ARP requests went unanswered."""


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


@pytest.mark.long
def test_a_node_that_reaches_no_other_is_left_out_where_the_bounds_allow(tmp_path: Path, net: Hosts) -> None:
    lan = net.switch("lan")
    hosts = [lan.host(name) for name in ("server", "a", "b", "c")]
    for other in "ab":
        lan.cut("c", other)
    with HostCluster(tmp_path, hosts, "--nnodes", "2:3", "--last-call-s", "60") as job:
        job.light = True
        for name in "abc":
            job.agent(name, 1)
        number = job.world(2)
        assert {line["node"] for line in job.lines()} == {"a", "b"}
        job.becomes("c", "spare")
        job.says("c", r"runs without c: it could not reach a at 10.77.1.2: check the firewall")
        assert re.search(r"unreachable  .*a from c", job.hetctl("get", "job"))
        assert (job.group()["round"], job.group()["restarts"]) == (number, 0)
        job.end_well("a", "b", "c")


@pytest.mark.long
def test_the_server_is_out_of_reach_for_one_node_at_first(tmp_path: Path, net: Hosts) -> None:
    lan = net.switch("lan")
    hosts = [lan.host(name) for name in ("server", "a", "b")]
    lan.cut("b", "server")
    with HostCluster(tmp_path, hosts, "--nnodes", "1:2", "--last-call-s", "1") as job:
        job.light = True
        job.agent("b", 1)
        first = job.start({"a": 1})
        job.says("b", rf"no server answers \(http://10.77.1.1:29400: {SILENCE}\); trying again")
        lan.heal()
        job.world(2, round_above=first)
        job.end_well("a", "b")
