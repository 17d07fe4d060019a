"""No standby outlives its agent, whatever it is doing, and none is taken for a worker."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import standbys
from tests.support.cluster import wait_for

from hetagent.node.processes import proctree as processes
from hetagent.standby.process import Standby

AGENT = """
import json, os, sys, time
from hetagent.node.processes import proctree as processes
from hetagent.node.processes.guardian import Guardian
from hetagent.standby.process import Standby
from tests.support import standbys

guardian = Guardian(
    incarnation=standbys.MARKS[processes.INCARNATION], servers=["http://127.0.0.1:1"], token=None, group="job",
    node_id=standbys.MARKS[processes.NODE_ID],
)
guardian.start()
program = standbys.program(sys.argv[1])
made = [standbys.ready(program, []), standbys.ready(program, []), Standby(program, ["endless"])]
os.kill(made[1].process.pid, 19)
print(json.dumps([guardian.pid, *(one.process.pid for one in made), standbys.MARKS]), flush=True)
sys.stdin.read()
"""
"""Has one that is ready, one that is stopped, and one that imports for ever."""


class Agent:
    """A process that stands in for an agent."""

    def __init__(self, script: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        self.guardian, self.ready, self.stopped, self.importing, self.marks = json.loads(
            self.process.stdout.readline()
        )
        self.standbys = {self.ready, self.stopped, self.importing}

    def left(self) -> set[int]:
        """The standbys that live."""
        return self.standbys & processes.living().keys()

    def end(self) -> None:
        for pid in {self.guardian, *self.standbys} & processes.living().keys():
            os.kill(pid, signal.SIGKILL)
        with self.process:
            self.process.kill()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    (tmp_path / "s.py").write_text("")
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(300)")
    made = Agent(tmp_path / "s.py")
    yield made
    made.end()


def test_the_next_agent_ends_those_whose_guardian_was_killed_too(agent: Agent) -> None:
    assert agent.left() == agent.standbys
    assert processes.orphans(agent.marks[processes.NODE_ID], "job") == []
    os.kill(agent.guardian, signal.SIGKILL)
    agent.process.kill()
    agent.process.wait()
    wait_for(lambda: agent.ready not in processes.living(), "the end of the one that can notice")
    assert agent.left() == {agent.stopped, agent.importing}
    node_id = agent.marks[processes.NODE_ID]
    assert set(processes.orphans(node_id, "job")) == agent.left()
    assert processes.orphans(node_id, "another job") == []
    assert processes.kill_tree(lambda: processes.orphans(node_id, "job")) == []
    assert agent.left() == set()


def test_clearing_a_round_ends_workers_only(tmp_path: Path) -> None:
    """Even those that were standbys, and what they have started."""
    (tmp_path / "s.py").write_text(
        "import subprocess, time\nsubprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "print('up', flush=True)\ntime.sleep(300)"
    )
    program = standbys.program(str(tmp_path / "s.py"))
    worker_to_be, stays = standbys.ready(program, []), standbys.ready(program, [])
    importing = Standby(program, [])
    incarnation = standbys.MARKS[processes.INCARNATION]
    with standbys.outputs(tmp_path) as streams:
        worker = worker_to_be.take(standbys.in_round(program), *streams)
    try:
        wait_for((tmp_path / "stdout").read_text, "the worker's start")
        assert len(processes.marked(incarnation)) == 4, "the worker, its child and two standbys"
        assert (
            processes.kill_all_of(incarnation, kept=lambda: [one.process.pid for one in (stays, importing)])
            == []
        )
        assert worker.wait(10) == -signal.SIGKILL
        assert {stays.process.pid, importing.process.pid} <= processes.living().keys()
        assert processes.kill_all_of(incarnation) == []
    finally:
        assert [one.end() for one in (stays, importing)] == [-signal.SIGKILL] * 2
        assert processes.marked(incarnation) == []
