"""Announced stops: workers save before, so no step is made twice."""

import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.support.cluster import THREE, Cluster, cluster

TRAIN = str(Path(__file__).parents[2] / "examples" / "digits" / "train.py")


def steps_lost(job: Cluster, first: int, second: int) -> int:
    """How many steps of a round the next one made again."""
    made = [line["made"] for line in job.lines(round=first)]
    again = [line["made"] for line in job.lines(round=second)]
    return int(max(made) - min(again) + 1)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Cluster]:
    """Nodes whose workers save when they are told that their round is about to end, and never else."""
    waits = ("--nnodes", "1:3", "--last-call-s", "1", "--stop-timeout-s", "5")
    with cluster(tmp_path, *waits, "--notice-s", "50", "--grace-s", "60") as made:
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


def test_a_node_that_has_to_go_costs_no_step(job: Cluster) -> None:
    """That of rank 0."""
    first = job.start(THREE)
    job.agents["a"].send(signal.SIGTERM)
    second = job.world(2, round_above=first)
    assert job.agents["a"].wait() == 75
    assert steps_lost(job, first, second) == 0
    assert job.told("ready_to_stop")
    job.end_well("b", "c")
    assert job.group()["restarts"] == 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_run_all_of_whose_nodes_go_and_come_back_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    """The ranks train on the same digits in the same order; DDP sums the first gradients in another order."""

    def train(name: str, *, disturbed: bool) -> dict[str, torch.Tensor]:
        folder = tmp_path / name
        args = ("--checkpoint-dir", str(folder / "digits"), "--epochs", "4", "--step-sleep", "0.1")
        folder.mkdir()
        with cluster(folder, "--nnodes", "3", "--grace-s", "60", "--max-restarts", "0") as job:
            agents = [job.agent(node, gpus, script=TRAIN, args=args) for node, gpus in THREE.items()]
            if disturbed:
                job.wait_for(lambda: "epoch  2/4" in agents[0].stderr, "two epochs")
                for agent in agents:
                    agent.send(signal.SIGTERM)
                assert [agent.wait() for agent in agents] == [75] * 3, job.report()
                agents = [job.agent(node, gpus, script=TRAIN, args=args) for node, gpus in THREE.items()]
            assert [agent.wait(300) for agent in agents] == [0] * 3, job.report()
            assert ("saved after step" in job.report()) is disturbed
        model: dict[str, torch.Tensor] = torch.load(folder / "digits" / "checkpoint.pt")["model"]
        return model

    undisturbed, disturbed = train("whole", disturbed=False), train("parts", disturbed=True)
    far = max(float((undisturbed[name] - disturbed[name]).abs().max()) for name in undisturbed)
    assert far < 1e-4, far
