"""A network that is cut between two workers only: nobody is behind, and nothing completes."""

from pathlib import Path

import pytest

from tests.netns.cluster import HostCluster
from tests.netns.hosts import Hosts

STEPS = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
data = torch.ones(10)
for step in range(10_000):
    time.sleep(0.02)
    dist.all_reduce(data)
    if os.path.exists(os.environ["STOP"]):
        break
"""


@pytest.mark.long
def test_a_network_that_is_cut_between_two_workers_is_told_from_a_worker_that_hangs(
    tmp_path: Path, net: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    monkeypatch.setenv("STOP", str(tmp_path / "stop"))
    lan = net.switch("lan")
    hosts = [lan.host(name) for name in ("server", "a", "b", "c")]
    flags = ("--nnodes", "3", "--hang-timeout-s", "5", "--stop-timeout-s", "3")
    with HostCluster(tmp_path, hosts, *flags) as job:
        for name in "abc":
            job.agent(name, 1, script=str(script))

        def steps() -> bool:
            current = job.group().get("current_round") or {}
            known = [one["collectives"] or 0 for one in current.get("workers", ())]
            return len(known) == 3 and min(known) > 20

        job.wait_for(steps, "collectives of all workers")
        lan.cut("b", "c")
        (ended,) = job.wait_for(lambda: job.told("round_ended"), "the end of the round")
        assert "which does not complete although nobody is behind" in ended, job.report()
        lan.heal()
        job.wait_for(lambda: job.group()["round"] > 1 and steps(), "another round")
