"""`--launch node`: a master whose program opens its store elsewhere is warned of."""

import os
import socket

import pytest

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.launch.node.program import PerNode
from hetrdzv.protocol.directive import MasterReply, StartReply


def assignment(node_id: str, port: int) -> Assignment:
    """A node's part of a round whose master is `a`, with so few slots that no worker is missed."""
    start = StartReply(
        group_rank=0,
        rank_offset=0,
        slots=0,
        role_offset=0,
        role_world_size=2,
        world_size=2,
        nnodes=2,
        restart_count=0,
        max_restarts=0,
        master=MasterReply(node_id="a", address="10.0.0.1", port=1111, script_port=port),
    )
    return Assignment(group="job", node_id=node_id, round=1, start=start)


@pytest.mark.parametrize("slurm", [False, True])
def test_a_master_that_nobody_can_meet_is_warned_of(monkeypatch: pytest.MonkeyPatch, slurm: bool) -> None:
    """The program may have found another place, such as the one that Slurm's variables name."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if slurm:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    launch = PerNode(WorkerCommand("python", ("x",), is_python=True))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert launch.look(assignment("a", port), os.getpid()) is None
    said = launch.look(assignment("a", port), os.getpid())
    assert said is not None
    assert f"does not listen on port {port}, where the processes of all nodes should meet" in said
    assert ("Slurm's variables" in said) == slurm
    assert "pass {init_method}, {rank_offset} and {world_size}" in said
    assert launch.look(assignment("b", port), os.getpid()) is None, "the master's agent says it"
