"""Runs each command of docs/launch.md's last column as it stands there, on two nodes with different GPU counts."""

import itertools
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster

PAGE = Path(__file__).parents[2] / "docs" / "launch.md"
SLURM, TORCHRUN = "Slurm", "torchrun itself"
"""Rows whose last column is not just a hetagent command; the Slurm one runs in tests/slurm."""


def rows() -> Iterator[tuple[str, str, str]]:
    """For each row: what it is about, which nodes it is for, and the command in the last column."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = line.strip("|").split(" | ")
        if len(cells) == 4 and (command := re.match(r"\s*`([^`]+)`", cells[3])):
            yield cells[0].strip(), cells[1].strip(), command[1]


ROWS = list(rows())
NEEDS = {"Horovod": pytest.mark.needs("horovod"), "Open MPI": pytest.mark.needs("open-mpi")}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as made:
        yield made


def test_the_rows_are_found() -> None:
    assert len(ROWS) >= 11
    assert {what for what, _, _ in ROWS} > {SLURM, TORCHRUN}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "nodes", "command"),
    [
        pytest.param(*row, id=row[0].replace(" ", "-"), marks=NEEDS.get(row[0], ()))
        for row in ROWS
        if row[0] not in (SLURM, TORCHRUN)
    ],
)
def test_the_command_runs_on_two_nodes(what: str, nodes: str, command: str, job: Cluster) -> None:
    if what == "Horovod" and find_spec("horovod") is None:
        pytest.skip("there is no Horovod: make horovod")
    if what == "Open MPI" and (shutil.which("mpirun") is None or find_spec("mpi4py") is None):
        pytest.skip("there is no Open MPI: make open-mpi")
    slots = {"a": 2, "b": 1} if nodes == "any" else {"a": 1, "b": 1}
    program, *words = shlex.split(command.replace("/shared", str(job.folder)))
    assert program == "hetagent"
    flags = dict(itertools.pairwise(words))
    given = [flags["--gpus"], flags["--server"]]
    assert given == ["2", "http://host:29400"], "the test replaces these two"
    for flag in ("--gpus", "--server"):
        del words[words.index(flag) : words.index(flag) + 2]
    script = next(word for word in words if word.startswith("examples/"))
    own, args = words[: words.index(script)], words[words.index(script) + 1 :]
    for name, gpus in slots.items():
        job.agent(name, gpus, *own, script=str(PAGE.parents[1] / script), args=args)
    assert {name: job.agents[name].wait(110) for name in slots} == {"a": 0, "b": 0}, job.report()
    group = job.group()
    assert group["state"] == "succeeded"
    world_size = sum(slots.values())
    assert group["world_size"] == world_size
    sums = re.findall(r"epoch \d+/\d+, sum (\d+)", "".join(agent.stderr for agent in job.agents.values()))
    assert set(sums) <= {str(world_size * (world_size + 1) // 2)}, "the ranks met"
    assert sums or "env_style" not in command
    # restarts are not checked: torch 2.13 may abort a process that ends after DDP on gloo (its threads live on)


@pytest.mark.long
@pytest.mark.slow
def test_torchruns_command_runs_on_two_nodes(job: Cluster) -> None:
    (command,) = [command for what, _, command in ROWS if what == TORCHRUN]
    for name, slots in {"a": 2, "b": 1}.items():
        words = shlex.split(command.replace("host:29400", job.server.url.removeprefix("http://")))
        assert words[0] == "torchrun"
        words[words.index("--nproc-per-node") + 1] = str(slots)
        at = next(index for index, word in enumerate(words) if word.startswith("examples/"))
        words[at:at] = [  # two nodes on one host; and see above
            *("--rdzv-conf", f"node_id={name}", "--max-restarts", "3"),
        ]
        words[words.index("examples/digits/train.py")] = str(
            PAGE.parents[1] / "examples" / "digits" / "train.py"
        )
        job.run(name, [sys.executable, "-m", "torch.distributed.run", *words[1:]], {"OMP_NUM_THREADS": "1"})
    assert {name: job.agents[name].wait(110) for name in "ab"} == {"a": 0, "b": 0}, job.report()
    group = job.group()
    assert (group["state"], group["world_size"]) == ("succeeded", 3), job.report()
