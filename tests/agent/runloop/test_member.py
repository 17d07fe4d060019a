"""The run loop with a launch whose processes come with a second `start`, and whose ends are kept back."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from tests.agent.rig import Make, OtherNode, Rig, soon

from hetagent.errors import CommandError
from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import WorkerCommand

PATIENCE_S = 2.0
SPEC = {"min_nodes": 2, "max_nodes": 2, "max_restarts": 1, "lease_s": 60.0}


class Member(Launch):
    """What the master says is run in a shell; its end is kept back for a while."""

    one_per_node = True
    wants_daemon = True

    def __init__(self) -> None:
        super().__init__(None)
        self.begun: list[tuple[int, bool]] = []
        self.ends = 0

    def begin(self, assignment: Assignment) -> WorkerCommand | None:
        words = assignment.start.daemon
        self.begun.append((assignment.round, words is not None))
        if words is None:
            return None
        if words[1] == "refused":
            raise CommandError("this node does not run that")
        return WorkerCommand("/bin/sh", ("-c", words[1]), is_python=True)

    def environ(self, assignment: Assignment, local_rank: int) -> Mapping[str, str | None]:
        return {"RANK": None}

    def failure_report_delay_s(self, assignment: Assignment, *, failed: bool) -> float:
        return PATIENCE_S

    def end(self) -> None:
        self.ends += 1


class Round(OtherNode):
    """A rig as the second node of a group, whose master is this object."""

    def __init__(self, made: Rig, launch: Member, listener: socket.socket) -> None:
        super().__init__(made, "0", listener.getsockname()[1], **SPEC, stop_timeout_s=5.0)
        self.launch = launch
        session = made.line._session
        session.offer = replace(session.offer, wants_daemon=True)

    def daemon(self, script: str, number: int = 1) -> None:
        soon(lambda: (number, False) in self.launch.begun, f"round {number}")
        words = ["orted", script]
        self.ask("POST", "/nodes/a/daemon", master="0", incarnation="m", round=number, words=words)

    def state(self) -> str:
        nodes = {node["node_id"]: node["state"] for node in self.rig.group()["nodes"]}
        return str(nodes.get("a"))


@pytest.fixture
def begun(rig: Make) -> Iterator[Round]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        launch = Member()
        yield Round(rig("unused", launch=launch, **SPEC), launch, listener)


def test_the_second_start_brings_the_processes_and_their_end_is_kept_back(begun: Round) -> None:
    seen: list[str] = []
    status = begun.rig.run(
        begun.ready,
        lambda: soon(lambda: begun.launch.begun == [(1, False)], "the first start"),
        lambda: begun.reports("started"),
        lambda: seen.append(begun.state()),
        lambda: begun.daemon(f'test -z "$RANK" && touch {begun.rig.folder}/ran'),
        begun.rig.appears("ran"),
        lambda: soon(lambda: begun.state() == "running", "running"),
        lambda: seen.append(begun.state()),
        lambda: soon(lambda: begun.state() == "succeeded", "succeeded"),
        lambda: begun.reports("succeeded"),
    )
    assert status == 0
    assert seen == ["starting", "running"], "its end is not told at once"
    assert begun.launch.begun == [(1, False), (1, True)]
    assert begun.launch.ends > 0
