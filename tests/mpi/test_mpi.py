"""`--launch mpi` with Open MPI itself: real server, real agents, mpirun, orted, and a program that uses mpi4py."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from hetagent.launch.mpi.mpirun import PREFIX, SHARED_MEMORY
from tests.netns import hosts
from tests.netns.cluster import HostCluster
from tests.support.cluster import Cluster, cluster, leftovers, wait_for
from tests.support.servers import ROOT, Hetserver

pytestmark = [pytest.mark.long, pytest.mark.needs("open-mpi"), pytest.mark.slow, pytest.mark.timeout(240)]

TRAIN = ROOT / "examples" / "mpi" / "train.py"
FLAGS = ("--nnodes", "2", "--stop-timeout-s", "5", "--launch", "mpi")

EPOCHS = 30
REST_S = 0.3
"""After every epoch: the job must still run when a rank is killed, seconds after it was seen to run."""

STARTED = re.compile(
    r"rank (\d+) of (\d+): local rank (\d+) of (\d+), pid (\d+), (\d+) epochs done before$", re.MULTILINE
)
EPOCH = re.compile(
    r"rank (\d+): epoch (\d+)/\d+, sum (\d+), loss [\d.]+, weights differ by (\S+)$", re.MULTILINE
)

PLACES = [(0, 3, 0, 2), (1, 3, 1, 2), (2, 3, 0, 1)]
"""Rank, size, local rank, local size on nodes with 2 slots and 1, a and b in this order."""


@pytest.fixture(autouse=True)
def _mpi() -> Iterator[None]:
    missing = [name for name in ("mpirun", "orted") if shutil.which(name) is None]
    missing += ["mpi4py"] if find_spec("mpi4py") is None else []
    if missing:
        pytest.skip(f"there is no {', '.join(missing)}: make test-mpi")
    before = folders()
    yield
    assert folders() <= before, "what a round made outlives it"


def folders() -> set[str]:
    """Private folders of rounds, and Open MPI's own in their usual places."""
    return {
        str(path)
        for parent in (Path("/tmp"), SHARED_MEMORY)
        for pattern in (f"{PREFIX}*", "ompi.*", "vader_segment.*")
        for path in parent.glob(pattern)
    }


def said(job: Cluster) -> str:
    """What all agents and ranks said; ranks say it where mpirun is."""
    return "\n".join(agent.stderr for agent in job.agents.values())


def lives(job: Cluster, size: int = 3) -> list[list[tuple[int, ...]]]:
    """What ranks said of themselves when they started, by rounds that all of them came into, in rank order."""
    found = [tuple(map(int, one)) for one in STARTED.findall(said(job)) if int(one[1]) == size]
    return [sorted(found[at : at + size]) for at in range(0, len(found) - size + 1, size)]


def epochs(job: Cluster, rank: int) -> int:
    return max((int(one[1]) for one in EPOCH.findall(said(job)) if int(one[0]) == rank), default=0)


def begin(job: Cluster, *flags: str, nodes: dict[str, int] | None = None, script: Path = TRAIN) -> None:
    """Start agents with the example, a before b, so that a is the master."""
    args = ["--epochs", str(EPOCHS), "--epoch-sleep", str(REST_S), "--save-dir", str(job.folder / "saved")]
    for name, gpus in (nodes or {"a": 2, "b": 1}).items():
        job.agent(name, gpus, *flags, script=str(script), args=args if script == TRAIN else [])


def trains(job: Cluster, life: int, *, size: int = 3) -> list[tuple[int, ...]]:
    """Wait until all ranks have started for the `life`-th time and the last has made two epochs more."""
    try:
        wait_for(lambda: len(lives(job, size)) >= life, f"{size} ranks, time {life}")
        done = lives(job, size)[life - 1][0][-1]
        wait_for(lambda: epochs(job, size - 1) >= done + 2, "two epochs")
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{job.report()}") from None
    return lives(job, size)[life - 1]


def ends_well(job: Cluster, *names: str) -> None:
    """The job must succeed; each all-reduce must have had every rank in it once."""
    assert {name: job.agents[name].wait() for name in names} == dict.fromkeys(names, 0), job.report()
    assert job.group()["state"] == "succeeded"
    world = job.group()["current_round"]["world_size"]
    last = {one for one in EPOCH.findall(said(job)) if one[1] == str(EPOCHS)}
    assert {int(rank) for rank, *_ in last} == set(range(world)), job.report()
    assert {(total, apart) for _, _, total, apart in last} == {(str(world * (world + 1) // 2), "0")}
    for name in names:
        assert leftovers(name) == []


def daemons(name: str) -> list[psutil.Process]:
    """The mpirun or orted of a node."""
    found = []
    for pid in leftovers(name):
        process = psutil.Process(pid)
        if process.name() in ("mpirun", "orterun", "orted"):
            found.append(process)
    return found


def test_uneven_nodes_form_one_world_and_all_come_back_from_a_kill(tmp_path: Path) -> None:
    with cluster(tmp_path, *FLAGS) as job:
        begin(job)
        first = trains(job, 1)
        assert [one[:4] for one in first] == PLACES
        assert {one[-1] for one in first} == {0}
        os.kill(first[2][4], signal.SIGKILL)
        second = trains(job, 2)
        assert [one[:4] for one in second] == PLACES
        assert {one[-1] for one in second} > {0} or min(one[-1] for one in second) >= 2, "from the checkpoint"
        ends_well(job, "a", "b")
        group = job.group()
        assert (group["round"], group["restarts"]) == (2, 1), job.report()
        sums = {one[2] for one in EPOCH.findall(said(job))}
        assert sums == {"6"}
        kinds = [event["reason"]["code"] for event in job.events()]
        assert kinds.count("worker_failed") == 1, "mpirun's word alone counts"
        assert kinds.count("node_succeeded") == 2
        assert kinds.count("daemon_started") == 2


@pytest.mark.parametrize(
    ("failing", "how", "module", "status", "sentence"),
    [
        (0, "os._exit(41)", False, 41, "Exit code:    41"),
        (2, "os._exit(41)", False, 41, "Exit code:    41"),
        (2, "raise ValueError(41)", True, 1, "MPI_ABORT was invoked on rank 2"),
    ],
)
def test_the_root_cause_is_mpiruns_own_sentence(
    tmp_path: Path, failing: int, how: str, module: bool, status: int, sentence: str
) -> None:
    script = tmp_path / "fail.py"
    script.write_text(
        "import os, sys\n"
        "from mpi4py import MPI\n"
        "MPI.COMM_WORLD.Barrier()\n"
        f"if MPI.COMM_WORLD.rank == {failing}:\n"
        "    print('the tensor has no soul', file=sys.stderr, flush=True)\n"
        f"    {how}\n"
        "MPI.COMM_WORLD.Barrier()\n"
    )
    flags, words = (["--module"], ["mpi4py", str(script)]) if module else ([], [str(script)])
    with cluster(tmp_path, *FLAGS, "--max-restarts", "0", *flags) as job:
        for name, gpus in (("a", 2), ("b", 1)):
            job.agent(name, gpus, script=words[0], args=words[1:])
        assert {name: job.agents[name].wait() for name in "ab"} == {"a": status, "b": status}, job.report()
        cause = job.group()["root_cause"]
        assert cause["node_id"] == "a"
        for text in ("the tensor has no soul", sentence):
            assert text in cause["failure"]["message"], job.report()
            assert text in job.agents["b"].stderr, "every agent shows it"


def test_a_restart_costs_nothing_and_a_killed_daemon_costs_one(tmp_path: Path) -> None:
    with cluster(tmp_path, *FLAGS) as job:
        begin(job)
        trains(job, 1)
        job.post("restart")
        trains(job, 2)
        assert job.group()["restarts"] == 0, job.report()
        (orted,) = daemons("b")
        orted.kill()
        trains(job, 3)
        ends_well(job, "a", "b")
        assert (job.group()["round"], job.group()["restarts"]) == (3, 1)


def test_a_master_that_dies_with_its_machine_leaves_nothing_and_another_takes_over(tmp_path: Path) -> None:
    flags = ("--nnodes", "1:2", "--last-call-s", "3", "--stop-timeout-s", "5", "--launch", "mpi")
    with cluster(tmp_path, *flags) as job:
        begin(job)
        trains(job, 1)
        assert job.group()["current_round"]["master"]["node_id"] == "a"
        job.agents["a"].process.kill()
        wait_for(lambda: leftovers("a") == [], "the guardian's work")
        trains(job, 1, size=1)
        assert job.group()["current_round"]["master"]["node_id"] == "b"
        assert (job.group()["restarts"], job.group()["round"]) == (0, 2)
        begin(job, nodes={"a": 2})  # and sweeps away what it left
        trains(job, 2)
        ends_well(job, "a", "b")
        assert [one[:4] for one in lives(job)[1]] in (PLACES, [(0, 3, 0, 1), (1, 3, 0, 2), (2, 3, 1, 2)])


def test_ranks_know_the_master_and_nobody_knows_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret-of-sixteen")
    token.chmod(0o600)
    script = tmp_path / "tell.py"
    script.write_text(
        "import json, os, time\n"
        "from mpi4py import MPI\n"
        f"open({str(tmp_path)!r} + '/env.' + str(MPI.COMM_WORLD.rank), 'w').write(json.dumps(dict(os.environ)))\n"
        "time.sleep(2)\n"
    )
    server = Hetserver(f"sqlite:{tmp_path / 'state.db'}", 0, token)
    with Cluster(tmp_path, *FLAGS, "--token-file", str(token), server=server) as job:
        job._http.headers["Authorization"] = f"Bearer {token.read_text()}"
        begin(job, script=script)
        wait_for(lambda: all((tmp_path / f"env.{rank}").exists() for rank in range(3)), "three ranks")
        for name in "ab":
            for pid in leftovers(name):
                process = psutil.Process(pid)
                assert token.read_text() not in " ".join([*process.cmdline(), *process.environ().values()])
        assert {name: job.agents[name].wait() for name in "ab"} == {"a": 0, "b": 0}, job.report()
        port = job.group()["current_round"]["master"]["script_port"]
    environments = [json.loads((tmp_path / f"env.{rank}").read_text()) for rank in range(3)]
    for rank, env in enumerate(environments):
        assert env["OMPI_COMM_WORLD_RANK"] == str(rank)
        node, offset = ("a", 0) if rank < 2 else ("b", 2)
        assert (env["HET_NODE_ID"], env["HET_RANK_OFFSET"]) == (node, str(offset))
        assert int(env["HET_RANK_OFFSET"]) + int(env["OMPI_COMM_WORLD_LOCAL_RANK"]) == rank
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", str(port))
        assert (env["HET_ROUND"], env["WORLD_SIZE"]) == ("1", "3")
        assert not env.keys() & {"RANK", "LOCAL_RANK", "HET_TOKEN"}


@pytest.mark.netns
def test_on_hosts_of_their_own(tmp_path: Path) -> None:
    if why := hosts.missing():
        pytest.skip(why)
    with hosts.Hosts() as net:
        lan = net.switch("lan")
        there = [lan.host(name) for name in ("server", "a", "b")]
        with HostCluster(tmp_path, there, *FLAGS) as job:
            begin(job)
            first = trains(job, 1)
            assert [one[:4] for one in first] == PLACES
            assert [m["address"] for m in job.group()["current_round"]["members"]] == [
                "10.77.1.2",
                "10.77.1.3",
            ]
            os.kill(first[2][4], signal.SIGKILL)
            trains(job, 2)
            ends_well(job, "a", "b")
