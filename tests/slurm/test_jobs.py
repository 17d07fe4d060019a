"""The scripts of deploy/slurm on a real Slurm with two uneven nodes: n1 has two slots, n2 one. CPU workers train.

`make test-slurm` installs Slurm and runs them.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.test_launch_docs import SLURM, rows
from tests.slurm.cluster import SCRIPTS, TOKEN, Slurm, needs_slurm
from tests.support.cluster import wait_for
from tests.support.servers import ROOT, Hetserver
from tests.support.workload.worklog import World

pytestmark = [pytest.mark.long, pytest.mark.needs("slurm"), pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    needs_slurm()
    with Slurm() as cluster:
        yield cluster


def ranks(seen: World) -> list[tuple[str, int]]:
    """Node and local rank of every rank."""
    return [(line["node"], line["local_rank"]) for line in seen.lines]


def test_a_job_with_its_own_server_on_uneven_nodes(slurm: Slurm, tmp_path: Path) -> None:
    """--gpus counts those of all nodes, whose slots are SLURM_GPUS_ON_NODE; a killed worker: all come back."""
    job = slurm.train(tmp_path, "train.sbatch")
    first = job.world()
    assert ranks(first) == [("n1", 0), ("n1", 1), ("n2", 0)]
    for node, taken in {"n1": "2 CPU workers", "n2": "1 CPU worker"}.items():
        note = f"from Slurm's job step {job.id}.0: group {job.id}, node id {node}, {taken}, 2 nodes"
        assert f"hetagent[{node}]: {note}" in job.said
    token = (tmp_path / "job" / ".hetrdzv" / job.id / "token").read_text()
    assert len(token) == 64

    os.kill(first.lines[2]["pid"], signal.SIGKILL)
    second = job.world(round_above=first.round)
    assert (ranks(second), second.restart) == (ranks(first), 1)
    job.log.finish()
    facts = job.until("COMPLETED")
    assert facts["ExitCode"] == "0:0"
    assert not (tmp_path / "job" / ".hetrdzv" / job.id).exists()
    assert token not in job.said


def test_a_job_that_is_cancelled_does_not_come_back(slurm: Slurm, server: Hetserver, tmp_path: Path) -> None:
    job = slurm.train(tmp_path, "requeue.sbatch", server=server)
    job.world()
    slurm.call("scancel", job.id)
    assert job.until("CANCELLED")["Restarts"] == "0"
    job.wait_for(lambda: "n1" in job.said and not job_processes(slurm), "no process of the job")
    assert job.facts()["JobState"] == "CANCELLED"


def job_processes(slurm: Slurm) -> list[list[str]]:
    """Command lines of what jobs have started: agents, workers, guardians, servers."""
    lines: list[list[str]] = []
    for process in slurm.processes():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if process.ppid() != os.getpid():
                lines.append(process.cmdline())
    return [line for line in lines if any("het" in word or "work" in word for word in line)]


def test_a_heterogeneous_job_is_one_group(slurm: Slurm, server: Hetserver, tmp_path: Path) -> None:
    job = slurm.train(tmp_path, "heterogeneous.sbatch", server=server, nodes=())
    seen = job.world()
    assert ranks(seen) == [("n1", 0), ("n1", 1), ("n2", 0)]
    assert job.group(server)["spec"]["min_nodes"] == 2
    os.kill(seen.lines[2]["pid"], signal.SIGKILL)
    second = job.world(round_above=seen.round)
    assert (ranks(second), second.restart) == (ranks(seen), 1)
    job.log.finish()
    job.until("COMPLETED")


def test_the_command_of_the_docs_runs_in_a_job_step(slurm: Slurm, server: Hetserver, tmp_path: Path) -> None:
    """docs/launch.md, last row, as it stands there; the token comes by the environment."""
    (command,) = [command for what, _, command in rows() if what == SLURM]
    script = "examples/digits/train.py"
    step = command.replace("http://host:29400", f"{server.url} --device cpu")
    step = step.replace(script, str(ROOT / script))
    job = slurm.submit(tmp_path, "--nodes=2", "--gpus=3", f"--wrap={step}", HET_TOKEN=TOKEN)
    job.until("COMPLETED")
    group = job.group(server)
    assert (group["state"], group["world_size"]) == ("succeeded", 3), job.said


def test_several_tasks_on_a_node_end_the_job_at_once(slurm: Slurm, tmp_path: Path) -> None:
    """The job fails with hetagent's own status for wrong use, and its output says what to change."""
    words = ["--nodes=2", "--gpus=3", "--ntasks-per-node=2", str(SCRIPTS / "train.sbatch"), "never.py"]
    job = slurm.submit(tmp_path, *words)
    assert job.until("FAILED")["ExitCode"] == "2:0"
    assert "srun starts 2 tasks on n1, but hetagent needs one: add --ntasks=2 --ntasks" in job.said


def test_nothing_is_left_when_a_job_is_over(slurm: Slurm) -> None:
    """After the tests above: no worker, agent, guardian or server of a job is there any more, or for long."""
    wait_for(lambda: not job_processes(slurm), "the end of what jobs had started", 10.0)
