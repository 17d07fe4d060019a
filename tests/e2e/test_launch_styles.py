"""The ways people start training, end to end: the unchanged programs of examples/ as real jobs on uneven nodes.

None of these programs knows about us. They print their rank, and after every epoch the sum of rank + 1 over all ranks:
for W ranks counted from 0 that is W(W+1)/2, which no other set of W ranks gives.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import Agent, Cluster, cluster, leftovers, wait_for
from tests.support.servers import ROOT

HETSEQ = ROOT / "examples" / "hetseq_style" / "train.py"
MP_SPAWN = ROOT / "examples" / "mp_spawn_ddp" / "mnist.py"
ENV = ROOT / "examples" / "env_style" / "train.py"

EPOCHS = 10
WAIT_S = 100.0
"""Each rank imports torch at each start, and so does the program that spawns it, which a busy machine does slowly."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * WAIT_S + 40)]

STARTED = re.compile(
    r"rank (\d+) of (\d+): local index (\d+), device cpu, (\d+) epochs done before$", re.MULTILINE
)
EPOCH = re.compile(r"rank (\d+): epoch (\d+)/\d+, sum (\d+), ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a program is started.

    Attributes:
        script, args: what a person types, with placeholders.
        flags: hetagent's.
        nodes: slots by name.
        ranks: the expected result: the program's own (rank, local index), by node.
        epochs_flag: the program's flag for the number of epochs.
        rest: pause after every epoch (seconds): long at first, so that the job still runs when a worker is killed;
            short after the restart.
        victim: what to kill: a child that the program spawned, or a process that hetagent started.
    """

    script: Path
    args: str
    flags: tuple[str, ...] = ("--launch", "node")
    nodes: Mapping[str, int] = field(default_factory=lambda: {"a": 2, "b": 1})
    ranks: Mapping[str, set[tuple[int, int]]] = field(
        default_factory=lambda: {"a": {(0, 0), (1, 1)}, "b": {(2, 0)}}
    )
    epochs_flag: str = "--max-epoch"
    rest: str = "1e-{restart_count}"
    victim: str = "child"

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return sum(self.nodes.values())

    @property
    def right_sum(self) -> int:
        """1 + 2 + ... + the world size."""
        return self.world_size * (self.world_size + 1) // 2

    def words(self, save_dir: Path, epochs: int) -> list[str]:
        """The program's arguments."""
        own = [self.epochs_flag, str(epochs), "--save-dir", str(save_dir), "--epoch-sleep", self.rest]
        return [*self.args.split(), *own]


HETSEQ_ARGS = (
    "--distributed-init-method {init_method:optional} --distributed-world-size {world_size} "
    "--distributed-gpus {gpus} --distributed-rank {rank_offset}"
)
ENV_ARGS = (
    "--distributed-init-method {init_method} --distributed-world-size {world_size} "
    "--distributed-rank {rank_offset} --cpu-workers {gpus}"
)
STYLES = {
    "hetseq over tcp": Style(script=HETSEQ, args=HETSEQ_ARGS),
    "hetseq over a file": Style(
        script=HETSEQ,
        args=HETSEQ_ARGS,
        flags=("--launch", "node", "--init-file", "{folder}"),
        victim="program",
    ),
    "mp.spawn on uneven nodes": Style(
        script=MP_SPAWN,
        args="-g {gpus} --world-size {world_size} --rank-offset {rank_offset}",
        epochs_flag="--epochs",
    ),
    "fairseq that spawns": Style(script=ENV, args=ENV_ARGS),
    # RANK % visible is 0 on CPUs, where each worker acts as if there were one GPU
    "fairseq per GPU": Style(
        script=ENV,
        args="--distributed-world-size 2",
        flags=(),
        ranks={"a": {(0, 0), (1, 0)}, "b": {(2, 0)}},
        rest="0.4",
        victim="program",
    ),
}


def seen(output: str) -> list[tuple[int, int, int, int]]:
    """Rank, world size, local index and epochs done before, as printed by every process, in order."""
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in STARTED.findall(output)]


def sums(output: str) -> dict[int, list[int]]:
    """The results of each rank's all-reduces, epoch by epoch."""
    found: dict[int, list[int]] = {}
    for rank, _, total in EPOCH.findall(output):
        found.setdefault(int(rank), []).append(int(total))
    return found


def victim(agent: Agent, whom: str) -> psutil.Process:
    """The newest process of a node that the program has spawned, or the newest that hetagent has started."""
    found = [
        process
        for process in psutil.Process(agent.pid).children(recursive=True)
        if process.environ().get("HET_NODE_ID") == agent.name
        and ("spawn_main" in " ".join(process.cmdline()) if whom == "child" else process.ppid() == agent.pid)
    ]
    return max(found, key=lambda process: process.pid)


def start(job: Cluster, style: Style) -> None:
    """Start the program on its nodes."""
    for name, slots in style.nodes.items():
        words = style.words(job.folder / "saved", EPOCHS)
        job.agent(name, slots, script=str(style.script), args=words)


def kill_one(job: Cluster, whom: str) -> None:
    """Kill a process of node a once all ranks have finished two epochs."""

    def ended() -> bool:
        return any(agent.process.poll() is not None for agent in job.agents.values())

    def all_ranks_made_two_epochs() -> bool:
        made = [len(of_rank) for agent in job.agents.values() for of_rank in sums(agent.stderr).values()]
        return ended() or (len(made) == 3 and min(made) >= 2)

    try:
        wait_for(all_ranks_made_two_epochs, "two epochs of all ranks", WAIT_S)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{job.report()}") from None
    assert not ended(), job.report()
    victim(job.agents["a"], whom).kill()


def check_output(said: str, style: Style, node: str) -> None:
    """Check that a node's processes had the right ranks after each start, and continued where the last ones ended."""
    ranks, processes = style.ranks[node], seen(said)
    assert len(processes) == 2 * len(ranks), said
    for life in range(2):
        living = processes[life * len(ranks) : (life + 1) * len(ranks)]
        assert {(rank, index) for rank, _, index, _ in living} == ranks, said
        assert {world_size for _, world_size, _, _ in living} == {style.world_size}
        before = {done for *_, done in living}
        assert min(before) >= 2 if life else before == {0}, said
    found = sums(said)
    assert found.keys() == {rank for rank, _ in ranks}, said
    for of_rank in found.values():
        assert set(of_rank) == {style.right_sum}, said
        assert len(of_rank) >= EPOCHS, said


@pytest.mark.long
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES.keys())
def test_a_program_of_this_style_gets_its_ranks_and_survives_a_kill(style: Style, tmp_path: Path) -> None:
    flags = [flag.format(folder=tmp_path) for flag in style.flags]
    with cluster(tmp_path, "--nnodes", str(len(style.nodes)), "--stop-timeout-s", "5", *flags) as job:
        start(job, style)
        kill_one(job, style.victim)
        statuses = {name: agent.wait(WAIT_S) for name, agent in job.agents.items()}
        assert statuses == {"a": 0, "b": 0}, job.report()
        group = job.group()
        assert (group["state"], group["restarts"]) == ("succeeded", 1), job.report()
        for name, agent in job.agents.items():
            check_output(agent.stderr, style, name)
            assert "different GPU counts" not in agent.stderr, "there is nothing to warn of"
            assert leftovers(name) == []
    assert [path.name for path in tmp_path.iterdir() if ".round" in path.name] == []
