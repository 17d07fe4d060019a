"""Programs of the frameworks around torch, end to end, under hetagent on unlike nodes.

None of these programs knows of us. Their workers run in `.venv-ecosystem`, which has the frameworks. On their output
each rank says, as its framework sees it, who it is; and after every epoch the sum of the ranks + 1 over all ranks (for
W ranks from 0 on that is W(W+1)/2, and no other set of W ranks has it), and the sum of the indices of all examples that
the ranks had been given, each of which one rank should have had once.
"""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from hetagent.standby.keeper import PREFIX, SETTLED_S
from tests.ecosystem import PYTHON, needs_frameworks
from tests.support.cluster import cluster, leftovers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_frameworks]

HERE = Path(__file__).parent
NODES = {"a": 2, "b": 1}
WORLD = 3
RANKS = {"a": {(0, 0), (1, 1)}, "b": {(2, 0)}}
"""Global and local rank of the workers, by node."""
EXAMPLES = 48
EPOCHS = 4
START_S = 180.0
"""Three processes import Transformers, on a machine with two cores that others use too."""


@dataclass(frozen=True)
class Program:
    """One of the scripts beside this file.

    Attributes:
        environment: what its framework takes the job for.
        victim: node and local rank of the worker that is killed.
    """

    script: str
    environment: str
    victim: tuple[str, int]

    def words(self, save_dir: Path, hold: Path) -> list[str]:
        """What stands after the script's name."""
        return ["--save-dir", str(save_dir), "--epochs", str(EPOCHS), "--hold", str(hold)]


PROGRAMS = {
    "lightning trainer": Program("lightning_train.py", "TorchElasticEnvironment", ("b", 0)),
    "accelerate": Program("accelerate_train.py", "MULTI_CPU", ("b", 0)),
    "transformers": Program("trainer_train.py", "MULTI_CPU", ("a", 0)),
    "deepspeed zero-1": Program("deepspeed_train.py", "ZeRO-1", ("a", 1)),
}


def said(output: str, key: str) -> list[dict[str, Any]]:
    """What the ranks said that has a key: `world_size` for who they are, `epoch` for what they did."""
    lines = [json.loads(line) for line in re.findall(r'\{"rank": [^{}]*\}', output)]
    return [line for line in lines if key in line]


def check_rank(line: dict[str, Any], node: str, environment: str) -> None:
    """A rank takes itself for what it is."""
    assert (line["rank"], line["local_rank"]) in RANKS[node], line
    right = {"world_size": WORLD, "local_world_size": NODES[node], "environment": environment}
    assert {key: line[key] for key in right} == right


def check_epochs(lines: Sequence[dict[str, Any]]) -> None:
    """Every epoch had all ranks and every example."""
    right = (WORLD * (WORLD + 1) // 2, EXAMPLES * (EXAMPLES - 1) // 2)
    assert {(line["sum"], line["indices"]) for line in lines} == {right}


@pytest.fixture(autouse=True)
def workers_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in the environment that has the frameworks; nothing there asks the network."""
    monkeypatch.setenv("PYTHON_EXEC", str(PYTHON))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("preload", ["none", "torch", "auto"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_framework_finds_its_ranks_and_trains_on_after_a_kill(
    program: Program, preload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, scratch, hold = tmp_path / "saved", tmp_path / "tmp", tmp_path / "hold"
    saved.mkdir()
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    hold.touch()
    nnodes = ("--nnodes", str(len(NODES)))
    flags = (*nnodes, "--stop-timeout-s", "5", "--hang-timeout-s", "10", "--preload", preload)  # none hangs
    with cluster(tmp_path, *flags) as job:
        for name, slots in NODES.items():
            job.agent(name, slots, script=str(HERE / program.script), args=program.words(saved, hold))

        def outputs() -> str:
            return "".join(agent.stderr for agent in job.agents.values())

        def ended() -> bool:
            return any(agent.process.poll() is not None for agent in job.agents.values())

        def all_ranks_had_two_epochs() -> bool:
            return ended() or len([line for line in said(outputs(), "epoch") if line["epoch"] == 2]) == WORLD

        def all_have_standbys() -> bool:
            standbys = [one for agent in job.agents.values() for one in agent.standbys()]
            notes = scratch.glob(f"{PREFIX}*/*")
            noted_at = max((one.stat().st_mtime for one in notes), default=0.0)
            return ended() or (len(standbys) == WORLD and time.time() - noted_at > 2 * SETTLED_S + 1)

        job.wait_for(all_ranks_had_two_epochs, "two epochs of all ranks", START_S)
        if preload != "none":
            job.wait_for(all_have_standbys, "standbys with all that the workers have imported", START_S)
        assert not ended(), job.report()
        node, local_rank = program.victim
        [victim] = [
            line["pid"]
            for line in said(job.agents[node].stderr, "world_size")
            if line["local_rank"] == local_rank
        ]
        before = len(said(outputs(), "world_size"))
        psutil.Process(victim).kill()
        hold.unlink()
        job.wait_for(lambda: len(said(outputs(), "world_size")) == before + WORLD, "the next world", START_S)
        assert [agent.wait(START_S) for agent in job.agents.values()] == [0, 0], job.report()

        group = job.group()
        assert (group["state"], group["round"], group["restarts"]) == ("succeeded", 2, 1), job.report()
        group_ranks = {
            member["node_id"]: member["group_rank"] for member in group["current_round"]["members"]
        }
        for name, agent in job.agents.items():
            lives = said(agent.stderr, "world_size")
            half = len(lives) // 2
            for life in (lives[:half], lives[half:]):
                assert {(line["rank"], line["local_rank"]) for line in life} == RANKS[name], agent.stderr
            for line in lives:
                check_rank(line, name, program.environment)
                assert line["node"] == group_ranks[name]
            assert [line["done"] for line in lives] == [0] * half + [2] * half, "the restart goes on"
            epochs = said(agent.stderr, "epoch")
            check_epochs(epochs)
            assert len(epochs) == NODES[name] * EPOCHS
            assert leftovers(name) == []


ALONE = {
    "said": ("lightning_train.py", (), "the job succeeded, but ", 0),
    "required": ("lightning_train.py", ("--require-rendezvous",), "root cause: ", 1),
    # it calls init_process_group, then takes itself for the only process all the same
    "met, and yet alone": ("accelerate_train.py", ("--require-rendezvous",), None, 0),
}
"""A script, flags of hetagent, what is said of it if processes that never met are noticed, and its status."""


@pytest.mark.parametrize(("script", "flags", "outcome", "status"), ALONE.values(), ids=ALONE.keys())
def test_processes_of_a_framework_that_run_alone(
    script: str, flags: tuple[str, ...], outcome: str | None, status: int, tmp_path: Path
) -> None:
    """A plain `Trainer()` on CPUs, and `Accelerator()` without cpu=True: each process is its own rank 0 of 1."""
    words = ["--save-dir", str(tmp_path / "saved"), "--epochs", "1", "--plain"]
    with cluster(tmp_path, "--nnodes", str(len(NODES)), "--preload", "none", *flags) as job:
        for name, slots in NODES.items():
            job.agent(name, slots, script=str(HERE / script), args=words)
        statuses = {name: agent.wait(START_S) for name, agent in job.agents.items()}
        assert set(statuses.values()) == {status}, job.report()
        never_met = f"{outcome}only 0 of 3 workers connected: the others may have trained alone"
        for name, agent in job.agents.items():
            worlds = [(line["rank"], line["world_size"]) for line in said(agent.stderr, "world_size")]
            assert worlds == [(0, 1)] * NODES[name], job.report()
            assert (never_met in agent.stderr) == (outcome is not None), job.report()
        assert job.group()["current_round"]["met"] == (WORLD if outcome is None else 0)
