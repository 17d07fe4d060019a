"""A job on uneven nodes whose workers are killed again and again, with the torch that is installed."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import PAIR, cluster
from tests.support.needs import needs_set_up, show
from tests.support.servers import ROOT

KILLS = 10


@pytest.mark.gloo
@pytest.mark.timeout(900)
@pytest.mark.parametrize("preload", ["none", "torch"], ids=["cold", "standbys"])
def test_every_kill_is_recovered_from(tmp_path: Path, preload: str) -> None:
    needs_set_up("torch")
    rng, size, recovered = random.Random(1), sum(PAIR.values()), 0
    flags = ("--nnodes", "2", "--max-restarts", "30", "--stop-timeout-s", "5", "--preload", preload)
    with cluster(tmp_path, *flags) as job:
        number = job.start(PAIR)
        for kill in range(KILLS):
            if preload != "none":
                for name, slots in PAIR.items():
                    agent = job.agents[name]
                    job.wait_for(lambda agent=agent, n=slots: len(agent.standbys()) == n, "standbys")  # type: ignore[misc]
            pid = rng.choice(sorted({line["pid"] for line in job.lines(round=number)}))
            os.kill(pid, 9)
            number = job.world(size, round_above=number)
            restarts = {line["restart"] for line in job.lines(round=number)}
            assert restarts == {kill + 1}, job.report()
            recovered += 1
        job.end_well(*PAIR)
    how = "by standbys" if preload != "none" else "cold"
    show(f"kills: {recovered} of {KILLS} recovered {how}")


def test_an_example_as_it_is_in_the_readme(tmp_path: Path) -> None:
    needs_set_up("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "one = torch.ones(1)\n"
        "dist.all_reduce(one)\n"
        "print('sum', int(one), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    words = [sys.executable, "-m", "hetagent", "--standalone", "--nproc-per-node", "2", str(script)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("sum 2") == 2
