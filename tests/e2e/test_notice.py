"""Planned stops with `--notice-s`: workers save before, so no step is made twice."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster


def steps_lost(job: Cluster, first: int, second: int) -> int:
    """How many steps of a round the next one made again."""
    made = [line["made"] for line in job.lines(round=first)]
    again = [line["made"] for line in job.lines(round=second)]
    return int(max(made) - min(again) + 1)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Cluster]:
    """Nodes whose workers save when they are told that their round is about to end, and never else."""
    flags = ("--nnodes", "1:3", "--last-call-s", "1", "--stop-timeout-s", "5", "--notice-s", "50")
    with cluster(tmp_path, *flags) as made:
        made.light = made.notice = True
        yield made


@pytest.mark.long
def test_a_joiner_a_restart_and_a_drain_cost_no_step(job: Cluster) -> None:
    rounds = [job.start({"a": 2})]
    job.agent("b", 1)
    rounds.append(job.world(3, round_above=rounds[-1]))
    job.post("restart")
    rounds.append(job.world(3, round_above=rounds[-1]))
    job.post("nodes/b/drain")
    rounds.append(job.world(2, round_above=rounds[-1]))
    assert job.agents["b"].wait() == 4
    assert [steps_lost(job, *pair) for pair in pairwise(rounds)] == [0, 0, 0]
    assert [text.partition(" (")[2].partition("):")[0] for text in job.told("stop_announced")] == [
        "b joined",
        "a restart was requested",
        "b is leaving: drained",
    ]
    assert len(job.told("ready_to_stop")) == 3
    assert "round 1 is about to end (b joined): the workers have 50 s to save" in job.agents["a"].stderr
    job.end_well("a")
    assert job.group()["restarts"] == 0
