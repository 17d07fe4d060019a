"""A job that hangs, with real workers: who is waited for, where in the code, and how it goes on."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import PAIR, Cluster, cluster

pytestmark = pytest.mark.slow

SLEEPER = """
import os, time
if os.environ["HET_ROUND"] != "1":
    raise SystemExit  # the job has gone on, and torch takes seconds to import
import torch, torch.distributed as dist
dist.init_process_group("gloo")
data = torch.ones(10)
for step in range(20):
    if step == 10 and dist.get_rank() == 1:
        time.sleep(3600)  # the sleeper
    dist.all_reduce(data)
dist.destroy_process_group()
"""
LINE = next(n for n, line in enumerate(SLEEPER.splitlines(), 1) if "the sleeper" in line)
HERE = f"line {LINE} in <module>"


def stacks(job: Cluster) -> dict[int, str]:
    """The stacks of a round's workers that can be had now, by rank."""
    reply = job.ask("POST", "/stacks")
    found: list[dict[str, Any]] = reply.json().get("workers", [])
    return {one["rank"]: one["text"] for one in found if one["text"]}


def test_the_worker_that_is_waited_for_is_blamed_with_its_stack_and_the_job_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLEEPER)
    with cluster(tmp_path, "--nnodes", "2", "--hang-timeout-s", "12", "--stop-timeout-s", "5") as job:
        for name, slots in PAIR.items():
            job.agent(name, slots, script=str(script))

        where = job.wait_for(
            lambda: (
                (found := stacks(job))
                and HERE in found.get(1, "")
                and "all_reduce" in found.get(2, "")
                and found
            ),
            "stacks",
        )
        assert "all_reduce" in where[0], where

        assert {name: agent.wait() for name, agent in job.agents.items()} == {"a": 0, "b": 0}, job.report()
        (ended,) = job.told("round_ended")
        assert re.search(
            r"ranks 0 and 2 have waited \d+ s for rank 1 \(a\), which is at collective 10 of 11", ended
        )
        assert len(job.told("stalled")) == 1
        kept = stacks(job)  # of a job that is over
        assert (HERE in kept[1], "all_reduce" in kept[0], "all_reduce" in kept[2]) == (True,) * 3, kept
        for agent in job.agents.values():
            assert ended.partition(": ")[2] in agent.stderr, job.report()
