"""The agent's part in the snapshots of each round, with stand-ins for workers."""

import json
import os
import select
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest
from tests.agent.rig import Make, Rig, soon
from tests.agent.snapshots.node import standin
from tests.agent.snapshots.node.standin import part, put
from tests.agent.snapshots.node.test_handover import held
from tests.agent.workers.test_store import start

from hetagent.health.health_checks import HealthResult
from hetagent.health.node_check import NodeCheck
from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.node.network import hold_port
from hetagent.node.processes.identity import AgentIdentity
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import Report
from hetagent.snapshots import folder, save_request
from hetagent.snapshots.folder import FOLDER
from hetagent.snapshots.node import files, reporter
from hetagent.snapshots.node.disk import DiskWriter
from hetagent.snapshots.node.folder import NodeFolder
from hetagent.snapshots.node.handover import SERVES_S, serving_time_s
from hetagent.snapshots.node.hook import SnapshotHook
from hetagent.workers.processes import Workers
from hetagent.workers.starter import WorkerExit
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.requests import ReportRequest
from hetrdzv.protocol.snapshots import (
    SnapshotId,
    SnapshotInventory,
    SnapshotSource,
    SnapshotsReply,
    SnapshotsRequest,
    StartSnapshot,
)
from hetrdzv.protocol.states import DirectiveKind

COMMAND = WorkerCommand("/bin/true", (), is_python=False)


class Told:
    """A line that keeps what it is told."""

    def __init__(self) -> None:
        self.offered: list[SnapshotInventory] = []
        self.says: dict[str, Any] = {"code": "last"}
        self.parted: list[ReportRequest] = []
        self.asked: list[tuple[SnapshotsRequest, Future[SnapshotsReply]]] = []

    @property
    def session(self) -> Any:
        says = replace(start("a", 4), kind=DirectiveKind.EXIT, start=None, **self.says)
        return Namespace(newest_directive=says, may_be_member=True)

    def announce_leave(self, report: Report[Directive], *, workers_gone: bool) -> None:
        assert workers_gone
        self.parted.append(cast(ReportRequest, report.body(incarnation="i", age_s=0.0)))

    def update_offer(self, *, snapshots: SnapshotInventory) -> None:
        self.offered.append(snapshots)

    def ask(self, message: Report[SnapshotsReply]) -> "Future[SnapshotsReply]":
        answer: Future[SnapshotsReply] = Future()
        body = cast(SnapshotsRequest, message.body(incarnation="i"))
        self.asked.append((codec.validate_value(SnapshotsRequest, body), answer))
        return answer


class Ran:
    """Workers that run, or have ended."""

    def __init__(self, *living: int, exits: tuple[WorkerExit, ...] = ()) -> None:
        self.alive = dict.fromkeys(living, 1)
        self.exits = exits

    @property
    def running(self) -> bool:
        return bool(self.alive)


def hook(
    folder: NodeFolder,
    line: ServerConnection,
    log: Callable[[str], None],
    *,
    serves: bool = False,
    to: Path | None = None,
) -> SnapshotHook:
    context: Any = Namespace(
        identity=AgentIdentity("g", "a", "1"),
        tell=log,
        launch=Namespace(one_per_node=False),
        options=Namespace(standalone=not serves, spec={}),
        address=Namespace(address="127.0.0.1"),
        hold_port=lambda: hold_port("127.0.0.1", None),
    )
    options: Any = Namespace(memory=1000, every_s=30, to=to, to_every_s=600, keep=3)
    return SnapshotHook(context, options, line, folder)


class Node:
    """The hook of a node with two workers, ranks 2 and 3 of 4 unless a test says otherwise."""

    def __init__(self, parent: Path, serves: bool = False, to: Path | None = None) -> None:
        self.line, self.said = Told(), list[str]()
        self.folder = NodeFolder(parent, "g", "a", ())
        self.path = self.folder.path
        line = cast(ServerConnection, self.line)
        self.hook = hook(self.folder, line, self.said.append, serves=serves, to=to)
        self.server = self.hook._server

    def enters(
        self, number: int = 4, chosen: StartSnapshot | None = None, nnodes: int = 1, **more: Any
    ) -> None:
        """It takes part in a round, whose workers run."""
        directive = start("a", number)
        assert directive.start is not None
        more = {"rank_offset": 2, "slots": 2, "world_size": 4, "origin": "job1", **more}
        begun = replace(directive.start, nnodes=nnodes, snapshot=chosen, **more)
        assignment = Assignment(group="g", node_id="a", round=number, start=begun)
        self.hook.on_round_start(assignment, COMMAND)
        self.works(Ran(0, 1))

    def works(self, workers: Ran) -> None:
        self.hook.on_workers_started(cast(Workers, workers))

    def hears(self, kind: DirectiveKind, **more: Any) -> None:
        self.line.says = more
        self.hook.on_directive(replace(start("a", 4), kind=kind, start=None, **more))

    def leaves(self) -> None:
        """Its agent ends."""
        self.hook.close()
        self.hook.hand_over("SIGTERM", None, lambda: False)
        self.hook.leave(None, lambda: False)

    def opens(self, rank: int = 2) -> int:
        """A worker opens snapshots; returns the end of its pipe that it reads."""
        pipe = self.path / "ask" / str(rank)
        os.mkfifo(pipe)
        return os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def answers(self, rank: int = 2, **more: Any) -> None:
        told = {"step": 120, "why": "", **more}
        put(self.path / "ask" / f"{rank}.done", json.dumps(told))

    def control(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.path / "control.json").read_bytes())
        return told

    def part(self, stamp: tuple[int, int], slot: int = 0, rank: int = 2, **more: Any) -> None:
        part(self.path, slot, stamp, rank, **{"world_size": 4, **more})

    @property
    def offer(self) -> SnapshotInventory:
        return self.line.offered[-1]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Node]]:
    monkeypatch.setattr(reporter, "PAUSE_S", 0.0)
    monkeypatch.setattr(reporter, "NEWS_PAUSE_S", 0.0)
    made: list[Node] = []

    def make(**more: Any) -> Node:
        made.append(Node(tmp_path, **more))
        return made[-1]

    yield make
    for node in made:
        node.leaves()


@pytest.fixture
def node(nodes: Callable[..., Node]) -> Node:
    return nodes()


def test_the_server_is_told_what_workers_write(node: Node) -> None:
    node.enters()
    os.close(node.opens())
    node.part((4, 120))
    soon(lambda: poll(node), "news")
    node.hook.on_wakeup()
    [(request, answer)] = node.line.asked
    assert (request.round, request.inventory.origin) == (4, "job1")
    assert [(held.step, held.whole) for held in request.inventory.held] == [(120, True)]
    assert node.offer == request.inventory, "whatever has this node join again"
    node.part((4, 130), slot=1)
    node.part((4, 140), slot=2)
    node.hook.on_wakeup()
    assert len(node.line.asked) == 1, "one at a time"
    answer.set_result(SnapshotsReply(complete=SnapshotId(round=4, step=120)))
    assert node.hook.due_at() == 0.0
    node.hook.on_wakeup()
    assert node.control()["retained"] == [[4, 140, ""]]
    assert [held.step for held in node.line.asked[1][0].inventory.held] == [140, 130, 120]


def test_the_server_hears_of_a_worker_that_takes_none_while_its_round_runs(node: Node) -> None:
    node.enters()
    os.close(node.opens())
    save_request.write_answer(node.path, 2, "off", why="they need 5 MB")
    soon(lambda: poll(node), "news")
    node.hook.on_wakeup()
    [(request, _)] = node.line.asked
    assert request.inventory.disabled_reason == "they need 5 MB"
    node.hook.on_round_end()
    assert node.offer.disabled_reason == ""
    node.enters(5)
    node.hook.on_wakeup()
    assert node.offer.disabled_reason == ""


def poll(node: Node) -> bool:
    return bool(select.select([node.hook], [], [], 0)[0])


def test_the_next_join_says_what_was_saved_last_and_how_far_workers_had_come(node: Node) -> None:
    node.part((3, 500))
    node.enters(number=4)
    os.close(node.opens())
    node.part((4, 120), slot=1)
    node.answers()
    (node.path / "ask" / "2.step").write_text("123")
    node.hook.on_round_end()
    assert (node.offer.reached, [held.step for held in node.offer.held]) == (123, [120])
    node.hook.on_round_end()
    assert node.offer.reached == 123


def test_a_round_does_not_go_on_where_workers_cannot_be_told_where_to_begin(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other nodes would go on from a snapshot, and these begin from nothing."""
    node.enters()
    node.hook.on_round_end()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_atomic", full)
    with pytest.raises(OSError, match="No space left"):
        node.enters(5, chosen=chosen(node_id="b"), nnodes=2)
    assert not (node.path / "start.json").exists(), "of an earlier round"
    node.hook.on_round_end()
    node.enters(6)
    assert node.said[-1] == "no snapshots in this round: [Errno 28] No space left on device"
    assert node.hook.worker_env(0) == {FOLDER: None}, "or they would save steps as those of round 4"
    monkeypatch.undo()
    node.enters(7)
    assert node.hook.worker_env(0) == {}


def test_the_next_agent_declares_what_is_left_and_how_far_killed_workers_had_come(
    nodes: Callable[..., Node],
) -> None:
    first = nodes()
    first.enters()
    first.part((4, 120))
    (first.path / "ask" / "2.step").write_text("131")
    first.hook.on_round_end()
    first.leaves()
    second = nodes(serves=True)
    assert second.offer.held == first.offer.held != ()
    assert (second.offer.origin, second.offer.reached) == ("job1", 131)
    assert (second.offer.port, second.offer.key) == (second.server.port, second.server.key)
    assert second.offer.port > 0, "also for those that may come"


def chosen(step: int = 120, node_id: str = "a") -> StartSnapshot:
    source = SnapshotSource(node_id=node_id, address="127.0.0.1", port=7, whole=True)
    return StartSnapshot(round=3, step=step, world_size=4, lost=2, sources=(source,))


def test_workers_find_from_where_to_begin(node: Node) -> None:
    node.enters(number=3)
    node.part((3, 120))
    node.hook.on_round_end()
    node.enters(chosen=chosen())
    told = json.loads((node.path / "start.json").read_bytes())
    assert (told["step"], told["sources"][0]["path"]) == (120, str(node.path / "3-120"))
    kept = {"must_wait": False, "retained": [[3, 120, ""]], "to_disk": False}
    assert node.control() == {"round": 4, "ranks": [2, 3], "every_s": 30, "memory": 1000, **kept}
    assert "round 4: begins from the snapshot of step 120, 2 before the last" in node.said
    node.enters(chosen=replace(chosen(), lost=None))
    unknown = "how many steps are lost is not known"
    assert node.said[-1] == f"round 4: begins from the snapshot of step 120; {unknown}"
    assert node.hook.static_env({}) == {"HET_SNAPSHOTS": str(node.path)}


def test_what_is_being_written_to_disk_makes_room_before_what_others_may_know_to_be_safe(
    nodes: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = nodes(to=tmp_path / "disk")
    disk: Any = node.hook._disk
    monkeypatch.setattr(disk, "write_last", lambda *_: "")
    node.enters(nnodes=2)
    node.part((4, 120), sharded=True)
    node.hook.on_wakeup()
    node.line.asked[0][1].set_result(SnapshotsReply(complete=SnapshotId(round=4, step=120)))
    node.part((4, 140), slot=1, sharded=True)
    safe, pending = [4, 120, ""], [4, 140, ""]
    for step, retained in ((130, [safe, pending, [4, 130, ""]]), (120, [safe, pending])):
        disk.writing = folder.SnapshotId(4, step)
        node.hook.on_wakeup()
        assert node.control()["retained"] == retained


@pytest.mark.parametrize("whose", ["a", "b", ""])
def test_what_cannot_be_loaded_ends_the_round_and_is_refused_once_it_fails_again(
    node: Node, whose: str
) -> None:
    node.enters(number=3)
    node.part((3, 120))
    node.hook.on_round_end()
    node.enters(chosen=chosen(node_id=whose))
    assert node.hook.abandon_reason() == ""
    put(node.path / "ask" / "0.bad", f'{{"stamp": "3-120", "node": "{whose}", "why": "it is short"}}')
    which = f"the copy on node '{whose}'" if whose else "no copy"
    assert f"of step 120: {which} is of" in node.hook.abandon_reason()
    node.hook.on_round_end()
    assert node.offer.refused == (), "perhaps it, or a disk, was not reached"
    node.enters(chosen=chosen(node_id=whose))
    put(node.path / "ask" / "0.bad", '{"stamp": "3-120", "node": "", "why": "nobody has it"}')
    assert "no copy is of use (nobody has it)" in node.hook.abandon_reason()
    node.hook.on_round_end()
    assert (node.offer.refused, len(node.offer.held)) == ((SnapshotId(round=3, step=120),), 1)


def test_those_who_listen_and_run_are_asked_and_waited_for_until_they_answer_or_die(node: Node) -> None:
    node.enters()
    assert not node.hook.supports_graceful_stop()
    node.hook.have_workers_save(60.0)
    assert node.hook.save_deadline() is None, "nobody has opened snapshots"
    pipes = [node.opens(2), node.opens(3)]
    os.close(node.opens(7))
    assert node.hook.supports_graceful_stop()
    node.works(Ran(0))
    node.hook.have_workers_save(60.0)
    until = node.hook.save_deadline()
    assert until is not None
    assert [os.read(pipe, 9) for pipe in pipes] == [b"!", b""], "rank 3 has ended"
    node.answers()
    assert node.hook.save_deadline() is None
    node.works(Ran(0, 1))
    node.hook.have_workers_save(60.0)
    node.answers(2, step=None, why="no snapshot was ever taken")
    assert node.hook.save_deadline() is not None
    node.works(Ran(0))
    assert node.hook.save_deadline() is None
    assert node.said == ["rank 2 has not saved: no snapshot was ever taken"]
    for pipe in pipes:
        os.close(pipe)


@pytest.mark.parametrize(
    ("codes", "kept"),
    [(["no server"], True), (["drained", "left"], False), (["drained", "last"], True)],
)
def test_an_agent_that_leaves_keeps_them_unless_others_go_on_and_its_node_is_drained(
    node: Node, codes: Sequence[str], kept: bool
) -> None:
    node.enters(nnodes=2)
    node.part((4, 120))
    node.hook.on_round_end()
    node.hears(DirectiveKind.EXIT, code=codes[0])
    node.line.says = {"code": codes[-1]}
    node.leaves()
    assert node.path.exists() is kept
    assert len(node.line.parted) == len(codes) - 1, "who is drained asks whether others go on"


@pytest.mark.parametrize(
    ("code", "outcome", "writes", "kept"),
    [
        ("drained", None, True, True),
        ("failed", "failed", True, False),
        ("last", None, True, True),
        ("left", None, False, True),
        ("replaced", None, False, True),
    ],
)
def test_a_last_step_is_written_unless_others_go_on_and_else_kept_while_the_job_does(
    nodes: Callable[..., Node],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    outcome: str | None,
    writes: bool,
    kept: bool,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")  # writes nothing
    node = nodes(to=tmp_path / "disk")
    node.enters(nnodes=2)
    node.part((4, 120))
    node.hook.on_round_end()
    node.hears(DirectiveKind.EXIT, code=code, outcome=outcome)
    node.leaves()
    assert any("step 120 is not on disk" in text for text in node.said) is writes
    assert node.path.exists() is kept


def test_a_job_that_is_over_while_a_node_leaves_leaves_nothing(
    nodes: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = nodes(serves=True)
    node.enters()
    node.part((4, 120))
    node.hook.on_round_end()
    succeeded = {"code": "succeeded", "outcome": "succeeded"}
    monkeypatch.setattr(node.line, "announce_leave", lambda *_, **__: setattr(node.line, "says", succeeded))
    node.hook.hand_over("SIGTERM", time.monotonic() + 30, lambda: False)
    assert node.line.says == succeeded
    node.leaves()
    assert not node.path.exists()


WORKER = f"exec {sys.executable} -S {standin.__file__}"


def furnished(made: Rig, parent: Path) -> SnapshotHook:
    """Give an agent the hook."""
    folder = NodeFolder(parent, made.group_id, "a", ())
    made.parts.snapshots = hook(folder, made.line, made.said.append)
    return made.parts.snapshots


def offered(made: Rig) -> SnapshotInventory:
    found = made.line.session.offer.snapshots
    assert found is not None
    return found


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    (tmp_path / "snapshots").mkdir()
    return tmp_path / "snapshots"


def joins(made: Rig) -> list[SnapshotInventory]:
    """What the agent declares with each join from now on."""
    told: list[SnapshotInventory] = []
    join = made.line.set_ready

    def ready(*args: Any) -> None:
        made.line._call_in_thread(lambda now: told.append(offered(made)))
        join(*args)

    made.line.set_ready = ready  # type: ignore[method-assign]
    return told


def test_workers_save_before_a_restart_stops_them(rig: Make, parent: Path) -> None:
    made = rig(f"[ $HET_ROUND = 2 ] && exit 0; {WORKER} 120")
    furnished(made, parent)
    told = joins(made)
    assert made.run(made.appears("up.0.1"), made.asks("restart")) == 0
    assert [(held.step, held.round, held.whole) for held in told[1].held] == [(120, 1, True)]
    assert told[1].reached == 120
    assert list(parent.iterdir()) == [], "the job is over"


def test_a_second_signal_waits_for_nobody(rig: Make, parent: Path) -> None:
    opens = "trap '' TERM INT; P=$HET_SNAPSHOTS/ask/0; mkfifo $P; exec 7<>$P; touch ready"
    made = rig(f"{opens}; while :; do sleep 1; done", stop_timeout_s=60.0)
    furnished(made, parent)
    saves = lambda: soon(lambda: made.agent._local.phase == "saving")  # noqa: E731
    begun: list[float] = []
    again = [lambda: begun.append(time.monotonic()), made.gets(signal.SIGINT)]
    made.run(made.appears("ready"), made.gets(signal.SIGINT), saves, *again)
    assert time.monotonic() < begun[0] + 5.0, "not for as long as they might save"
    assert any("killing the workers" in text for text in made.said)
    assert "rank 0 has not saved before it was stopped" in made.said


def test_a_second_signal_ends_the_handover_and_not_the_goodbye(
    rig: Make, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig("touch up; sleep 100")

    def wait(why: str, until: float | None, is_hurried: Callable[[], bool]) -> None:
        assert not is_hurried()
        os.kill(os.getpid(), signal.SIGTERM)
        soon(is_hurried, "the second signal")

    monkeypatch.setattr(furnished(made, parent), "hand_over", wait)
    made.run(made.appears("up"), made.gets(signal.SIGTERM))
    [node] = made.group()["nodes"]
    assert (node["state"], node["reason"]["message"]) == ("left", "its agent got SIGTERM")


def test_a_node_that_leaves_since_something_is_wrong_with_it_serves_what_others_lack(
    rig: Make, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fatal = HealthResult("its GPU 3: GPU is lost", fatal=True)
    monkeypatch.setattr(NodeCheck, "run", lambda self, cancelled: fatal)
    made, limits = rig("exit 9", check="true"), list[float | None]()
    monkeypatch.setattr(furnished(made, parent), "hand_over", lambda why, until, _: limits.append(until))
    made.run()
    assert limits == [inf], "until the others have it"
    assert serving_time_s(held(), inf, 3, alone=False) == SERVES_S


def test_while_the_last_step_goes_to_disk_a_node_that_joins_has_it_from_memory(
    nodes: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began from an older one, as the newest snapshot was complete on disk a moment later."""
    node, ports = nodes(serves=True, to=tmp_path / "disk"), list[int]()
    node.enters(nnodes=2)
    node.part((4, 120))
    node.hook.on_round_end()
    monkeypatch.setattr(DiskWriter, "write_last", lambda *_: str(ports.append(node.server.port)))
    node.leaves()
    assert ports[0] > 0
    assert node.server.port == 0


def test_the_server_knows_of_a_node_until_its_last_step_is_written(
    rig: Make, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, order = rig("touch up; sleep 100"), list[str]()
    leave = made.line.leave
    monkeypatch.setattr(furnished(made, parent), "leave", lambda *_: order.append("written") or "")
    monkeypatch.setattr(made.line, "leave", lambda *given: order.append("goodbye") or leave(*given))
    made.run(made.appears("up"), made.gets(signal.SIGTERM))
    assert order == ["written", "goodbye"]


def test_a_copy_that_cannot_be_loaded_costs_no_restart(rig: Make, parent: Path) -> None:
    bad = """echo '{"stamp": "1-9"}' > $HET_SNAPSHOTS/ask/0.bad; exit 1"""
    made = rig(f"[ $HET_ROUND = 3 ] && exit 0; {bad}")
    furnished(made, parent)
    assert made.run() == 0
    assert (made.group()["restarts"], made.group()["round"]) == (0, 3)
    assert offered(made).refused == (SnapshotId(round=1, step=9),)
