"""Plain torchrun with `--rdzv-backend=hetrdzv`: torch's own agent, our server, one kind of trouble per test."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import WORKLOAD, Agent, Cluster, marked, wait_for
from tests.support.programs.start import COLD
from tests.support.servers import free_port
from tests.support.workload.worklog import complaints

CONF = "last_call_s=60,stop_timeout_s=5"


class Torchruns(Cluster):
    """A group whose nodes run torchrun.

    Args:
        conf: options of --rdzv-conf for all of them.
        flags: of torchrun, for all of them.
    """

    def __init__(self, folder: Path, *flags: str, conf: str = "") -> None:
        super().__init__(folder, *flags)
        self.conf = conf

    def __exit__(self, *_: object) -> None:
        for agent in self._all:  # first, or torchrun would restart the workers
            with contextlib.suppress(ProcessLookupError):
                agent.process.kill()
        for pid in marked():  # nothing else ends the workers of a killed torchrun
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        super().__exit__(None, None, None)

    def complaints(self) -> list[str]:
        """What is wrong with what workers logged; each node's agent counts restarts for itself."""
        return complaints([line | {"restart": 0} for line in self.log.lines()])

    def end_well(self, *names: str) -> None:
        """Let the workload end; then the group must succeed, which torchrun does not wait for."""
        self.finish_all(*names)
        self.wait_for(lambda: self.group()["state"] == "succeeded", "success of the group", 5)

    def torchrun(
        self,
        name: str,
        slots: int,
        *flags: str,
        conf: str = "",
        script: Path = WORKLOAD,
        env: dict[str, str] | None = None,
    ) -> Agent:
        """Start torchrun as a node; its script gets `--into` and the log's folder."""
        options = ",".join(filter(None, [f"node_id={name}", self.conf, conf]))
        rendezvous = {
            "--rdzv-backend": "hetrdzv",
            "--rdzv-endpoint": self.server.url,
            "--rdzv-id": "job",
            "--rdzv-conf": options,
            "--nproc-per-node": str(slots),
        }
        words = [word for pair in rendezvous.items() for word in pair]
        command = [sys.executable, "-m", "torch.distributed.run", *words, *self.flags, *flags]
        command += [str(script), "--into", str(self.log.folder)]
        if script == WORKLOAD and self.light and not COLD:
            command += ["--light"]
        return self.run(name, command, {"OMP_NUM_THREADS": "1"} | (env or {}))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Torchruns]:
    """Two nodes, neither more nor less; any name is a role."""
    flags = ("--nnodes", "2", "--max-restarts", "5", "--role", "a/b c")
    with Torchruns(tmp_path, *flags, conf=CONF) as made:
        yield made


def start_pair(pair: Torchruns) -> int:
    """Start uneven nodes; the number of the first round once all its workers have all-reduced."""
    pair.torchrun("a", 2)
    pair.torchrun("b", 1)
    return pair.world(3)


@pytest.mark.cold
def test_uneven_nodes_succeed_together(pair: Torchruns) -> None:
    pair.light = True
    start_pair(pair)
    seen = {(line["node"], line["local_rank"]): line["rank"] for line in pair.lines()}
    assert seen == {("a", 0): 0, ("a", 1): 1, ("b", 0): 2}
    group = pair.group()
    assert [(m["node_id"], m["rank_offset"]) for m in group["current_round"]["members"]] == [
        ("a", 0),
        ("b", 2),
    ]
    assert (group["state"], group["spec"]["max_restarts"]) == ("running", 1_000_000)
    pair.end_well("a", "b")
    assert "Error waiting on exit barrier" not in pair.agents["a"].stderr + pair.agents["b"].stderr


def test_a_killed_worker_brings_all_back(pair: Torchruns) -> None:
    pair.light = True
    port = free_port()
    pair.torchrun("a", 2, conf=f"port_range={port}-{port}")  # one is enough for round after round
    pair.torchrun("b", 1)
    first = pair.world(3)
    pair.agents["a"].workers()[-1].kill()
    second = pair.world(3, round_above=first)
    assert any("on a was killed by SIGKILL" in cause for cause in pair.told("worker_failed"))
    assert second == first + 1
    pair.end_well("a", "b")


def test_a_new_node_is_admitted_and_costs_no_restart(tmp_path: Path) -> None:
    with Torchruns(tmp_path, "--nnodes", "1:2", conf="last_call_s=0.5") as job:  # without --max-restarts
        job.light = True
        job.torchrun("a", 2)
        first = job.world(2)
        job.torchrun("b", 1)
        second = job.world(3, round_above=first)
        assert {line["restart"] for line in job.lines(round=second)} == {0}
        job.end_well("a", "b")


def test_the_server_may_be_away(pair: Torchruns) -> None:
    pair.light = True
    first = start_pair(pair)
    pair.server.kill()
    pair.agents["b"].workers()[0].kill()
    wait_for(lambda: "no server" in pair.agents["a"].stderr, "a's notice that the server is away")
    pair.server.start()
    pair.world(3, round_above=first)
    pair.end_well("a", "b")


STORES = """
import json, os, sys
import torch, torch.distributed as dist

_, _, into = sys.argv  # --into FOLDER
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
seen = {"port": os.environ["MASTER_PORT"], "agents_store": os.environ["TORCHELASTIC_USE_AGENT_STORE"],
        "old": store.check(["left behind"]), "token": "HET_TOKEN" in os.environ}
dist.barrier()
if dist.get_rank() == 0:
    store.set("left behind", "by round 1")
    assert store.check(["left behind"])
    with open(into + "/stores.jsonl", "a") as file:
        file.write(json.dumps(seen) + "\\n")
dist.barrier()
dist.destroy_process_group()
if os.environ["HET_ROUND"] == "1":
    raise SystemExit(7)
"""


def test_every_round_has_a_fresh_store_and_no_token(pair: Torchruns, tmp_path: Path) -> None:
    script = tmp_path / "stores.py"
    script.write_text(STORES)
    for name in "ab":
        pair.torchrun(name, 1, script=script, env={"HET_TOKEN": "secret"})
    assert {name: pair.agents[name].wait() for name in "ab"} == {"a": 0, "b": 0}, pair.report()
    first, second = map(json.loads, (pair.log.folder / "stores.jsonl").read_text().splitlines())
    assert first["port"] != second["port"]
    assert [one["old"] for one in (first, second)] == [False, False]
    assert [one["agents_store"] for one in (first, second)] == ["True", "True"]
    assert [one["token"] for one in (first, second)] == [False, False]
    wait_for(lambda: pair.group()["state"] == "succeeded", "success of the group", 5)


LATE = """
import os, sys, time
from pathlib import Path

if os.environ["HET_NODE_ID"] == "b" and os.environ["HET_ROUND"] == "1":
    while not Path(sys.argv[2], "fail").exists():
        time.sleep(0.05)
    raise SystemExit(9)
"""


@pytest.mark.long
def test_who_has_succeeded_is_not_held_by_another_nodes_failure(tmp_path: Path) -> None:
    """torch's agent cannot run again once it is in its exit barrier: it must go, so that the rest can."""
    script = tmp_path / "late.py"
    script.write_text(LATE)
    with Torchruns(tmp_path, "--nnodes", "1:2", "--max-restarts", "2", conf=CONF) as job:
        for name in "ab":
            job.torchrun(name, 1, script=script)
        wait_for(
            lambda: {n["state"] for n in job.group().get("nodes", [])} == {"succeeded", "running"},
            "a's success",
        )
        (job.log.folder / "fail").touch()
        assert {name: job.agents[name].wait() for name in "ab"} == {"a": 0, "b": 0}, job.report()
        wait_for(lambda: job.group()["state"] == "succeeded", "success of the group", 5)
