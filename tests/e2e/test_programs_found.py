"""What the docs say about HetSeq and fairseq, with programs that behave as the real ones do (tests/support/programs).

The commands are those of docs/launch.md, with the stand-in instead of the program.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.e2e.test_launch_styles import kill_one, seen, sums
from tests.support.cluster import Cluster, cluster
from tests.support.programs import fairseq
from tests.support.servers import ROOT

PROGRAMS = ROOT / "tests" / "support" / "programs"
PAGE = (ROOT / "docs" / "launch.md").read_text(encoding="utf-8").replace("\n", " ")
GPUS = {"a": 2, "b": 1}
WORLD = 3
EPOCHS = 4
WAIT_S = 100.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * WAIT_S)]


def documented(beginning: str, program: str) -> list[str]:
    """The words after `program` of the one command in docs/launch.md that begins so."""
    (command,) = set(re.findall(rf"`({re.escape(beginning)} {re.escape(program)} [^`]*)`", PAGE))
    return shlex.split(command)


def start(job: Cluster, command: list[str], program: str, stand_in: list[str], *more: str) -> None:
    """Start a command on both nodes, which have `GPUS` or think so, with the stand-in for a program and its data."""
    path = job.folder / "program"
    path.write_text(f'#!/bin/sh\nshift\nexec {shlex.join([sys.executable, *stand_in])} "$@"\n')
    path.chmod(0o755)
    at = command.index(program)
    data = command[at + 1]
    assert not data.startswith("-"), "where the data is"
    for name, gpus in GPUS.items():
        words = [*command[:at], str(path), *command[at + 1 :], *more, "--save-dir", str(job.folder / "saved")]
        agent = [sys.executable, "-m", "hetagent.cli.main", "--nproc-per-node", str(gpus), "--group", "job"]
        own = ["--server", job.server.url, "--node-id", name, "--stop-timeout-s", "5", "--nnodes", "2"]
        visible = ",".join(map(str, range(gpus)))
        job.run(name, [*agent, *own, *words], {"CUDA_VISIBLE_DEVICES": visible, "OMP_NUM_THREADS": "1"})


def output(job: Cluster) -> str:
    return "".join(agent.stderr for agent in job.agents.values())


def statuses(job: Cluster) -> dict[str, int]:
    return {name: agent.wait(WAIT_S) for name, agent in job.agents.items()}


PER_GPU = ("--no-python", "fairseq-train")
PER_NODE = ("--launch node --no-python", "fairseq-train")


@pytest.mark.parametrize("version", fairseq.VERSIONS)
@pytest.mark.parametrize("how", [PER_GPU, PER_NODE], ids=["per GPU", "per node"])
@pytest.mark.long
def test_the_documented_command_of_fairseq(version: str, how: tuple[str, str], tmp_path: Path) -> None:
    command = documented(*how)
    with cluster(tmp_path) as job:
        start(job, command, how[1], [str(PROGRAMS / "fairseq.py"), version], "--max-epoch", str(EPOCHS))
        assert statuses(job) == {"a": 0, "b": 0}, job.report()
        ranks = {name: {(r, w, d) for r, w, d, _ in seen(job.agents[name].stderr)} for name in GPUS}
        assert ranks == {"a": {(0, WORLD, 0), (1, WORLD, 1)}, "b": {(2, WORLD, 0)}}, job.report()
        assert sums(output(job)) == {rank: [6] * EPOCHS for rank in range(WORLD)}
    print(f"fairseq {version}, slots {GPUS}: $ hetagent ... {shlex.join(command)}")


ISOLATED = {
    "head": (0, "the job succeeded, but ranks 0 to 2 never met: each may have trained alone"),
    "0.12.2": (1, "RuntimeError: CUDA error: invalid device ordinal (GPU 1 of 1)"),
}
"""What becomes of each version where each process sees its own GPU only: status, and what is said."""


@pytest.mark.long
@pytest.mark.parametrize("version", ISOLATED)
def test_isolated_gpus_are_not_for_fairseq(version: str, tmp_path: Path) -> None:
    status, said = ISOLATED[version]
    command = ["--isolate-gpus", "--max-restarts", "0", *PER_GPU, "DATA"]
    with cluster(tmp_path) as job:
        start(job, command, PER_GPU[1], [str(PROGRAMS / "fairseq.py"), version], "--max-epoch", "1")
        assert set(statuses(job).values()) == {status}, job.report()
        assert said in output(job), job.report()


HETSEQ = ("--launch node", "hetseq/train.py")


@pytest.mark.long
def test_hetseq_begins_anew_since_it_cannot_resume(tmp_path: Path) -> None:
    command = documented(*HETSEQ)
    at = command.index(HETSEQ[1])
    command[at : at + 1] = ["--no-python", HETSEQ[1], "DATA"]
    rest = ("--max-epoch", "10", "--epoch-sleep", "1e-{restart_count}")
    with cluster(tmp_path) as job:
        start(job, ["--max-restarts", "1", *command], HETSEQ[1], [str(PROGRAMS / "hetseq.py")], *rest)
        kill_one(job, "child")
        assert statuses(job) == {"a": 0, "b": 0}, job.report()
        assert [done for *_, done in seen(output(job))] == [0] * 2 * WORLD, "it began anew"
        assert (job.folder / "saved" / "checkpoint_last.pt").exists()
