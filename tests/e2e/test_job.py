"""The ordinary job, end to end: real server, agents and workers, one kind of trouble per test."""

import re
import signal
from pathlib import Path

import pytest

from hetagent import statuses
from tests.support.cluster import PAIR, THREE, Cluster, cluster, leftovers, wait_for


@pytest.mark.cold
@pytest.mark.gloo
def test_uneven_nodes_get_their_offsets_and_succeed_together(job: Cluster) -> None:
    job.flags = (*job.flags, "--require-rendezvous")
    job.start(THREE)
    group = job.group()
    members = group["current_round"]["members"]
    assert [(m["node_id"], m["rank_offset"], m["slots"]) for m in members] == [
        ("a", 0, 2),
        ("b", 2, 1),
        ("c", 3, 1),
    ]
    assert group["state"] == "running"
    seen = {(line["node"], line["local_rank"]): line["rank"] for line in job.lines()}
    assert seen == {("a", 0): 0, ("a", 1): 1, ("b", 0): 2, ("c", 0): 3}
    job.end_well("a", "b", "c")
    for name in "abc":
        said = job.agents[name].stderr
        assert "round    1, restarts spent 0\ntime     " in said  # it may be too short to be seen training
        assert "\noutcome  the job succeeded\n" in said
    assert job.group()["current_round"]["met"] == 4


@pytest.mark.usefixtures("reduced")
def test_a_killed_worker_costs_one_restart_and_all_come_back(pair: Cluster) -> None:
    first = pair.start(PAIR)
    pair.agents["b"].workers()[0].kill()
    second = pair.world(3, round_above=first)
    assert {line["restart"] for line in pair.lines(round=second)} == {1}
    assert "killed by SIGKILL" in pair.agents["a"].stderr
    assert "; SIGKILL is most often the kernel, out of memory: see dmesg on " in pair.agents["a"].stderr
    pair.end_well("a", "b")


def test_an_exception_is_told_on_every_node_with_its_traceback(job: Cluster) -> None:
    job.flags = (*job.flags, "--max-restarts", "0")
    for name, gpus in THREE.items():
        job.agent(name, gpus, do="raise@2")
    assert {name: job.agents[name].wait() for name in "abc"} == {"a": 1, "b": 1, "c": 1}, job.report()
    for name in "abc":
        said = job.agents[name].stderr
        cause = said.split("root cause: ")[1]
        assert re.match(r"ValueError: the tensor of step 3 has no soul \(\w+\.py:\d+, rank 2 on b\)\n", cause)
        assert "  | ValueError: the tensor of step 3 has no soul\n" in cause
    assert job.group()["state"] == "failed"


@pytest.mark.long
def test_the_exit_code_of_the_first_failure_is_every_agents(pair: Cluster) -> None:
    pair.flags = (*pair.flags, "--max-restarts", "0")
    for name, gpus in PAIR.items():
        pair.agent(name, gpus, do="exit3@2")
    assert {name: pair.agents[name].wait() for name in "ab"} == {"a": 3, "b": 3}, pair.report()


def test_the_restart_budget_is_the_groups(pair: Cluster) -> None:
    pair.flags = (*pair.flags, "--max-restarts", "1")
    first = pair.start(PAIR)
    pair.agents["a"].workers()[1].kill()
    pair.world(3, round_above=first)
    pair.agents["b"].workers()[0].kill()
    assert {name: pair.agents[name].wait() for name in "ab"} == {"a": 1, "b": 1}
    group = pair.group()
    assert (group["state"], group["restarts"], group["round"]) == ("failed", 1, 2)
    assert "rank 2" in pair.agents["a"].stderr.split("root cause:")[1]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a", id="rank 0's", marks=pytest.mark.gloo),
        pytest.param("c", id="another", marks=pytest.mark.long),
    ],
)
def test_a_killed_agent_takes_its_workers_along_and_the_rest_go_on(job: Cluster, name: str) -> None:
    first = job.start(THREE)
    job.agents[name].send(signal.SIGKILL)
    survivors = [other for other in "abc" if other != name]
    world = 4 - (2 if name == "a" else 1)
    second = job.world(world, round_above=first)
    assert {line["restart"] for line in job.lines(round=second)} == {0}
    wait_for(lambda: not leftovers(name), "the end of the killed agent's workers", 10)
    assert job.group()["current_round"]["master"]["node_id"] == survivors[0]
    job.end_well(*survivors)


def test_a_terminated_agent_leaves_and_the_rest_go_on(job: Cluster) -> None:
    first = job.start(THREE)
    job.agents["b"].send(signal.SIGTERM)
    assert job.agents["b"].wait() == 128 + signal.SIGTERM
    second = job.world(3, round_above=first)
    assert {line["restart"] for line in job.lines(round=second)} == {0}
    assert "b is leaving: SIGTERM" in job.agents["a"].stderr
    job.end_well("a", "c")


@pytest.mark.usefixtures("reduced")
def test_a_new_node_is_admitted(job: Cluster) -> None:
    job.flags = (*job.flags, "--last-call-s", "1")
    job.agent("a", 2)
    job.agent("b", 1)
    first = job.world(3)
    job.agent("c", 1)
    second = job.world(4, round_above=first)
    assert {line["restart"] for line in job.lines(round=second)} == {0}
    job.end_well("a", "b", "c")


@pytest.mark.long
def test_a_new_node_is_kept_as_a_spare_and_fills_a_loss(job: Cluster) -> None:
    job.flags = (*job.flags, "--on-join", "spare", "--last-call-s", "1")
    job.agent("a", 2)
    job.agent("b", 1)
    first = job.world(3)
    job.agent("c", 1)
    wait_for(
        lambda: [n["state"] for n in job.group()["nodes"] if n["node_id"] == "c"] == ["spare"], "c as a spare"
    )
    job.agents["b"].send(signal.SIGKILL)
    second = job.world(3, round_above=first)
    members = [(m["node_id"], m["rank_offset"]) for m in job.group()["current_round"]["members"]]
    assert members == [("a", 0), ("c", 2)]
    assert second > first
    job.end_well("a", "c")


def test_too_few_nodes_time_out(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nnodes", "2", "--join-timeout-s", "2") as job:
        agent = job.agent("a", 1)
        assert agent.wait() == statuses.NOBODY
        assert "gave up after 2 s: 1 of 2 nodes ready (a)" in agent.stderr


def test_the_workers_do_not_notice_that_the_server_was_killed(pair: Cluster) -> None:
    first = pair.start(PAIR)
    pids = pair.pids()
    pair.server.kill()
    wait_for(lambda: "workers continue" in pair.agents["b"].stderr, "b without a server")
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
    job.world(4, round_above=second)
    job.end_well("a", "b", "c")


def test_cancel_ends_all_with_3(pair: Cluster) -> None:
    pair.start(PAIR)
    pair.post("cancel")
    assert {name: pair.agents[name].wait() for name in "ab"} == {"a": 3, "b": 3}
    for name in "ab":
        assert not leftovers(name)


def test_a_crashed_workers_children_are_gone_before_the_next_round(pair: Cluster) -> None:
    first = pair.start(PAIR, do="grandchild@2")
    pair.world(3, round_above=first)
    marked = set(leftovers("b"))
    assert marked == {process.pid for process in pair.agents["b"].workers()}
    pair.end_well("a", "b")


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(pair: Cluster) -> None:
    pair.flags = (*pair.flags[:-1], "1")
    first = pair.start(PAIR, do="ignore-term@2")
    pair.agents["a"].workers()[0].kill()
    pair.world(3, round_above=first)
    assert {line["restart"] for line in pair.lines(world=3) if line["round"] > first} == {1}
    pair.end_well("a", "b")
