"""What an agent does about snapshots on disk, but for the writing itself: tests/agent/snapshots, tests/e2e."""

import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.fuse import DeadFiles

from hetagent.context import Identity
from hetagent.errors import UsageError
from hetagent.snapshots.folder import INDEX, Folder, Index, Stamp, put
from hetagent.snapshots.node import disk as disks
from hetagent.snapshots.node.disk import FIRST_S, Asked, Disk
from hetagent.snapshots.on_disk import MARK, Mark, SnapshotId
from hetagent.snapshots.to_disk import prune
from hetrdzv.protocol.rooms.snapshots import Chosen, NotWritten, OnDisk
from hetrdzv.protocol.rooms.snapshots import Stamp as Declared

JOB = "0f3a"


class Node:
    """A node and its directory."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.said: list[str] = []
        self.memory = Folder(path / "memory")
        asked = Asked(path / "disk", 600, keep)
        self.disk = Disk(asked, self.memory.path, Identity("g", "a", "1"), self.said.append)
        self.disk.is_of(JOB)

    def holds(self, step: int, *ranks: int) -> Stamp:
        stamp = Stamp(1, step)
        slot = self.memory.begin(stamp, sharded=True)
        for rank in ranks:
            index = Index(stamp=stamp, rank=rank, world_size=2, sharded=False, shared=True)
            put(slot.path / INDEX.format(rank), index.written())
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
        path = self.disk.path / SnapshotId(job, number, step).name
        path.mkdir(parents=True)
        if complete:
            mark = Mark(
                stamp=Stamp(number, step),
                world_size=2,
                sharded=False,
                size=7,
                files={"0.json": "d"},
                after=after,
                written_at=at,
            )
            (path / MARK).write_bytes(mark.written())
        return path

    def declares(self) -> list[tuple[str, int]]:
        assert self.disk.list(FIRST_S)
        return [(one.origin, one.step) for one in self.disk.complete()]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_newest_that_are_complete_are_told(node: Node) -> None:
    for step in (10, 30, 20, 50, 40):
        node.has(step)
    node.has(60, complete=False)
    (node.disk.path / "notes.txt").write_text("mine")
    assert node.disk.complete() == ()
    assert node.disk.list(FIRST_S)
    assert node.disk.complete() == tuple(
        OnDisk(round=1, step=step, origin=JOB, world_size=2, size=7) for step in (50, 40, 30, 20)
    )
    source = node.disk.source(chosen(40))
    assert (source["path"], source["ranks"]) == (str(node.disk.path / "step-40-round-1-job-0f3a"), {"0": "d"})
    assert node.disk.source(chosen(60))["ranks"] == {}


def test_the_oldest_are_removed_and_what_is_not_ours_stays(node: Node) -> None:
    paths = {step: node.has(step, complete=step != 15) for step in (10, 15, 20, 30)}
    newer = node.has(40, complete=False)
    other = node.disk.path / "step-one"
    other.mkdir()
    prune(node.disk.path, 2, [JOB])
    assert [step for step, path in paths.items() if path.exists()] == [20, 30]
    assert newer.exists()
    assert other.exists()


def chosen(step: int, number: int = 1, job: str = JOB) -> Chosen:
    return Chosen(round=number, step=step, world_size=2, on_disk=True, origin=job)


def test_a_job_that_went_back_keeps_what_it_writes_then(node: Node) -> None:
    """Since `hetctl restart --from`, for instance: step 30 of the first round is older than 20 of the second."""
    for step in (10, 20, 30):
        node.has(step)
    newer = node.has(20, number=2)
    prune(node.disk.path, 2, [JOB])
    assert newer.exists()
    assert node.declares() == [(JOB, 20), (JOB, 30)]


def test_a_job_that_began_anew_neither_loses_its_own_nor_takes_those_of_another(node: Node) -> None:
    former = [node.has(step, job="aaaa", at=1) for step in (100, 200, 300)]
    own = [node.has(step, at=2) for step in (10, 20, 30)]
    assert node.declares()[:3] == [(JOB, 30), (JOB, 20), (JOB, 10)]
    node.disk.is_of(JOB)
    prune(node.disk.path, 2, [*node.disk._after, JOB])
    assert all(path.exists() for path in former)
    assert [path.exists() for path in own] == [False, True, True]


def test_a_job_that_goes_on_with_others_prunes_theirs(node: Node) -> None:
    other = node.has(500, job="bbbb", at=1)
    former = [node.has(step, number=7, job="aaaa", at=2, after=["older"]) for step in (100, 200)]
    assert node.declares() == [("aaaa", 200), ("aaaa", 100), ("bbbb", 500)], "whoever wrote last"
    node.disk.is_of(JOB, chosen(200, 7, "aaaa"))
    assert node.disk._after == ["older", "aaaa"]
    own = node.has(210, at=3)
    prune(node.disk.path, 2, [*node.disk._after, JOB])
    assert [path.exists() for path in (*former, own, other)] == [False, True, True, True]


def test_the_same_step_of_another_job_is_another_snapshot(node: Node) -> None:
    node.has(10, job="aaaa")
    node.holds(10, 0)
    said = node.disk.write_last([0], time.monotonic() + 60, lambda: False)
    assert said.startswith("step 10 is not on disk: this node does not have all of step 10"), "it was tried"


@pytest.fixture
def begun(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that the node has begun to write."""
    steps: list[int] = []
    monkeypatch.setattr(node.disk, "_begin", lambda stamp, ranks: steps.append(stamp.step))
    return steps


def test_what_workers_took_for_the_disk_is_written_once(node: Node, begun: list[int]) -> None:
    node.holds(10, 1)
    node.disk.look(1, [1])
    assert begun == [], "that is only for memory"
    node.memory.begin(Stamp(1, 30), to_disk=True)
    node.disk.look(1, [1])
    assert begun == [], "its workers are still copying"
    node.holds(30, 1)
    node.disk.look(2, [1])
    assert begun == [], "it is of a round that is over"
    assert not node.disk.wants
    node.disk._due_at = 0.0
    assert node.disk.wants
    node.disk.look(1, [1])
    assert begun == [30]
    assert not node.disk.wants
    assert node.disk._due_at > time.monotonic() + 590


def test_what_its_writer_says_is_said_once_and_the_memory_is_free_again(node: Node) -> None:
    stamp = node.holds(10, 0)
    said = node.disk.write_last([0], time.monotonic() + 60, lambda: False)
    assert said == (
        "step 10 is not on disk: this node does not have all of step 10; it stays in this node's memory, "
        f"{node.memory.path}, and the next agent writes it"
    )
    assert node.disk.is_unsaved()
    assert node.disk.not_written() == NotWritten(
        stamp=Declared(round=1, step=10), why="this node does not have all of step 10"
    )
    assert not (node.disk.path / SnapshotId(JOB, *stamp).name).exists(), "what is torn takes no space"
    assert len(node.said) == 2, node.said
    assert node.said[0].startswith("writing the snapshot of step 10 to ")
    assert node.said[1] == "the snapshot of step 10 is not on disk: this node does not have all of step 10"
    assert node.disk.pid is None
    node.disk.write_last([0], time.monotonic() + 60, lambda: False)
    assert len(node.said) == 2
    assert stamp in node.memory.slots()
    node.disk.write_left()
    assert not node.disk.is_unsaved(), "once"


def test_one_whose_memory_was_taken_meanwhile_is_no_news(node: Node) -> None:
    stamp = node.holds(10, 0)
    slot = node.memory.slots()[stamp]
    newer = Index(stamp=Stamp(1, 20), rank=0, world_size=2, sharded=False, shared=True)
    node.disk._begin(stamp, [0])
    assert node.disk.writing == stamp
    put(slot.path / INDEX.format(0), newer.written())
    while node.disk._process is not None:
        time.sleep(0.01)
        node.disk._ended()
    assert node.said == []
    assert node.disk.wants, "a later one is written at once"


def test_what_is_on_disk_is_said_at_the_end(node: Node) -> None:
    stamp = node.holds(10, 0)
    node.has(10)
    said = node.disk.write_last([0], time.monotonic() + 60, lambda: False)
    assert said == f"step 10 is on disk: {node.disk.path / SnapshotId(JOB, *stamp).name}"
    assert node.said == []


def test_what_a_worker_was_taking_as_it_ended_is_not_the_last_one(node: Node) -> None:
    node.holds(10, 0)
    node.memory.begin(Stamp(1, 20))
    said = node.disk.write_last([0], time.monotonic() + 60, lambda: False)
    assert said.startswith("step 10 is not on disk: this node does not have all of step 10; it stays")
    assert node.disk.is_unsaved()


def test_a_part_that_others_have_not_completed_is_said_as_such(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "LAST_PARTS_S", 0.2)
    node.disk._written.add(node.disk._id(node.holds(10, 1)))
    said = node.disk.write_last([1], time.monotonic() + 60, lambda: False)
    assert said.startswith("step 10 is not on disk: not all nodes have written their parts, as this one has;")
    assert node.disk.is_unsaved()
    assert node.said == []


def test_whoever_has_written_its_part_waits_until_all_have(node: Node) -> None:
    node.disk._written.add(node.disk._id(node.holds(10, 1)))
    threading.Timer(0.5, node.has, [10]).start()
    said = node.disk.write_last([1], time.monotonic() + 60, lambda: False)
    assert said == f"step 10 is on disk: {node.disk.path / SnapshotId(JOB, 1, 10).name}"
    assert not node.disk.is_unsaved()


def test_a_disk_that_does_not_answer_keeps_nobody_and_nothing_is_lost(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for it cannot even be killed."""
    monkeypatch.setattr(disks, "STILL_S", 2.0)
    node.holds(10, 0)
    with DeadFiles(tmp_path / "dead") as dead:
        node.disk.path = dead.folder
        monkeypatch.setattr(node.disk, "_list_anew", lambda until: None)
        said = node.disk.write_last([0], math.inf, lambda: False)
        assert dead.asked.is_set()
        (process,) = node.disk._stuck
    process.wait()
    assert said.startswith(
        f"step 10 is not on disk: {dead.folder} did not answer; it stays in this node's memory"
    )
    assert node.disk.is_unsaved()


def test_why_a_round_begins_anew_is_known(node: Node) -> None:
    assert node.disk.why_none() == f"{node.disk.path} has no snapshot yet"
    node.has(10, complete=False)
    node.declares()
    assert node.disk.why_none() == f"{node.disk.path} has no snapshot yet, only 1 that are not complete"
    node.has(20, job="aaaa", at=int(time.time()) - 200)
    node.declares()
    assert node.disk.why_none() == f"those in {node.disk.path} are not used, such as step 20 of job aaaa"
    shown = node.disk.shown(chosen(20, job="aaaa"))
    path = node.disk.path / "step-20-round-1-job-aaaa"
    assert shown == f"of job aaaa, written 3 min ago: {path}"


def test_whoever_is_in_a_hurry_leaves_it(node: Node) -> None:
    node.holds(10, 0)
    said = node.disk.write_last([0], time.monotonic() + 60, lambda: True)
    assert said.startswith("step 10 is not on disk: there was no time; it stays in this node's memory")
    assert node.said[-1] == "the snapshot of step 10 is not on disk: there was no time"
    assert node.disk.pid is None


def test_a_file_server_that_does_not_answer_keeps_nobody(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hang(path: Path) -> dict[SnapshotId, Path]:
        answers.wait()
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disks, "directories", hang)
    node.holds(10, 0)
    node.disk._due_at = 0.0
    node.disk.look(1, [0])
    assert node.disk.pid is None
    assert not node.disk.list(0.0)
    answers.set()
    monkeypatch.setattr(disks, "GLANCE_S", FIRST_S)
    for _ in range(2):
        node.disk._looks_at = 0.0
        node.disk.look(1, [])
    said = f"cannot see the snapshots in {node.disk.path}: PermissionError: [Errno 13] Permission denied"
    assert node.said == [said]


def test_no_job_begins_anew_since_nobody_can_tell_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> dict[SnapshotId, Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disks, "directories", refuse)
    with pytest.raises(UsageError, match="Permission denied"):
        Node(tmp_path)


def test_the_first_answer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Node(tmp_path).has(10)
    monkeypatch.setattr(disks, "FIRST_S", 0.05)
    slow = disks.directories

    def answers_late(path: Path) -> dict[SnapshotId, Path]:
        time.sleep(0.3)
        return slow(path)

    monkeypatch.setattr(disks, "directories", answers_late)
    node = Node(tmp_path)
    assert [one.step for one in node.disk.complete()] == [10]
    assert node.said == [f"waiting until {node.disk.path} answers, where snapshots may be"]


def test_a_file_server_that_does_not_answer_keeps_nobody_beyond_its_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(disks, "directories", lambda path: never.wait())
    monkeypatch.setattr(disks, "FIRST_S", 1_000.0)
    assert node.disk.write_last([0], time.monotonic() + 0.1, lambda: False) == ""
    never.set()


def test_nothing_is_read_where_others_can_write(node: Node, tmp_path: Path) -> None:
    node.has(10)
    other = node.has(20)
    other.chmod(0o777)
    node.has(30).joinpath(MARK).chmod(0o664)
    assert node.declares() == [(JOB, 10)]
    assert sorted(node.said) == [
        f"a snapshot is passed by: others can write to {path} (mode {mode}), and whoever can change snapshots has the "
        f"job run code of theirs: chmod -R go-w {path}"
        for path, mode in ((other, 777), (node.disk.path / "step-30-round-1-job-0f3a" / MARK, 664))
    ]
    node.disk.path.chmod(0o775)
    with pytest.raises(UsageError, match=r"others can write to .*: chmod -R go-w"):
        Node(tmp_path)
