"""deploy/ray/agents.py on a Ray of this machine: agents that go or die come back, and the others stay."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.ecosystem import PYTHON, VENV, needs_frameworks
from tests.support.cluster import NO_STANDBYS, RUN, WORKLOAD, Cluster, cluster, leftovers, wait_for
from tests.support.servers import ROOT, free_port
from tests.support.workload.worklog import StepCounter, World

SCRIPT = ROOT / "deploy" / "ray" / "agents.py"
SLOTS = {"ray0": 2, "ray1": 1, "ray2": 1}
START_S = 180.0
"""Ray takes a minute to start where other tests use the cores, too."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_frameworks]


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray of one node with 4 CPUs."""
    port = free_port()
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")
    monkeypatch.setenv(
        "RAY_worker_niceness", "0"
    )  # not 15, with which an agent hardly starts beside other tests
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else it leaves a token in the home directory
    monkeypatch.setenv("HETRDZV_TEST_RUN", RUN)
    monkeypatch.setenv("HET_PRELOAD", NO_STANDBYS["HET_PRELOAD"])
    start = f"start --head --block --num-cpus 4 --port {port} --include-dashboard false --disable-usage-stats"
    with (tmp_path / "ray.out").open("wb") as out:
        node = subprocess.Popen([VENV / "bin" / "ray", *start.split()], stdout=out, stderr=out)
        try:
            said = tmp_path / "ray.out"
            wait_for(lambda: "Ray runtime started" in said.read_text(), "Ray", START_S)
            monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
            yield
        finally:
            node.terminate()
            node.wait()


def agents() -> dict[str, psutil.Process]:
    """The agents that Ray has started, by node id."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[1:3] == ["-m", "hetagent"] and words[3:4] == ["--node-id"]:
            found[words[4]] = process
    return found


def no_step_lost(job: Cluster, world: World) -> int:
    """Wait for the round that a node has left, which goes on where the former one was."""
    smaller = job.wait_for(lambda: job.log.world(3, round_above=world.round), "the world of the others")
    counter = StepCounter(job.log.folder)
    assert smaller.resumed_from == max(counter.read(pid) for pid in world.pids)
    return smaller.round


def replaced(job: Cluster, name: str, before: dict[str, psutil.Process], number: int) -> int:
    """Wait for the world with a new agent of that name; no other has changed."""
    after = job.wait_for(lambda: job.log.world(4, round_above=number), f"{name} again", START_S)
    now = agents()
    assert now.keys() == SLOTS.keys()
    assert {node for node in SLOTS if now[node] != before[node]} == {name}
    return after.round


@pytest.mark.usefixtures("ray")
def test_an_agent_that_goes_or_dies_is_started_again_and_no_other(tmp_path: Path) -> None:
    with cluster(tmp_path) as job:
        sizes = ",".join(map(str, SLOTS.values()))
        own = ["--bundles", sizes, "--resource", "CPU", "--resume-after-s", "5"]
        flags = ["--server", job.server.url, "--group", "job", "--nnodes", "1:3"]
        script = [WORKLOAD, "--into", job.log.folder, "--notice", "--checkpoint-every", "100"]
        driver = job.run("driver", [str(word) for word in (PYTHON, SCRIPT, *own, "--", *flags, *script)])
        world = job.wait_for(lambda: job.log.world(4), "the first world", START_S)
        time.sleep(2)

        before = agents()
        before["ray1"].send_signal(signal.SIGTERM)
        number = replaced(job, "ray1", before, no_step_lost(job, world))

        before = agents()
        before["ray2"].kill()
        number = replaced(job, "ray2", before, number)

        before = agents()
        world = job.log.world(4, round_above=number - 1)
        assert world is not None
        before["ray1"].parent().kill()  # Ray's own process, which runs the task: Ray sends the agent SIGTERM
        number = replaced(job, "ray1", before, no_step_lost(job, world))

        assert not job.complaints()
        assert job.group()["restarts"] <= 1  # for the SIGKILL
        job.finish()
        assert driver.wait() == 0, job.report()
        assert not any(leftovers(name) for name in SLOTS)
