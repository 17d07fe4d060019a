"""Workers of which nothing can be seen: that ends no job and no round, and it is said."""

import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster

pytestmark = pytest.mark.slow

SAVES = """
import os, sys
from pathlib import Path
import torch, torch.distributed as dist

dist.init_process_group("gloo")
saved = Path(__file__).with_name("saved")
begin = int(saved.read_text()) if saved.exists() else 0
data = torch.ones(10)
for step in range(begin, begin + 300):
    dist.all_reduce(data)
dist.barrier()
if dist.get_rank() == 0:
    saved.write_text(str(begin + 300))
dist.barrier()
dist.destroy_process_group()
sys.exit(3 if begin < 900 else 0)
"""
"""Saves steps 300, 600 and 900, and fails each time."""


def start(job: Cluster, script: Path, env: dict[str, str]) -> None:
    """An agent with two workers."""
    own = ["--gpus", "2", "--device", "cpu", "--server", job.server.url, "--group", "job", "--node-id", "a"]
    job.run("a", [sys.executable, "-m", "hetagent.cli", *own, *job.flags, str(script)], env)


@pytest.mark.long
def test_a_job_that_goes_on_unseen_is_no_crash_loop(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SAVES)
    with cluster(tmp_path, "--nnodes", "1", "--max-restarts", "5", "--restart-wait-s", "0") as job:
        start(job, script, {"TORCH_FR_BUFFER_SIZE": "0"})
        assert job.agents["a"].wait() == 0, job.report()
        assert (tmp_path / "saved").read_text() == "1200"
