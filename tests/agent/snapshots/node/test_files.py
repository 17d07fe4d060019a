"""What agent and workers write for each other, in real files, and which snapshots a node holds by these."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.agent.snapshots.node.standin import part, put
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.folder import SnapshotId
from hetagent.snapshots.node.files import BadCopy, SnapshotDir, request_save
from hetrdzv.protocol.snapshots import RankPart, SnapshotSource, StartSnapshot

STAMP = SnapshotId(3, 120)


@pytest.fixture
def files(tmp_path: Path) -> SnapshotDir:
    return SnapshotDir(tmp_path)


def content(files: SnapshotDir, name: str) -> Any:
    return json.loads((files.path / name).read_bytes())


def source(node_id: str, port: int = 7, address: str = "10.0.0.1", **more: Any) -> SnapshotSource:
    return SnapshotSource(node_id=node_id, address=address, port=port, key="k", **more)


def chosen(*sources: SnapshotSource) -> StartSnapshot:
    return StartSnapshot(round=3, step=120, world_size=2, lost=1, sources=sources)


def test_workers_find_their_own_copy_and_those_of_others(files: SnapshotDir) -> None:
    part(files.path, 1, (3, 120))
    ranks = (RankPart(rank=0, digest="d0"),)
    sources = [source("a", ranks=ranks), source("b", whole=True), source("c", address="fd00::1")]
    files.write_start(chosen(*sources), "a")
    start = content(files, "start.json")
    first, second, third = start.pop("sources")
    assert start == {"round": 3, "step": 120, "world_size": 2}
    assert (first["node"], first["path"], first["ranks"]) == ("a", str(files.path / "3-120"), {"0": "d0"})
    assert (second["node"], second["path"], second["key"]) == ("b", None, "k")
    assert (second["url"], third["url"]) == ("http://10.0.0.1:7/", "http://[fd00::1]:7/")


def test_who_cannot_be_asked_is_left_out(files: SnapshotDir) -> None:
    files.write_start(chosen(source("a", port=0), source("b", port=0), source("c")), "a")
    assert [each["node"] for each in content(files, "start.json")["sources"]] == ["c"]
    files.write_start(None, "a")
    assert content(files, "start.json") == {}


def test_a_round_begins_without_the_answers_of_the_last_one_and_a_job_without_snapshots(
    files: SnapshotDir,
) -> None:
    files.begin_round("job1")
    part(files.path, 0, (3, 120))
    for name in ("ask/0.done", "ask/0.bad", "ask/0.step", "start.json"):
        (files.path / name).write_text("{}")
    os.mkfifo(files.path / "ask" / "0")
    files.begin_round("job1")
    assert list((files.path / "ask").iterdir()) == []
    assert not (files.path / "start.json").exists()
    assert STAMP in files.find_slots()
    files.begin_round("job2")
    assert (files.origin, files.find_slots(), list((files.path / "0").iterdir())) == ("job2", {}, [])


def test_answers_of_workers(files: SnapshotDir) -> None:
    assert files.read_last_step() == 0
    put(files.path / "ask" / "0.step", "7")
    put(files.path / "ask" / "1.step", "9")
    put(files.path / "ask" / "2.step", "nonsense")
    put(files.path / "ask" / "1.done", '{"step": 4, "why": ""}')
    put(files.path / "ask" / "2.done", '{"step": null, "why": ""}')
    put(files.path / "ask" / "3.done", "nonsense")
    assert files.read_last_step() == 9
    assert [files.read_save_error(rank) for rank in range(1, 5)] == ["", "it has no snapshot", None, None]


def test_copies_that_cannot_be_loaded(files: SnapshotDir) -> None:
    put(files.path / "ask" / "0.bad", "{}")
    put(
        files.path / "ask" / "1.bad",
        '{"stamp": "3-120", "node": "b", "why": "the digest of model.w is wrong"}',
    )
    assert files.find_bad_copy() == BadCopy(STAMP, "b", "the digest of model.w is wrong")


def test_only_who_listens_can_be_asked(files: SnapshotDir) -> None:
    pipe = files.path / "ask" / "4"
    os.mkfifo(pipe)
    (files.path / "ask" / "5").touch()
    assert files.list_worker_pipes() == {4: pipe}
    assert not request_save(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert request_save(pipe)
        assert os.read(reader, 10) == b"!"
    finally:
        os.close(reader)
    assert not request_save(pipe)
    assert not request_save(files.path / "ask" / "6")


def holds(
    there: SnapshotDir, stamp: tuple[int, int] = STAMP, slot: int = 0, rank: int = 0, **more: Any
) -> None:
    part(there.path, slot, stamp, rank, **more)


def test_the_newest_come_first(files: SnapshotDir) -> None:
    holds(files, rank=0)
    holds(files, rank=1, files={})
    holds(files, (3, 60), slot=2, rank=1, files={})
    assert [(one.step, one.whole, len(one.ranks), one.size) for one in files.list_held_snapshots()] == [
        (120, True, 2, 69),
        (60, False, 1, 0),
    ]
    digest = xxh3_64_hexdigest((files.path / "0" / "1.json").read_bytes())
    assert files.list_held_snapshots()[0].ranks[1] == RankPart(rank=1, digest=digest)


def test_ranks_own_parts_make_nothing_whole(files: SnapshotDir) -> None:
    holds(files, sharded=True, files={})
    assert [(one.sharded, one.whole) for one in files.list_held_snapshots()] == [(True, False)]
    holds(files, sharded=True, shared=False, files={})
    assert files.list_held_snapshots()[0].whole, "nothing is alike"


def test_a_slot_or_an_index_that_is_replaced_is_read_again(files: SnapshotDir) -> None:
    holds(files, (3, 60), rank=0)
    holds(files, (3, 60), rank=1)
    assert len(files.list_held_snapshots()[0].ranks) == 2
    holds(files, rank=1)
    assert [(one.step, [each.rank for each in one.ranks]) for one in files.list_held_snapshots()] == [
        (120, [1])
    ]
    holds(files, rank=1, files={})
    assert not files.list_held_snapshots()[0].whole


@pytest.mark.parametrize("size", [0, 20, None])
def test_what_is_torn_does_not_count(files: SnapshotDir, size: int | None) -> None:
    holds(files, **({"v": 2} if size is None else {}))
    if size is not None:
        os.truncate(files.path / "0" / "0.json", size)
    assert files.list_held_snapshots() == ()


def test_a_slot_that_workers_give_away_meanwhile_has_nothing(
    files: SnapshotDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks at it: an agent that broke would take its workers along."""
    part(files.path, 0, (3, 120))
    slots = files.find_slots()
    files.release_slot(STAMP)
    monkeypatch.setattr(files, "find_slots", lambda: slots)
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    assert files.list_held_snapshots() == ()
