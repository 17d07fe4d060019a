"""The ordinary job, end to end: real server, agents and workers, one kind of trouble per test."""

import signal
from pathlib import Path

import pytest

from hetagent import statuses
from tests.support.cluster import PAIR, THREE, Cluster, cluster, leftovers, wait_for


@pytest.mark.cold
@pytest.mark.gloo
def test_uneven_nodes_get_their_offsets_and_succeed_together(pair: Cluster) -> None:
    pair.flags = (*pair.flags, "--require-rendezvous")
    pair.start(PAIR)
    group = pair.group()
    members = group["current_round"]["members"]
    assert [(m["node_id"], m["rank_offset"], m["slots"]) for m in members] == [("a", 0, 2), ("b", 2, 1)]
    assert group["state"] == "running"
    seen = {(line["node"], line["local_rank"]): line["rank"] for line in pair.lines()}
    assert seen == {("a", 0): 0, ("a", 1): 1, ("b", 0): 2}
    pair.end_well("a", "b")
    for name in "ab":
        said = pair.agents[name].stderr
        assert "round    1, restarts spent 0\ntime     " in said  # it may be too short to be seen training
        assert "\noutcome  the job succeeded\n" in said
    assert pair.group()["current_round"]["met"] == 3


def test_killed_workers_cost_a_restart_each_until_the_groups_budget_is_spent(pair: Cluster) -> None:
    pair.flags = (*pair.flags, "--max-restarts", "1")
    first = pair.start(PAIR)
    pair.agents["a"].workers()[1].kill()
    second = pair.world(3, round_above=first)
    assert {line["restart"] for line in pair.lines(round=second)} == {1}
    said = pair.agents["b"].stderr
    assert "rank 1 on a was killed by SIGKILL" in said
    assert "; SIGKILL is most often the kernel, out of memory: see dmesg on a" in said
    pair.agents["b"].workers()[0].kill()
    assert {name: pair.agents[name].wait() for name in "ab"} == {"a": 1, "b": 1}
    group = pair.group()
    assert (group["state"], group["restarts"], group["round"]) == ("failed", 1, second)
    assert "rank 2" in pair.agents["a"].stderr.split("root cause:")[1]


def test_a_killed_agent_takes_its_workers_along_and_the_rest_go_on(job: Cluster) -> None:
    """Rank 0's agent: the next one is master."""
    first = job.start(THREE)
    job.agents["a"].send(signal.SIGKILL)
    second = job.world(2, round_above=first)
    assert {line["restart"] for line in job.lines(round=second)} == {0}
    wait_for(lambda: not leftovers("a"), "the end of the killed agent's workers", 10)
    assert job.group()["current_round"]["master"]["node_id"] == "b"
    job.end_well("b", "c")


def test_too_few_nodes_time_out(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nnodes", "2", "--join-timeout-s", "2") as job:
        agent = job.agent("a", 1)
        assert agent.wait() == statuses.NOBODY
        assert "gave up after 2 s: 1 of 2 nodes ready (a)" in agent.stderr


def test_the_workers_do_not_notice_that_the_server_was_killed(pair: Cluster) -> None:
    first = pair.start(PAIR)
    pids = pair.pids()
    pair.server.kill()
    wait_for(lambda: "the round continues" in pair.agents["b"].stderr, "b without a server")
    pair.progress(first)
    pair.server.start()
    wait_for(lambda: "the server is back" in pair.agents["b"].stderr, "b's reconnection")
    assert pair.pids() == pids
    pair.agents["b"].workers()[0].kill()
    pair.world(3, round_above=first)
    pair.end_well("a", "b")
    assert pair.group()["restarts"] == 1


def test_drained_and_let_in_again(job: Cluster) -> None:
    first = job.start(THREE)
    job.post("nodes/c/drain")
    assert job.agents["c"].wait() == 4
    second = job.world(3, round_above=first)
    job.post("nodes/c/undrain")
    job.agent("c", 1)
    third = job.world(4, round_above=second)
    assert {line["restart"] for line in job.lines(round=third)} == {0}
    job.end_well("a", "b", "c")


def test_what_a_crashed_worker_started_is_gone_before_the_next_round(pair: Cluster) -> None:
    first = pair.start(PAIR, do="grandchild@2")
    pair.world(3, round_above=first)
    assert set(leftovers("b")) == {worker.pid for worker in pair.agents["b"].workers()}
    assert "rank 2 on b exited with code 5" in pair.told("restart_spent")[0]
    pair.end_well("a", "b")
