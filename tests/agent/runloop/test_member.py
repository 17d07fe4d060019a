"""The run loop with a launch whose processes come with a second `start`, and whose ends are kept back."""

import socket
import time
from collections.abc import Mapping

from tests.agent.rig import Make, OtherNode, soon

from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import WorkerCommand

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
        return WorkerCommand("/bin/sh", ("-c", words[1]), is_python=True) if words is not None else None

    def worker_env(self, assignment: Assignment, local_rank: int) -> Mapping[str, str | None]:
        return {"RANK": None}

    def failure_report_delay_s(self, assignment: Assignment, *, failed: bool) -> float:
        return 2.0

    def end(self) -> None:
        self.ends += 1


def test_the_second_start_brings_the_processes_and_their_end_is_kept_back(rig: Make) -> None:
    """The master of the rig's round is another node, which is played here."""
    launch = Member()
    made = rig("unused", launch=launch, **SPEC)
    made.offers(wants_daemon=True)
    words = ["orted", f'test -z "$RANK" && touch {made.folder}/ran']
    seen: list[str] = []

    def state() -> str:
        return next((str(node["state"]) for node in made.group()["nodes"] if node["node_id"] == "a"), "")

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        master = OtherNode(made, "0", listener.getsockname()[1], **SPEC, stop_timeout_s=5.0)
        status = made.run(
            master.ready,
            lambda: soon(lambda: state() == "starting", "a round"),
            lambda: time.sleep(0.3),
            lambda: seen.append(f"begun: {launch.begun}"),  # only once the master is reached
            listener.listen,
            lambda: soon(lambda: launch.begun == [(1, False)], "the first start"),
            lambda: master.reports("started"),
            lambda: seen.append(state()),
            lambda: master.ask("POST", "/nodes/a/daemon", master="0", incarnation="m", round=1, words=words),
            made.appears("ran"),
            lambda: soon(lambda: state() == "running", "running"),
            lambda: seen.append(state()),
            lambda: soon(lambda: state() == "succeeded", "succeeded"),
            lambda: master.reports("succeeded"),
        )
    assert status == 0
    assert seen == ["begun: []", "starting", "running"], "its end is not told at once"
    assert launch.begun == [(1, False), (1, True)]
    assert launch.ends > 0
