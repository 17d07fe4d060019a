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


RELEASED = """
import os, sys, time
here = ["decimal" in sys.modules]
import own
path = f"{sys.argv[1]}/{os.environ['HET_ROUND']}.{os.environ['RANK']}"
with open(f"{path}~", "w") as file:
    print(os.getpid(), "RELEASE", own.RELEASE, *here, file=file)
os.rename(f"{path}~", path)
time.sleep(300)
"""


@pytest.mark.long
def test_after_a_new_release_all_ranks_run_it(job: Cluster, tmp_path: Path) -> None:
    """Both standbys waited in the old one's folder; afterwards there are standbys again."""
    for release in "12":
        (tmp_path / release).mkdir()
        (tmp_path / release / "script.py").write_text(RELEASED.replace("RELEASE", release, 1))
        (tmp_path / release / "own.py").write_text(f"RELEASE = {release}")
    (tmp_path / "current").symlink_to("1")
    script = str(tmp_path / "current" / "script.py")
    agent = job.agent("a", 2, "--preload", MODULE, script=script, args=[str(tmp_path)])

    def said(number: int) -> dict[int, str]:
        found = [one.read_text().split(maxsplit=1) for one in tmp_path.glob(f"{number}.[01]")]
        return {int(pid): text for pid, text in found} if len(found) == 2 else {}

    def next_round(number: int, standbys: set[int]) -> set[str]:
        """What workers say in the next round, which are made of these standbys."""
        os.kill(min(said(number - 1)), 9)
        found = job.wait_for(lambda: said(number), f"round {number}")
        assert found.keys() == standbys
        return set(found.values())

    job.wait_for(lambda: said(1), "the first round")
    ready = set(two_standbys(agent))
    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").rename(tmp_path / "current")
    assert next_round(2, ready) == {"2 2 False\n"}, "none has what was imported before"
    assert (
        agent.stderr.count("script.py has changed since a standby imported ahead: starting over without that")
        == 2
    )
    assert next_round(3, set(two_standbys(agent))) == {"2 2 True\n"}
    agent.send(signal.SIGTERM)
    agent.wait()
    assert leftovers("a") == []


def test_a_killed_agent_leaves_no_standby(job: Cluster) -> None:
    agent = job.agent("a", 2, "--preload", MODULE)
    job.world(2)
    two_standbys(agent)
    agent.process.kill()
    wait_for(lambda: not leftovers("a"), "the end of all")


SEEN = """
import json, os, sys
names = ("SigBlk", "SigIgn", "SigCgt", "Threads", "Cpus_allowed", "CapEff", "NoNewPrivs", "Seccomp")
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
links = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        links[fd] = os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2]
    except OSError:
        pass
with open(sys.argv[1], "w") as file:
    json.dump({
        "preloaded": "decimal" in sys.modules, "environ": list(os.environ), "fds": links, "cwd": os.getcwd(),
        "status": {name: status[name] for name in names}, "nice": os.nice(0), "session": os.getsid(0) == os.getpid(),
        "steady": {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "HET_ROUND", "PATH")},
    }, file)
print("to stdout")
print("to stderr", file=sys.stderr)
"""


def test_a_worker_of_an_agent_sees_the_same(job: Cluster, tmp_path: Path) -> None:
    """That the process is made by a thread of the agent, and before the round, does not show."""
    (tmp_path / "s.py").write_text(SEEN)
    seen = []
    for preload in ("none", MODULE):
        into, logs = tmp_path / preload, tmp_path / f"logs of {preload}"
        flags = [
            f"--group={preload}",
            f"--preload={preload}",
            f"--log-dir={logs}",
            "--redirects=3",
            "--tee=1",
        ]
        agent = job.agent("a", 1, *flags, script=str(tmp_path / "s.py"), args=[str(into)])
        assert agent.wait() == 0, agent.stderr
        assert "to stdout\n" in agent.stderr
        [stdout], [stderr] = logs.rglob("stdout.log"), logs.rglob("stderr.log")
        assert (stdout.read_text(), stderr.read_text()) == ("to stdout\n", "to stderr\n")
        seen.append(json.loads(into.read_text()))
    cold, warm = seen
    assert (cold.pop("preloaded"), warm.pop("preloaded")) == (False, True)
    assert warm == cold
