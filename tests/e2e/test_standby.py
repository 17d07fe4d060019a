"""Restarts with standbys, end to end."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster, leftovers, wait_for

MODULE = "decimal"
"""What standbys import here: something that takes no time, and that the workload does not import."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One agent may form a world; its scratch files lie in a folder of this test."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    killed_often = ("--max-restarts", "30", "--restart-wait-s", "0")
    with cluster(tmp_path, "--nnodes", "1", "--stop-timeout-s", "5", *killed_often) as made:
        made.light = True
        yield made


def pids(job: Cluster, number: int) -> set[int]:
    """Of the workers of a round."""
    return {line["pid"] for line in job.lines(round=number)}


def kill_one(job: Cluster, number: int) -> int:
    """Kill a worker; returns the number of the next round, once that has all-reduced."""
    os.kill(min(pids(job, number)), 9)
    return job.world(2, round_above=number)


def test_each_next_world_is_made_of_standbys(job: Cluster, tmp_path: Path) -> None:
    agent = job.agent("a", 2, "--preload", MODULE)
    number = job.world(2)
    for restart in (1, 2):
        ready = job.standbys(2)
        number = kill_one(job, number)
        assert pids(job, number) == ready, job.report()
        assert {line["restart"] for line in job.lines(round=number)} == {restart}
    for pid in job.standbys(2):  # that they die costs nothing
        os.kill(pid, 9)
    job.progress(number)
    number = kill_one(job, number)
    assert {line["restart"] for line in job.lines(round=number)} == {3}
    job.end_well("a")
    assert leftovers("a") == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert "standby" not in agent.stderr, agent.stderr


def test_a_killed_agent_leaves_no_standby(job: Cluster) -> None:
    agent = job.agent("a", 2, "--preload", MODULE)
    job.world(2)
    job.standbys(2)
    agent.process.kill()
    wait_for(lambda: not leftovers("a"), "the end of all")
