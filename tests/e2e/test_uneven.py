"""examples/uneven under real agents: it trains as one process does, though a node is lost in the middle of an epoch.

Without weights the shares follow the time that workers need, also after a restart.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster
from tests.support.servers import ROOT

TRAIN = ROOT / "examples" / "uneven" / "train.py"
STEPS_PER_EPOCH = 21
EPOCHS = 2
START_S = 120.0


def losses(file: Path) -> dict[int, float]:
    """The loss of each step; of one that was made again after a restart, the last."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    return {line["step"]: line["loss"] for line in told}


def agent(job: Cluster, name: str, slots: int, weight: float, *options: str) -> None:
    """A node whose workers are slow enough for something to happen meanwhile."""
    words = ["--epochs", str(EPOCHS), "--save-every", "4", *options]
    words += ["--losses", str(job.folder / "losses"), "--checkpoint", str(job.folder / "c.pt")]
    job.agent(name, slots, "--weight", str(weight), script=str(TRAIN), args=words)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_losses_stay_those_of_one_process_when_a_node_is_lost(tmp_path: Path) -> None:
    """Four ranks with weights 1, 1, 0.5 and 0.25; from the middle of the first epoch on, three of them."""
    alone = tmp_path / "alone"
    command = [sys.executable, str(TRAIN), "--epochs", str(EPOCHS), "--losses", str(alone)]
    place = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    subprocess.run(command, env=os.environ | place, check=True, stdin=subprocess.DEVNULL, timeout=START_S)

    flags = ("--nnodes", "2:3", "--last-call-s", "30", "--stop-timeout-s", "5")
    with cluster(tmp_path, *flags) as job:
        shared = tmp_path / "losses"
        for name, slots, weight in (("a", 2, 1.0), ("b", 1, 0.5), ("c", 1, 0.25)):
            agent(job, name, slots, weight, "--speeds", "0.1", "--memory", "20")
        job.wait_for(lambda: len(losses(shared)) > STEPS_PER_EPOCH // 2, "half an epoch", START_S)
        job.agents["c"].process.kill()
        assert {job.agents[name].wait(START_S) for name in "ab"} == {0}, job.report()
        said = "".join(job.agents[name].stderr for name in "ab")
    assert "world size 4, step 0, weights (1.0, 1.0, 0.5, 0.25)" in said
    assert ", weights (1.0, 1.0, 0.5)" in said
    assert "world size 3, step 0" not in said, "it goes on from a checkpoint"
    right = losses(alone)
    assert len(right) == EPOCHS * STEPS_PER_EPOCH
    assert losses(shared) == pytest.approx(right, abs=1e-4)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_shares_follow_the_time_of_the_workers_and_stay_after_a_restart(tmp_path: Path) -> None:
    words = ["--epochs", "1000", "--samples", "960", "--checkpoint", str(tmp_path / "c.pt"), "--speeds"]
    with cluster(tmp_path, "--nnodes", "2", "--stop-timeout-s", "5", "--preload", "none") as job:
        job.agent("fast", 1, script=str(TRAIN), args=[*words, "0.4"])
        job.agent("slow", 1, script=str(TRAIN), args=[*words, "0.1"])

        def said(what: str) -> list[list[int]]:
            lines = "".join(agent.stderr for agent in job.agents.values())
            return [
                json.loads(found) for found in re.findall(rf"batches of (\[.*\]) instead of .*{what}", lines)
            ]

        def is_uneven(batches: list[list[int]]) -> bool:
            return bool(batches) and max(batches[-1]) > 1.5 * min(batches[-1])

        job.wait_for(lambda: is_uneven(said("own time")), "shares by the workers' own time", START_S)
        job.post("restart")
        job.wait_for(lambda: is_uneven(said("in the round before")), "the same shares", START_S)
        job.post("cancel")
