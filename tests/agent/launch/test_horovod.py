"""`--launch horovod` without Horovod: the workers' environment, and what is refused. With it: tests/horovod/."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.workers.test_store import start

from hetagent.errors import CommandError
from hetagent.launch.base import Assignment, LaunchOptions
from hetagent.launch.command import WorkerCommand
from hetagent.launch.horovod import HorovodLaunch, rank_env
from hetagent.launch.node.program import PerNodeLaunch
from hetagent.node import network
from hetrdzv.protocol.directive import Member

COMMAND = WorkerCommand("/bin/true", (), is_python=False)


def members(*slots: int) -> list[Member]:
    """Nodes a, b, c, ... of a round, with these slots, at 10.0.0.1, 10.0.0.2, ..."""
    offsets = itertools.accumulate(slots, initial=0)
    return [
        Member(
            incarnation="1",
            node_id="abcdefgh"[i],
            group_rank=i,
            rank_offset=offset,
            slots=n,
            address=f"10.0.0.{i + 1}",
        )
        for i, (n, offset) in enumerate(zip(slots, offsets, strict=False))
    ]


def assignment(
    node: str, *slots: int, master: str = "10.0.0.1", mine: str | None = None, **changes: Any
) -> Assignment:
    """A node's part of a round of these slots; its address is `mine` where given."""
    round_members = members(*slots)
    i = "abcdefgh".index(node)
    if mine is not None:
        round_members[i] = replace(round_members[i], address=mine)
    of = start("a", 1111, master).start
    assert of is not None
    world = {"role_world_size": sum(slots), "world_size": sum(slots), "nnodes": len(slots)}
    place = {
        "group_rank": i,
        "rank_offset": round_members[i].rank_offset,
        "slots": slots[i],
        "role_offset": 0,
    }
    hosts = {"master": replace(of.master, script_port=2222), "members": round_members}
    made: dict[str, Any] = {**world, **place, **hosts, **changes}
    return Assignment(group="job", node_id=node, round=1, start=replace(of, **made))


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> HorovodLaunch:
    """The launch, with a Python that claims to have Horovod."""
    monkeypatch.setenv("PYTHON_EXEC", "/bin/true")
    return HorovodLaunch(COMMAND)


def test_ranks_on_nodes_with_2_1_and_3_slots() -> None:
    place = ("RANK", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    found = {}
    for member in members(2, 1, 3):
        for local_rank in range(member.slots):
            env = rank_env(members(2, 1, 3), member.node_id, local_rank)
            assert (env["HOROVOD_HOSTNAME"], env["HOROVOD_SIZE"]) == (member.node_id, "6")
            found[member.node_id, local_rank] = tuple(int(env[f"HOROVOD_{name}"]) for name in place)
    assert found == {
        ("a", 0): (0, 0, 2, 0, 3),
        ("a", 1): (1, 1, 2, 0, 2),
        ("b", 0): (2, 0, 1, 1, 3),
        ("c", 0): (3, 0, 3, 2, 3),
        ("c", 1): (4, 1, 3, 1, 2),
        ("c", 2): (5, 2, 3, 0, 1),
    }


def test_a_worker_is_told_to_meet_over_gloo_at_the_masters_script_port(
    launch: HorovodLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)
    env = launch.worker_env(assignment("b", 2, 1, mine="127.0.0.1"), 0)
    assert {name: value for name, value in env.items() if "GLOO" in name or "gloo" in str(value)} == {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "2222",
        "HOROVOD_GLOO_IFACE": "lo",
    }
    assert env["HOROVOD_RANK"] == "2"
    behind_a_router = assignment("b", 2, 1, mine="192.0.2.1")
    assert launch.worker_env(behind_a_router, 0)["HOROVOD_GLOO_IFACE"] is None
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "ib0")
    assert launch.worker_env(behind_a_router, 0)["HOROVOD_GLOO_IFACE"] == "ib0"
    isolated = HorovodLaunch(COMMAND, LaunchOptions(slots=2, visible="3,5", isolate_gpus=True))
    assert isolated.worker_env(assignment("a", 2, 1), 1)["CUDA_VISIBLE_DEVICES"] == "5"


def test_only_the_master_gives_its_script_port_away(launch: HorovodLaunch) -> None:
    for node, given, one in (("a", True, launch), ("b", False, launch), ("a", True, PerNodeLaunch(COMMAND))):
        part = assignment(node, 2, 1)
        with network.hold_port("127.0.0.1", None) as held:
            part.script_port = held
            assert one.begin(part) == COMMAND
            one.end()
            assert (part.script_port is None) is given
            assert (held.fileno() == -1) is given


def test_a_master_at_an_ipv6_address_is_refused(launch: HorovodLaunch) -> None:
    with pytest.raises(
        CommandError, match=r"IPv4 only, but the master 'a' offers fd00::1: start .* --local-addr"
    ):
        launch.begin(assignment("b", 2, 1, master="fd00::1"))


def test_without_horovod_a_node_does_not_join_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"  # with the standard library only
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    for interpreter, why in (
        (str(python), "ModuleNotFoundError: No module named 'horovod'"),
        ("/nowhere/python", "[Errno 2] No such file or directory: '/nowhere/python'"),
        ("/bin/false", "exit status 1"),
    ):
        monkeypatch.setenv("PYTHON_EXEC", interpreter)
        with pytest.raises(CommandError) as refused:
            HorovodLaunch(COMMAND)
        assert f"{interpreter}, which cannot import it ({why}): run `make horovod`" in str(refused.value)
