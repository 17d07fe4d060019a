"""What Slurm does to a job loses no step where its workers ask for notices (docs/notice.md).

`make test-slurm` installs Slurm and runs them.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.evicted import made_by

from tests.slurm.cluster import TOKEN, Slurm, needs_slurm
from tests.slurm.test_jobs import ranks
from tests.support.cluster import WORKLOAD
from tests.support.servers import Hetserver

pytestmark = [pytest.mark.long, pytest.mark.needs("slurm"), pytest.mark.slow, pytest.mark.timeout(300)]

WORK = (WORKLOAD, "--checkpoint-every", "1000000", "--notice")
"""Only a notice has workers save."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    needs_slurm()
    with Slurm("pgid") as cluster:
        yield cluster


def test_no_step_is_lost_whatever_slurm_says(slurm: Slurm, server: Hetserver, tmp_path: Path) -> None:
    """The warning to all agents, one to the script alone, preemption, and a requeue."""
    job = slurm.train(tmp_path, "requeue.sbatch", "--grace-s", "15", server=server, work=WORK)
    before = job.world()
    first = ranks(before)

    def preempt() -> None:
        urgent = ("--partition=urgent", "--nodes=2", "--exclusive", "--wrap=true")
        slurm.submit(tmp_path / "urgent", *urgent).until("COMPLETED")

    acts = {
        "scancel --signal=USR1": lambda: slurm.call("scancel", "--signal=USR1", job.id),
        "scancel --batch --signal=TERM": lambda: slurm.call("scancel", "--batch", "--signal=TERM", job.id),
        "preempted": preempt,
        "scontrol requeue": lambda: slurm.call("scontrol", "requeue", job.id),
    }
    for times, (name, act) in enumerate(acts.items(), start=1):
        time.sleep(2.0)  # some steps to lose
        act()
        after = job.world(round_above=before.round)
        made = made_by(job.log, before)
        assert (ranks(after), after.restart) == (first, 0), name
        assert after.resumed_from == made > before.resumed_from, name
        assert job.facts()["Restarts"] == str(times)
        before = after
    assert "got SIGTERM again" not in job.said
    job.log.finish()
    assert job.until("COMPLETED")["ExitCode"] == "0:0"
    group = job.group(server)
    assert (group["state"], group["restarts"], group["spec"]["min_nodes"]) == ("succeeded", 0, 2)
    assert "guardian died" not in job.said
    assert TOKEN not in job.said


def test_a_job_that_shrinks_goes_on(slurm: Slurm, server: Hetserver, tmp_path: Path) -> None:
    """Slurm kills what runs on a node that it takes back, so that node is drained before."""
    flags, nodes = ("--nnodes", "1:2", "--notice-s", "30"), ("--nodes=2", "--gpus-per-node=1")
    job = slurm.train(
        tmp_path, "requeue.sbatch", *flags, server=server, nodes=nodes, work=WORK, SLURM_WAIT="0"
    )
    before = job.world(2)
    slurm.call(
        "hetctl", "--server", server.url, "--token-file", str(server.token_file), "drain", job.id, "n2"
    )
    after = job.world(1, round_above=before.round)
    made = made_by(job.log, before)
    assert after.resumed_from == made
    job.wait_for(lambda: "ended    n2 was drained" in job.said, "the end of the agent on n2")
    slurm.call("scontrol", "update", f"JobId={job.id}", "NumNodes=1")
    time.sleep(2.0)
    assert job.world(1).round == after.round  # nothing has happened to it
    assert job.facts()["NodeList"] == "n1"
    job.log.finish()
    job.wait_for(lambda: job.facts()["JobState"] not in ("RUNNING", "COMPLETING"), "the end")
    assert job.group(server)["state"] == "succeeded"
