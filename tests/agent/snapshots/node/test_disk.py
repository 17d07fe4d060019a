"""What an agent does about snapshots on disk, but for the writing itself: tests/agent/snapshots, tests/e2e."""

import math
import threading
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.fuse import DeadFiles

from hetagent.errors import UsageError
from hetagent.node.processes.identity import AgentIdentity
from hetagent.snapshots.folder import INDEX, Index, SnapshotFiles, SnapshotId, write_atomic
from hetagent.snapshots.node import catalog as catalogs
from hetagent.snapshots.node.catalog import DiskCatalog
from hetagent.snapshots.node.disk import DiskWriter
from hetagent.snapshots.node.hook import describe_start
from hetagent.snapshots.node.to_disk import prune
from hetagent.snapshots.on_disk import METADATA_FILE, SnapshotMetadata, directory_name
from hetrdzv.protocol.snapshots import DiskSnapshot, SnapshotWriteFailure, StartSnapshot
from hetrdzv.protocol.snapshots import SnapshotId as Declared

JOB = "0f3a"


class Node:
    """A node and its directory."""

    def __init__(self, path: Path) -> None:
        self.said: list[str] = []
        self.memory = SnapshotFiles(path / "memory")
        identity = AgentIdentity("g", "a", "1")
        self.catalog = DiskCatalog(path / "disk", self.said.append)
        options: Any = Namespace(to_every_s=600, keep=2)
        self.disk = DiskWriter(self.catalog, options, self.memory, identity, self.said.append)
        self.catalog.begin_round(JOB)

    def holds(self, step: int, *ranks: int) -> SnapshotId:
        stamp = SnapshotId(1, step)
        slot = self.memory.claim_slot(stamp, sharded=True)
        for rank in ranks:
            index = Index(stamp=stamp, rank=rank, writer=rank, world_size=2, sharded=False, shared=True)
            write_atomic(slot.path / INDEX.format(rank), index.to_json())
        return stamp

    def has(
        self,
        step: int,
        *,
        complete: bool = True,
        number: int = 1,
        job: str = JOB,
        at: int = 0,
        after: Sequence[str] = (),
    ) -> Path:
        path = self.catalog.path / directory_name(SnapshotId(number, step, job))
        path.mkdir(parents=True)
        if complete:
            mark = SnapshotMetadata(
                world_size=2, sharded=False, size=7, ranks={0: "d"}, after=after, written_at=at
            )
            (path / METADATA_FILE).write_bytes(mark.to_json())
        return path

    def source(self, step: int) -> Any:
        """Where workers read a snapshot that a round begins from."""
        return self.catalog.begin_round(JOB, chosen(step))

    def declares(self) -> list[tuple[str, int]]:
        self.catalog.refresh(60.0)
        return [(one.origin, one.step) for one in self.catalog.list_newest()]

    def writes_last(self, *ranks: int, within_s: float = 60.0) -> str:
        return self.disk.write_last(lambda number: ranks, time.monotonic() + within_s, lambda: False)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def chosen(step: int, number: int = 1, job: str = JOB) -> StartSnapshot:
    return StartSnapshot(round=number, step=step, world_size=2, on_disk=True, origin=job)


def test_the_newest_that_are_complete_are_told(node: Node) -> None:
    for step in (10, 30, 20, 50, 40):
        node.has(step)
    node.has(60, complete=False)
    (node.catalog.path / "notes.txt").write_text("mine")
    assert node.catalog.list_newest() == ()
    node.catalog.refresh(60.0)
    assert node.catalog.list_newest() == tuple(
        DiskSnapshot(round=1, step=step, origin=JOB, world_size=2, size=7) for step in (50, 40, 30, 20)
    )
    source = node.source(40)
    assert (source["path"], source["ranks"]) == (
        str(node.catalog.path / "step-40-round-1-job-0f3a"),
        {"0": "d"},
    )
    assert node.source(60)["ranks"] == {}


def test_the_oldest_are_removed_and_what_is_not_ours_stays(node: Node) -> None:
    """After `hetctl restart --from`, for instance, step 30 of the first round is older than 20 of the second."""
    paths = {step: node.has(step, complete=step != 15) for step in (10, 15, 20, 30)}
    newer = [node.has(20, number=2), node.has(40, number=2, complete=False)]
    other = node.catalog.path / "step-one"
    other.mkdir()
    prune(node.catalog.path, 2, [JOB])
    assert [step for step, path in paths.items() if path.exists()] == [30]
    assert all(path.exists() for path in (*newer, other))
    assert node.declares() == [(JOB, 20), (JOB, 30)]


def test_a_job_that_began_anew_neither_loses_its_own_nor_takes_those_of_another(node: Node) -> None:
    former = [node.has(step, job="aaaa", at=1) for step in (100, 200, 300)]
    own = [node.has(step, at=2) for step in (10, 20, 30)]
    assert node.declares()[:3] == [(JOB, 30), (JOB, 20), (JOB, 10)]
    node.catalog.begin_round(JOB)
    prune(node.catalog.path, 2, [*node.catalog.ancestors, JOB])
    assert all(path.exists() for path in former)
    assert [path.exists() for path in own] == [False, True, True]


def test_a_job_that_goes_on_with_others_prunes_theirs(node: Node) -> None:
    other = node.has(500, job="bbbb", at=1)
    former = [node.has(step, number=7, job="aaaa", at=2, after=["older"]) for step in (100, 200)]
    assert node.declares() == [("aaaa", 200), ("aaaa", 100), ("bbbb", 500)], "whoever wrote last"
    node.catalog.begin_round(JOB, chosen(200, 7, "aaaa"))
    assert node.catalog.ancestors == ["older", "aaaa"]
    own = node.has(210, at=3)
    prune(node.catalog.path, 2, [*node.catalog.ancestors, JOB])
    assert [path.exists() for path in (*former, own, other)] == [False, True, True, True]


def test_where_a_round_begins_is_said_with_its_age(node: Node) -> None:
    path = node.has(20, job="aaaa", at=int(time.time()) - 200)
    node.declares()
    text = describe_start(chosen(20, job="aaaa"), node.catalog, 0)
    assert text.startswith(f"begins from the snapshot of step 20 on disk, {path}, written 3 min ago")
    text = f"training begins from nothing: no usable snapshot in {node.catalog.path}"
    assert describe_start(None, node.catalog, 0) == text
    assert describe_start(None, None, 0) == ""


def test_nothing_is_read_where_others_can_write(node: Node, tmp_path: Path) -> None:
    node.has(10)
    others = [node.has(20), node.has(30) / METADATA_FILE]
    for path in others:
        path.chmod(0o777)
    assert node.declares() == [(JOB, 10)]
    for path, text in zip(others, sorted(node.said), strict=True):
        assert text.startswith(f"a snapshot is ignored: others can write to {path} (mode 777), ")
        assert text.endswith(f": chmod -R go-w {path}")
    for safe, found in ((False, {}), (True, {"0": "d"})):
        (node.catalog.path / directory_name(SnapshotId(1, 10, JOB))).chmod(0o755 if safe else 0o777)
        assert node.source(10)["ranks"] == found, "as it is when it is used"
    node.catalog.path.chmod(0o775)
    assert node.source(10)["ranks"] == {}
    with pytest.raises(UsageError, match=r"others can write to .*: chmod -R go-w"):
        Node(tmp_path)


def test_a_directory_where_others_can_write_is_refused_at_once(tmp_path: Path) -> None:
    """Before the group has one of its own there: else only the first snapshot to be written would tell."""
    tmp_path.chmod(0o777)
    with pytest.raises(
        UsageError, match=rf"others can write to {tmp_path} .*: take a new directory below it"
    ):
        DiskCatalog(tmp_path / "g", print)


def test_a_file_server_that_does_not_answer_keeps_nobody(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hang(path: Path) -> dict[SnapshotId, Path]:
        answers.wait()
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(catalogs, "list_directories", hang)
    node.disk.write_due(1, [0])
    assert node.writes_last(within_s=0.1) == ""
    answers.set()
    for _ in range(2):
        node.catalog.refresh(60.0)
    assert node.said == [f"cannot see the snapshots in {node.catalog.path}: Permission denied"]
    with pytest.raises(UsageError, match="Permission denied"):  # a job must not begin anew for that
        Node(node.catalog.path.parent)


def test_the_first_answer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Node(tmp_path).has(10)
    monkeypatch.setattr(catalogs, "LONG_SCAN_S", 0.05)
    slow = catalogs.list_directories

    def answers_late(path: Path) -> dict[SnapshotId, Path]:
        time.sleep(0.3)
        return slow(path)

    monkeypatch.setattr(catalogs, "list_directories", answers_late)
    node = Node(tmp_path)
    assert [one.step for one in node.catalog.list_newest()] == [10]
    assert node.said == [f"waiting until {node.catalog.path} answers, where snapshots may be"]


def test_what_workers_took_for_the_disk_is_written_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr(node.disk, "_start_writer", lambda slot, *_: begun.append(slot.stamp.step))
    node.holds(10, 1)
    node.disk.write_due(1, [1])
    assert begun == [], "that is only for memory"
    node.memory.claim_slot(SnapshotId(1, 30), to_disk=True)
    node.disk.write_due(1, [1])
    assert begun == [], "its workers are still copying"
    node.holds(30, 1)
    node.disk.write_due(2, [1])
    assert begun == [], "it is of a round that is over"
    assert not node.disk.is_next_wanted
    node.disk._due_at = 0.0
    assert node.disk.is_next_wanted
    node.disk.write_due(1, [1])
    assert begun == [30]
    assert not node.disk.is_next_wanted
    assert node.disk._due_at > time.monotonic() + 590


def test_of_several_for_the_disk_each_node_begins_with_the_oldest(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that write different ones wait for each other's parts, until they give both up."""
    begun: list[int] = []
    monkeypatch.setattr(node.disk, "_start_writer", lambda slot, *_: begun.append(slot.stamp.step))
    held = [SnapshotId(1, step) for step in (30, 10, 20)]
    for stamp in held:
        node.memory.claim_slot(stamp, sharded=True, to_disk=True)
        node.holds(stamp.step, 1)
    for _ in held:
        node.disk.write_due(1, [1])
    assert begun == [10, 20, 30]


def test_what_cannot_be_written_is_said(node: Node) -> None:
    stamp = node.holds(10, 0)
    node.has(9, job="aaaa")
    node.memory.claim_slot(SnapshotId(1, 20))  # a worker was taking it as it ended
    why = "this node has only a part of step 10"
    assert node.writes_last(0) == (f"step 10 is not on disk: {why}; the newest there is step 9")
    assert node.disk.not_written == SnapshotWriteFailure(stamp=Declared(round=1, step=10), why=why)
    assert not (node.catalog.path / directory_name(stamp._replace(origin=JOB))).exists(), (
        "what is torn takes no space"
    )
    assert [text.partition(" to ")[0] for text in node.said] == [
        "writing the snapshot of step 10",
        f"the snapshot of step 10 is not on disk: {why}",
    ]
    assert node.disk.sessions == []


def test_the_last_step_of_one_that_lives_is_newer_than_one_of_all_of_this_node(node: Node) -> None:
    """What all ranks have alike is whole as soon as one of them has saved it."""
    node.holds(10, 0, 1)
    slot = node.memory.claim_slot(SnapshotId(1, 12))
    index = Index(stamp=SnapshotId(1, 12), rank=0, writer=0, world_size=2, sharded=False, shared=False)
    write_atomic(slot.path / INDEX.format(0), index.to_json())
    node.has(12)
    assert node.writes_last(0, 1).startswith("step 12 is on disk: ")


def test_a_step_is_written_for_the_ranks_that_this_node_had_in_its_round(node: Node) -> None:
    """The newest round may not have taken any step yet."""
    node.holds(10, 1)
    node.has(10)
    until = time.monotonic() + 60
    said = node.disk.write_last(lambda number: [1] if number == 1 else [0], until, lambda: False)
    assert said == f"step 10 is on disk: {node.catalog.path / directory_name(SnapshotId(1, 10, JOB))}"
    assert node.said == []


def test_a_disk_that_does_not_answer_keeps_nobody(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for it cannot even be killed."""
    node.holds(10, 0)
    with DeadFiles(tmp_path / "dead") as dead:
        node.catalog.path = dead.folder
        monkeypatch.setattr(node.catalog, "refresh", lambda within_s, again: None)
        said = node.disk.write_last(lambda number: [0], math.inf, dead.asked.is_set)
        assert dead.asked.is_set()
    assert node.disk._process is not None
    node.disk._process.wait()
    assert said == "step 10 is not on disk: there was no time; none is there"
