"""What is left of a round's workers: killed, or left alone, and what happens if it does not die."""

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.rig import Make, OtherNode, Rig, is_alive, soon, tails
from tests.support.fuse import DeadFiles
from torch.distributed.elastic.multiprocessing import Std

from hetagent.node.processes import proctree as processes
from hetagent.node.processes.proctree import find_by_incarnation

HELPER = "mkfifo done; setsid sh -c 'echo $$ > helper; read x < done; touch uploaded' &"
"""A detached helper of a worker, such as the upload of a checkpoint."""


def helper(made: Rig) -> int:
    return int((made.folder / "helper").read_text())


def test_detached_helpers_outlive_a_job_that_succeeded_and_nothing_else_does(rig: Make) -> None:
    made = rig(f"sleep 100 & echo $! > sleeper; {HELPER} while [ ! -s helper ]; do sleep 0.01; done")
    assert made.run(leaves=True) == 0
    assert find_by_incarnation(made.identity.incarnation) == [helper(made)]
    assert f"processes that the workers detached (setsid) are left running: {helper(made)}" in made.said
    assert not is_alive(int((made.folder / "sleeper").read_text()))
    (made.folder / "done").write_text("now")
    soon((made.folder / "uploaded").exists, "the upload")
    soon(lambda: not is_alive(helper(made)), "the helper's end")


@pytest.mark.parametrize("ends", ["by a restart", "by a signal", "cancelled"])
def test_detached_helpers_do_not_outlive_a_round_that_is_not_the_last(rig: Make, ends: str) -> None:
    """This node's workers have succeeded; the job, for which another node still works, has not."""
    spec = {"min_nodes": 2, "max_nodes": 2, "lease_s": 60.0, "stop_timeout_s": 5.0}
    made = rig(f"[ $HET_ROUND = 2 ] && exit 0; {HELPER} while [ ! -s helper ]; do sleep 0.01; done", **spec)
    other = OtherNode(made, "b", **spec)
    alive: list[bool] = []

    def note() -> None:
        alive.append(is_alive(helper(made)))

    acts: list[Callable[[], Any]] = [
        other.ready,
        made.appears("helper"),
        lambda: other.reports("started"),
        made.says("all local workers succeeded"),
        lambda: soon(lambda: made.group()["nodes"][0]["state"] == "succeeded", "the report"),
        note,
    ]
    if ends == "by a restart":
        acts += [made.asks("restart"), made.says("round 1 is over"), lambda: other.ready(1)]
        acts += [made.says("round 2:"), note, lambda: other.reports("started", 2)]
        acts += [lambda: other.reports("succeeded", 2)]
    else:
        acts += [made.gets(signal.SIGTERM) if ends == "by a signal" else made.asks("cancel")]
    made.run(*acts)  # it looks for what is marked as this agent's
    assert alive == ([True, False] if ends == "by a restart" else [True])
    assert not (made.folder / "uploaded").exists()


def test_workers_that_do_not_die_are_told_and_the_agent_leaves_in_good_order(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under `sudo`, a worker belongs to another user."""
    made = rig(
        "echo $$ > pid.$RANK; touch up.$RANK; exec sleep 100", slots=2, tee=Std.ALL, stop_timeout_s=0.1
    )

    def theirs() -> int:
        return int((made.folder / "pid.0").read_text())

    def refusing(pid: int, signum: int) -> None:
        if pid == theirs():
            raise PermissionError(1, "Operation not permitted")
        kill(pid, signum)

    def end() -> None:
        try:
            made.says("cannot be killed")()
        finally:
            kill(theirs(), signal.SIGKILL)
        soon(lambda: not is_alive(theirs()), "its end")

    kill, kill_all = os.kill, processes.kill_all
    monkeypatch.setattr(processes, "kill_all", lambda find, timeout_s=0.2: kill_all(find, 0.2))
    monkeypatch.setattr(os, "kill", refusing)
    monkeypatch.setattr(os, "killpg", refusing)
    made.run(made.appears("up.0", "up.1"), made.gets(signal.SIGTERM), end)
    stuck = [line for line in made.said if "cannot be killed" in line]
    assert [line.rpartition(" (state ")[0] for line in stuck] == [f"processes cannot be killed: {theirs()}"]
    soon(lambda: not tails(), "the end of what copies output")
    assert made.guardian.pid is None, "it was dismissed"
    node = made.group()["nodes"][0]
    assert (node["state"], node["reason"]["message"]) == ("left", "its agent got SIGTERM")


def test_a_worker_that_hangs_in_the_kernel_takes_its_node_out_of_the_job(
    rig: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the GPU that the next round would need: it would fail here, restart after restart."""
    error_file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(error_file))
    kill_all = processes.kill_all
    monkeypatch.setattr(processes, "kill_all", lambda find, timeout_s=0.2: kill_all(find, 0.2))
    with DeadFiles(tmp_path / "dead") as files:
        made = rig("echo $$ > pid; exec stat dead/file", stop_timeout_s=0.1)
        with monkeypatch.context() as patch:
            patch.setattr(made, "identity", replace(made.identity, incarnation="none"))  # it does leave one
            made.run(lambda: soon(files.asked.is_set, "a look"), made.asks("restart"))
        pid = int((made.folder / "pid").read_text())
        why = rf"its processes .*: {pid} \(state D: hangs in the kernel\)"
        assert re.fullmatch(why, made.agent.shutdown.ended_by)
        leaves = f"leaving, since {made.agent.shutdown.ended_by}; check the node before you use it again"
        assert made.said[-1] == leaves
        assert made.group()["restarts"] == 0
        assert json.loads(error_file.read_text())["message"]["message"] == made.agent.shutdown.ended_by
        [node] = made.group()["nodes"]
        assert (node["state"], node["reason"]["message"]) == ("left", made.agent.shutdown.ended_by)
    soon(lambda: not is_alive(pid), "its end")
