"""examples/uneven under real agents: it trains as one process does, though a node is lost in the middle of an epoch."""

import json
import os
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
