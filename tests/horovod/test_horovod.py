"""`--launch horovod` with Horovod itself: real server, real agents, and a program that calls `hvd.init()`."""

import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest

from hetagent.launch.horovod import STORE, HorovodLaunch, rank_env
from hetagent.node import network
from tests.agent.launch.test_horovod import COMMAND, assignment, members
from tests.support.cluster import RUN, Cluster, cluster, leftovers, standalone, wait_for
from tests.support.servers import ROOT, free_port

pytestmark = [pytest.mark.long, pytest.mark.needs("horovod"), pytest.mark.slow, pytest.mark.timeout(240)]

TRAIN = ROOT / "examples" / "horovod" / "train.py"

EPOCHS = 12
REST_S = 0.25
"""After every epoch: the job must still run when the worker is killed, seconds after it was seen to run."""

STARTED = re.compile(
    r"rank (\d+) of (\d+): local rank (\d+) of (\d+), cross rank (\d+) of (\d+), device cpu, "
    r"(\d+) epochs done before$",
    re.MULTILINE,
)
EPOCH = re.compile(
    r"rank (\d+): epoch (\d+)/\d+, sum (\d+), loss [\d.]+, weights differ by (\S+)$", re.MULTILINE
)

# by node: rank of size, local rank of size, cross rank of size
PLACES = {"a": [(0, 3, 0, 2, 0, 2), (1, 3, 1, 2, 0, 1)], "b": [(2, 3, 0, 1, 1, 2)]}


@pytest.fixture(autouse=True)
def _horovod() -> None:
    if find_spec("horovod") is None:
        pytest.skip("there is no Horovod: make horovod")


def places(job: Cluster, node: str) -> list[tuple[int, ...]]:
    """What a node's workers said of themselves, in the order in which they did: places, then epochs done before."""
    return [tuple(map(int, found)) for found in STARTED.findall(job.agents[node].stderr)]


def stores() -> list[psutil.Process]:
    """The rendezvous servers of this run's agents."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(STORE) in process.cmdline() and process.environ().get("HETRDZV_TEST_RUN") == RUN:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_uneven_nodes_get_horovods_ranks_and_all_come_back_from_a_kill(tmp_path: Path) -> None:
    args = ["--epochs", str(EPOCHS), "--epoch-sleep", str(REST_S), "--save-dir", str(tmp_path / "saved")]
    with cluster(tmp_path, "--nnodes", "2", "--stop-timeout-s", "5", "--launch", "horovod") as job:
        for name, gpus in (("a", 2), ("b", 1)):
            job.agent(name, gpus, script=str(TRAIN), args=args)

        def epochs_seen() -> int:
            return sum(len(EPOCH.findall(agent.stderr)) for agent in job.agents.values())

        def back(life: int) -> bool:
            return all(len(places(job, node)) == life * len(there) for node, there in PLACES.items())

        wait_for(lambda: back(1) and epochs_seen() >= 6, "two epochs")
        (first,) = stores()
        job.agents["a"].workers()[1].kill()
        wait_for(lambda: back(2), f"all three again\n{job.report()}")
        (second,) = stores()
        assert second.pid != first.pid, "a store for each round"

        assert {name: agent.wait() for name, agent in job.agents.items()} == {"a": 0, "b": 0}, job.report()
        group = job.group()
        assert (group["state"], group["round"], group["restarts"]) == ("succeeded", 2, 1), job.report()
        for name, there in PLACES.items():
            found = places(job, name)
            lives = found[: len(there)], found[len(there) :]
            for life in lives:
                assert sorted(place[:-1] for place in life) == there, job.report()
            assert {place[-1] for place in lives[0]} == {0}
            assert min(place[-1] for place in lives[1]) >= 1, "the restart goes on from the checkpoint"
            results = EPOCH.findall(job.agents[name].stderr)
            assert {(total, apart) for _, _, total, apart in results} == {("6", "0")}, job.report()
            assert {rank for rank, epoch, *_ in results if epoch == str(EPOCHS)} == {str(p[0]) for p in there}
            assert leftovers(name) == []
        assert stores() == []


def test_a_program_may_begin_anew_within_a_round(tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(
        "import torch, horovod.torch as hvd\n"
        "for turn in range(3):\n"
        "    hvd.init()\n"
        "    total = int(hvd.allreduce(torch.tensor(hvd.rank() + 1), op=hvd.Sum))\n"
        "    print(f'turn {turn} rank {hvd.rank()} sum {total}\\n', end='', flush=True)\n"
        "    hvd.shutdown()\n"
    )
    output = standalone("--gpus", "2", "--launch", "horovod", str(script))
    said = [line for line in output.splitlines() if line.startswith("turn ")]
    assert sorted(said) == [f"turn {turn} rank {rank} sum 3" for turn in range(3) for rank in range(2)]
    assert stores() == []


def test_built_without_mpi_it_trains_nowhere_alone_under_mpirun(tmp_path: Path) -> None:
    """Each process took itself for rank 0 of 1, and the job succeeded."""
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun: make test-mpi")
    (tmp_path / "helper.py").write_text("import horovod.torch as hvd\nhvd.init()\nprint('alone')\n")
    (tmp_path / "indirect.py").write_text("import helper\n")
    for script in (TRAIN, tmp_path / "indirect.py"):
        words = ["--launch", "mpi", "--max-restarts", "0", "--gpus", "2", "--device", "cpu", str(script)]
        done = subprocess.run(
            [sys.executable, "-m", "hetagent.cli.main", "--standalone", *words],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode != 0
        assert "Segmentation fault" in done.stderr
        assert "alone\n" not in done.stdout + done.stderr


def test_a_killed_agents_store_goes_with_it(tmp_path: Path) -> None:
    script = tmp_path / "wait.py"
    script.write_text("import time; time.sleep(1000)\n")
    with cluster(tmp_path, "--launch", "horovod", "--nnodes", "1") as job:
        agent = job.agent("a", 1, script=str(script))
        wait_for(lambda: agent.workers() and stores(), "a worker and a store")
        agent.process.kill()
        wait_for(lambda: not stores(), "the end of its store", 10)


def test_a_round_finds_no_key_of_the_last_and_takes_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_EXEC", sys.executable)
    launch = HorovodLaunch(COMMAND)
    port = free_port()
    for _ in range(2):  # the second time the kernel still remembers the first one's connections
        part = assignment("a", 2, 1)
        part.script_port = network.hold_port("127.0.0.1", (port, port))
        launch.begin(part)
        try:
            key = f"http://127.0.0.1:{port}/global/0"
            assert httpx.get(key, trust_env=False, timeout=20).status_code == 404
            assert httpx.put(key, content=b"where rank 0 is", trust_env=False).status_code == 200
            assert httpx.get(key, trust_env=False).content == b"where rank 0 is"
            assert httpx.head(f"http://127.0.0.1:{port}/README.md", trust_env=False).status_code == 404
        finally:
            launch.end()


@pytest.mark.parametrize("slots", [(1,), (2, 1), (1, 2), (2, 1, 3), (3, 3), (1, 4, 2, 4), (8, 1, 1, 2, 8)])
def test_ranks_are_those_that_horovodrun_would_give(slots: tuple[int, ...]) -> None:
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments

    there = members(*slots)
    plan = get_host_assignments([HostInfo(member.node_id, member.slots) for member in there], sum(slots))
    ours = [rank_env(there, member.node_id, i) for member in there for i in range(member.slots)]
    assert ours == [
        {f"HOROVOD_{name.upper()}": str(value) for name, value in asdict(slot).items()} for slot in plan
    ]
