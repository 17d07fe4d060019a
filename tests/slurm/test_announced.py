"""What Slurm does to a job loses no step where its workers ask for notices (docs/notice.md).

`make test-slurm` installs Slurm and runs them.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.evicted import made_by

from tests.slurm.cluster import Slurm
from tests.slurm.test_jobs import SCRIPTS, TOKEN, group_of, needs_slurm, ranks, server, token_file, world
from tests.support.cluster import WORKLOAD
from tests.support.servers import Hetserver
from tests.support.workload.worklog import WorkLog

__all__ = ["server", "token_file"]

pytestmark = [pytest.mark.long, pytest.mark.needs("slurm"), pytest.mark.slow, pytest.mark.timeout(300)]

NEVER = "1000000"
"""Steps between checkpoints: only a notice has workers save."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    needs_slurm()
    with Slurm("pgid") as cluster:
        yield cluster


def test_no_step_is_lost_whatever_slurm_says(
    slurm: Slurm, server: Hetserver, token_file: Path, tmp_path: Path
) -> None:
    """The warning to all agents, one to the script alone, preemption, and a requeue."""
    log = WorkLog(tmp_path / "work")
    work = [str(WORKLOAD), "--into", str(log.folder), "--checkpoint-every", NEVER, "--notice"]
    job = slurm.submit(
        tmp_path / "job",
        *(
            "--nodes=2",
            "--gpus=3",
            str(SCRIPTS / "requeue.sbatch"),
            "--device",
            "cpu",
            "--grace-s",
            "15",
            *work,
        ),
        HET_SERVER=server.url,
        HET_TOKEN_FILE=str(token_file),
    )
    before = world(job, log)
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
        after = world(job, log, round_above=before.round)
        made = made_by(log, before)
        assert (ranks(after), after.restart) == (first, 0), name
        assert after.resumed_from == made > before.resumed_from, name
        assert job.facts()["Restarts"] == str(times)
        before = after
    assert "got SIGTERM again" not in job.said
    log.finish()
    assert job.until("COMPLETED")["ExitCode"] == "0:0"
    assert group_of(server, job)["restarts"] == 0
    assert TOKEN not in job.said


def test_a_job_that_shrinks_goes_on(
    slurm: Slurm, server: Hetserver, token_file: Path, tmp_path: Path
) -> None:
    """Slurm kills what runs on a node that it takes back, so that node is drained before."""
    log = WorkLog(tmp_path / "work")
    words = ["--nnodes", "1:2", "--notice-s", "30", str(WORKLOAD), "--into", str(log.folder)]
    job = slurm.submit(
        tmp_path / "job",
        *("--nodes=2", "--gpus-per-node=1", str(SCRIPTS / "requeue.sbatch"), "--device", "cpu", *words),
        *("--checkpoint-every", NEVER, "--notice"),
        HET_SERVER=server.url,
        HET_TOKEN_FILE=str(token_file),
        SLURM_WAIT="0",
    )
    before = job.wait_for(lambda: log.world(2), "a world of 2")
    slurm.call("hetctl", "--server", server.url, "--token-file", str(token_file), "drain", job.id, "n2")
    after = job.wait_for(lambda: log.world(1, round_above=before.round), "a world of 1")
    made = made_by(log, before)
    assert after.resumed_from == made
    job.wait_for(lambda: "ended    n2 was drained" in job.said, "the end of the agent on n2")
    slurm.call("scontrol", "update", f"JobId={job.id}", "NumNodes=1")
    time.sleep(2.0)
    assert log.world(1).round == after.round  # type: ignore[union-attr]  # nothing has happened to it
    assert job.facts()["NodeList"] == "n1"
    log.finish()
    job.wait_for(lambda: job.facts()["JobState"] not in ("RUNNING", "COMPLETING"), "the end")
    assert group_of(server, job)["state"] == "succeeded"
