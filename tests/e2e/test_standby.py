"""Restarts with standbys, end to end."""

import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import Agent, Cluster, cluster, leftovers, wait_for
from tests.support.needs import ALL

MODULE = "decimal"
"""What standbys import here: something that takes no time, and that the workload does not import."""

KILLS = 20 if os.environ.get(ALL) == "1" else 6


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One agent may form a world; its scratch files lie in a folder of this test."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    killed_often = ("--max-restarts", "30", "--restart-wait-s", "0")
    with cluster(tmp_path, "--nnodes", "1", "--stop-timeout-s", "5", *killed_often) as made:
        made.light = True
        yield made


def two_standbys(agent: Agent) -> list[int]:
    """Wait for the standbys of two local ranks; their pids."""
    ready = wait_for(lambda: found if len(found := agent.standbys()) == 2 else None, "two standbys")
    return [standby.pid for standby in ready]


def descriptors(agent: Agent) -> Counter[str]:
    """How many descriptors of which kind an agent has open; of files only how many, since each round has its own."""
    kinds = []
    for link in Path(f"/proc/{agent.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(link)
            kinds.append("file" if target.startswith("/") else target.partition("[")[0])
    return Counter(kinds)


def pids(job: Cluster, number: int) -> set[int]:
    """Of the workers of a round."""
    return {line["pid"] for line in job.lines(round=number)}


def kill_one(job: Cluster, number: int) -> int:
    """Kill a worker; returns the number of the next round, once that has all-reduced."""
    os.kill(min(pids(job, number)), 9)
    return job.world(2, round_above=number)


def test_each_next_world_is_made_of_standbys(job: Cluster, tmp_path: Path) -> None:
    agent = job.agent("a", 2, "--preload", MODULE)
    number = job.world(2)
    for restart in (1, 2):
        ready = two_standbys(agent)
        number = kill_one(job, number)
        assert pids(job, number) == set(ready), job.report()
        assert {line["restart"] for line in job.lines(round=number)} == {restart}
    for pid in two_standbys(agent):  # that they die costs nothing
        os.kill(pid, 9)
    job.progress(number)
    number = kill_one(job, number)
    assert {line["restart"] for line in job.lines(round=number)} == {3}
    job.end_well("a")
    assert leftovers("a") == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert "standby" not in agent.stderr, agent.stderr


@pytest.mark.long
def test_kills_in_a_row(job: Cluster, tmp_path: Path) -> None:
    """Some before the next standbys are ready, some while they import."""
    agent = job.agent("a", 2, "--preload", MODULE)
    number = kill_one(job, job.world(2))
    two_standbys(agent)
    open_before, children = descriptors(agent), len(psutil.Process(agent.pid).children())
    for _ in range(KILLS):
        number = kill_one(job, number)
    assert number == KILLS + 2
    assert job.group()["restarts"] == KILLS + 1
    two_standbys(agent)
    job.wait_for(lambda: not descriptors(agent) - open_before, "no more descriptors than before")
    assert len(psutil.Process(agent.pid).children()) == children
    job.end_well("a")
    assert leftovers("a") == []
    assert list((tmp_path / "tmp").iterdir()) == []


IMPORTS = """
import json, os, sys, time
before = [name for name in ("decimal", "prometheus_client", "own") if name in sys.modules]
import prometheus_client, own
path = f"{sys.argv[1]}/{os.environ['HET_ROUND']}.{os.environ['RANK']}"
with open(f"{path}~", "w") as file:
    json.dump([os.getpid(), before], file)
os.rename(f"{path}~", path)
time.sleep(300)
"""
"""Imports a module that is installed and one of its own, and says which of them were there before."""


@pytest.mark.long
def test_what_the_script_imports_is_imported_ahead_if_it_is_installed(job: Cluster, tmp_path: Path) -> None:
    """Once the workers have imported nothing for a while, their standbys import it as well."""
    (tmp_path / "script.py").write_text(IMPORTS)
    (tmp_path / "own.py").touch()
    agent = job.agent(
        "a", 2, "--preload", f"{MODULE},auto", script=str(tmp_path / "script.py"), args=[str(tmp_path)]
    )

    def said(number: int) -> list[tuple[int, list[str]]]:
        found = list(tmp_path.glob(f"{number}.[01]"))
        return [json.loads(one.read_text()) for one in found] if len(found) == 2 else []

    number, ahead = 1, False
    while not ahead:
        lines = job.wait_for(lambda of=number: said(of), f"round {number}")
        ahead = [modules for _, modules in lines] == [[MODULE, "prometheus_client"]] * 2
        ready, number = two_standbys(agent), number + 1
        os.kill(lines[0][0], 9)
    assert number > 2, "nobody could know in the first round"
    lines = job.wait_for(lambda: said(number), "the last round")
    assert {pid for pid, _ in lines} == set(ready)
    agent.send(signal.SIGTERM)
    agent.wait()
    assert leftovers("a") == []


def test_a_killed_agent_leaves_no_standby(job: Cluster) -> None:
    agent = job.agent("a", 2, "--preload", MODULE)
    job.world(2)
    two_standbys(agent)
    agent.process.kill()
    wait_for(lambda: not leftovers("a"), "the end of all")
