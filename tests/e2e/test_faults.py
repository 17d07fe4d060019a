"""Faults around a job's workers, end to end: agents, the server, signals, disks, clocks."""

import signal
import time
from pathlib import Path

import pytest

from hetagent import statuses
from tests.support.cluster import PAIR, THREE, Cluster, leftovers, wait_for
from tests.support.disks import fill, small_disk

SKEWED = Path(__file__).parents[1] / "support" / "skewed"
LEASE_S = 2


def stands_still(pid: int) -> bool:
    """Whether the main thread of a process has not run for 0.3 s."""
    status = Path(f"/proc/{pid}/task/{pid}/status")

    def switches() -> list[str]:
        return [line for line in status.read_text().splitlines() if "ctxt_switches" in line]

    before = switches()
    time.sleep(0.3)
    return switches() == before


def no_overlap(job: Cluster, node: str) -> None:
    """No worker of a round logs anything on a node after one of a newer round has started there."""
    lines = job.lines(node=node)
    for number in {line["round"] for line in lines}:
        last = max(line["at"] for line in lines if line["round"] == number)
        newer = [line["started"] for line in lines if line["round"] > number]
        assert last < min(newer, default=last + 1), f"round {number} on {node}"


# -- agents --------------------------------------------------------------------------------------------------


def test_a_stopped_agent_is_lost_and_ends_its_old_workers_before_it_comes_back(job: Cluster) -> None:
    job.flags = (*job.flags, "--lease-s", str(LEASE_S))
    first = job.start(THREE)
    old = {worker.pid for worker in job.agents["c"].workers()}
    job.agents["c"].send(signal.SIGSTOP)
    second = job.world(3, round_above=first)
    assert f"c lost: no heartbeat for {LEASE_S} s" in job.told("node_lost")
    job.agents["c"].send(signal.SIGCONT)
    third = job.world(4, round_above=second)
    assert not old & job.pids()
    no_overlap(job, "c")
    assert {line["restart"] for line in job.lines(round=third)} == {0}
    assert {line["node"] for line in job.lines(round=third)} == set("abc")
    job.end_well("a", "b", "c")


@pytest.mark.long
def test_a_short_stop_is_no_loss_and_a_second_agent_with_a_node_id_in_use_is_refused(pair: Cluster) -> None:
    """Neither does harm: the same workers go on, in the same round."""
    first = pair.start(PAIR)
    before, rightful = pair.pids(), pair.agents["b"]
    rightful.send(signal.SIGSTOP)
    time.sleep(0.8)  # less than the lease
    rightful.send(signal.SIGCONT)
    pair.progress(first)
    assert pair.pids() == before

    # with snapshots it would wait for ten minutes until the other one, whose memory it is to take over, has ended
    intruder = pair.agent("b", 1, "--snapshot-memory", "off")
    assert intruder.wait(90) == statuses.UNFIT  # it waits for the other one to end, for a while
    assert "node id 'b' of group 'job' belongs to an agent at 127.0.0.1 that is alive" in intruder.stderr
    assert "--node-id" in intruder.stderr
    pair.agents["b"] = rightful
    assert pair.pids() == before
    pair.end_well("a", "b")
    assert pair.group()["round"] == first


# -- the server is away --------------------------------------------------------------------------------------


def test_without_any_server_for_too_long_workers_are_stopped_and_start_again_when_it_is_back(
    pair: Cluster,
) -> None:
    pair.flags = (*pair.flags, "--max-disconnect-s", "1")
    first = pair.start(PAIR)
    pair.server.kill()
    wait_for(lambda: not [pid for name in "ab" for pid in leftovers(name)], "the end of all workers")
    for name in "ab":
        assert pair.agents[name].process.poll() is None
        assert "no server has answered for 1 s (max_disconnect_s)" in pair.agents[name].stderr
    pair.server.start()
    second = pair.world(3, round_above=first)
    assert {line["restart"] for line in pair.lines(round=second)} == {0}
    pair.end_well("a", "b")


def test_a_failure_while_the_server_is_away_is_judged_when_it_is_back(pair: Cluster) -> None:
    first = pair.start(PAIR)
    pair.server.kill()
    pair.agents["b"].workers()[0].kill()
    wait_for(lambda: "rank 2 on b was killed by SIGKILL" in pair.agents["b"].stderr, "b's notice")
    pair.server.start()
    second = pair.world(3, round_above=first)
    assert {line["restart"] for line in pair.lines(round=second)} == {1}
    assert "rank 2 on b was killed by SIGKILL" in pair.told("restart_spent")[0]
    pair.end_well("a", "b")


# -- workers and their SIGTERM -------------------------------------------------------------------------------


def test_a_preempted_node_has_its_grace_and_the_others_are_told_why(job: Cluster) -> None:
    first = job.start(THREE, do="checkpoint@2")
    job.agents["b"].send(signal.SIGTERM)
    assert job.agents["b"].wait() == 128 + signal.SIGTERM
    saved_at = float((job.log.folder / "saved").read_text())
    second = job.world(3, round_above=first)
    assert min(line["started"] for line in job.lines(round=second)) > saved_at
    assert {line["restart"] for line in job.lines(round=second)} == {0}
    for name in "ac":
        assert f"round {first} is over: b is leaving: SIGTERM" in job.agents[name].stderr
    kinds = [event["reason"]["code"] for event in job.events()]
    assert kinds.index("node_leaving") < kinds.index("round_ended") < kinds.index("node_left")
    job.end_well("a", "c")


def test_workers_that_sit_in_a_collective_are_killed_after_the_grace_and_hold_nobody_up_before(
    pair: Cluster,
) -> None:
    pair.flags = (*pair.flags, "--stop-timeout-s", "3")
    first = pair.start({"a": 1, "b": 2}, do="deadlock")
    stuck = {worker.pid for worker in pair.agents["b"].workers()}
    for pid in stuck:
        wait_for((pair.log.folder / f"deadlocked.{pid}").exists, "the deadlock of b")
        wait_for(lambda: stands_still(pid), "the end of its Python code")  # noqa: B023
    pair.agents["a"].workers()[0].kill()
    wait_for(lambda: "workers of b have to stop" in pair.group()["reason"]["message"], "a's stop")
    assert len(pair.agents["b"].workers()) == 2
    assert not leftovers("a")
    pair.world(3, round_above=first)
    assert (
        f"round {first}: workers are still running 3 s after SIGTERM; killing them" in pair.agents["b"].stderr
    )
    assert not (pair.log.folder / "saved").exists(), "the handler ran, so this tests nothing"
    pair.end_well("a", "b")


# -- disks ---------------------------------------------------------------------------------------------------


def test_a_full_disk_under_the_state_loses_nothing(pair: Cluster, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        pair.server.stop()
        pair.server.store = f"sqlite:{disk / 'state.db'}"
        pair.server.start()
        first = pair.start(PAIR)
        filler = fill(disk)
        pair.agents["b"].workers()[0].kill()
        wait_for(lambda: "disk is full" in pair.agents["b"].stderr, "b's notice of what the server says")
        # a commit that fails has the server reload its state, and meanwhile it answers 503
        shown = pair.wait_for(pair.group, "the group while the disk is full")
        assert shown["state"] in ("running", "starting")
        filler.unlink()
        second = pair.world(3, round_above=first)
        assert {line["restart"] for line in pair.lines(round=second)} == {1}
        assert "rank 2 on b was killed by SIGKILL" in pair.told("restart_spent")[0]
        pair.end_well("a", "b")
        pair.server.stop()


# -- clocks --------------------------------------------------------------------------------------------------


def test_clocks_set_back_and_forward_by_an_hour_change_nothing(
    job: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.flags = (*job.flags, "--lease-s", str(LEASE_S))
    clock = tmp_path / "clock"
    monkeypatch.setenv("TEST_CLOCK_OFFSET", str(clock))
    job.server.stop()
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SKEWED))
        job.server.start()
        job.agent("a", 2)
        job.agent("b", 1)
    job.agent("c", 1)  # its clock is always right
    first = job.world(4)
    before = job.pids()
    for offset_s in ("3600", "-3600"):
        clock.write_text(offset_s)
        time.sleep(LEASE_S + 0.5)
        job.progress(first)
        assert {node["state"] for node in job.group()["nodes"]} == {"running"}, job.report()
    assert job.pids() == before
    assert job.group()["round"] == first
    job.agents["b"].workers()[0].kill()
    second = job.world(4, round_above=first)
    assert {line["restart"] for line in job.lines(round=second)} == {1}
    written = [event["at"] for event in job.events()]
    assert written != sorted(written), "the server's clock was not set back, so this tests nothing"
    job.end_well("a", "b", "c")
