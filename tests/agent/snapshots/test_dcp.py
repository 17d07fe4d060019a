"""torch.distributed.checkpoint saves into snapshots and loads from them, in real ranks and in worlds of other sizes."""

import json
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.support.worlds.dcp_jobs import finds, loads_on_a_node, saves_alone, saves_on_nodes, saves_twice
from tests.support.worlds.jobs import LAST, NEEDS_FSDP, SAVED, Trained, assert_same, loads, saves
from tests.support.worlds.ranks import RanksFailed, run
from torch import nn
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, SavePlan
from torch.distributed.checkpoint.api import CheckpointException
from xxhash import xxh3_64_hexdigest

from hetagent import snapshots
from hetagent.job.snapshots.holdings import held, read
from hetagent.snapshots import SnapshotError
from hetagent.snapshots.folder import Folder, Index, Stamp
from hetrdzv.protocol.rooms import snapshots as protocol

ROUNDING = 1e-12


def check(trained: list[Trained], saved: list[Trained]) -> None:
    """All ranks have loaded what was saved, and have gone on as the job did that was left alone."""
    state, losses = saved[0]
    for loaded, later in trained:
        assert_same(loaded, state)
        assert len(later) == LAST - SAVED
        assert later == pytest.approx(losses, rel=ROUNDING, abs=ROUNDING)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("ddp", "dcp"),
        pytest.param("fsdp", "dcp", marks=NEEDS_FSDP),
        pytest.param("fsdp", "async", marks=NEEDS_FSDP),
    ],
)
def test_what_dcp_saves_dcp_loads_in_any_world(kind: str, how: str, tmp_path: Path) -> None:
    saved = run(2, saves, kind, how, tmp_path)
    for world_size in (1, 2, 3):
        check(run(world_size, loads, kind, "dcp", tmp_path), saved)


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=NEEDS_FSDP)])
def test_what_snaps_step_took_dcp_loads(kind: str, tmp_path: Path) -> None:
    saved = run(2, saves, kind, "snaps", tmp_path)
    check(run(3, loads, kind, "dcp", tmp_path), saved)


def test_of_what_ranks_have_alike_each_writes_a_part(tmp_path: Path) -> None:
    run(3, saves, "ddp", "dcp", tmp_path)
    [slot] = Folder(tmp_path).slots().values()
    indexes = [Index.read(slot.indexes()[rank].read_bytes()) for rank in range(3)]
    names = [place.name for index in indexes for place in (*index.tensors, *index.items)]
    assert len(names) == len(set(names))
    assert all(index.tensors and index.sharded and not index.alike for index in indexes)


@NEEDS_FSDP
def test_an_agent_declares_what_dcp_has_saved(tmp_path: Path) -> None:
    run(2, saves, "fsdp", "dcp", tmp_path)
    folder = Folder(tmp_path)
    [(stamp, slot)] = folder.slots().items()
    parts, size = [], 0
    for rank, path in sorted(slot.indexes().items()):
        text = path.read_bytes().replace(b'"round": 0', b'"round": 1')  # there are no rounds without an agent
        sizes = {file.name: file.stat().st_size for file in slot.path.iterdir()}
        size += sum(place["bytes"] for name in ("tensors", "items") for place in json.loads(text)[name])
        part = read(text, "d", protocol.Stamp(round=1, step=stamp.step), rank, sizes)
        assert part is not None
        parts.append(part)
    declared = held(parts)
    assert (declared.whole, declared.sharded, declared.world_size, declared.size) == (True, True, 2, size)


# -- with an agent -------------------------------------------------------------------------------------------


def agent_says(folder: Path, *nodes: Path) -> None:
    """Have the agent of a new node tell where the parts are."""
    sources = []
    for path in nodes:
        [(stamp, slot)] = Folder(path).slots().items()
        assert stamp == Stamp(SAVED, 4)
        ranks = {rank: xxh3_64_hexdigest(index.read_bytes()) for rank, index in slot.indexes().items()}
        sources.append({"node": path.name, "path": str(slot.path), "whole": True, "ranks": ranks})
    told = {"round": 4, "step": SAVED, "world_size": 2, "sharded": True, "sources": sources}
    folder.mkdir()
    (folder / "start.json").write_text(json.dumps(told))


@NEEDS_FSDP
def test_parts_of_several_nodes_make_a_snapshot_and_one_that_is_missing_is_noticed(tmp_path: Path) -> None:
    run(2, saves_on_nodes, tmp_path, nodes=2)
    first, second = tmp_path / "node0", tmp_path / "node1"
    agent_says(tmp_path / "new", first, second)
    run(1, loads_on_a_node, tmp_path / "new")
    agent_says(tmp_path / "other", first)
    with pytest.raises(
        RanksFailed, match=r"SnapshotError: .* cannot be loaded: nobody has the part of rank 1"
    ):
        run(1, loads_on_a_node, tmp_path / "other")
    assert (tmp_path / "other" / "bad" / f"4-{SAVED}").exists()


# -- what is not good ----------------------------------------------------------------------------------------


def spoil(slot: Path, kind: str, random_: random.Random) -> None:
    """Flip a bit in a tensor or a value of a rank, or cut its file off."""
    rank = random_.randrange(2)
    index = Index.read((slot / f"{rank}.json").read_bytes())
    places = [place for place in (index.items if kind == "value" else index.tensors) if place.bytes]
    while not places:
        return spoil(slot, kind, random_)
    path, place = slot / f"{rank}.bin", random_.choice(places)
    content = bytearray(path.read_bytes())
    if kind == "end":
        last = max(places, key=lambda each: each.at)
        del content[last.at + random_.randrange(last.bytes) :]
    else:
        content[place.at + random_.randrange(place.bytes)] ^= 1 << random_.randrange(8)
    path.write_bytes(content)
    return None


@NEEDS_FSDP
@pytest.mark.parametrize("kind", ["tensor", "value", "end"])
@pytest.mark.parametrize("seed", range(2))
def test_a_corrupt_part_is_refused_and_the_older_one_taken(kind: str, seed: int, tmp_path: Path) -> None:
    run(2, saves_twice, tmp_path)
    slots = Folder(tmp_path).slots()
    spoil(slots[max(slots)].path, kind, random.Random(f"{kind} {seed}"))
    with pytest.raises(RanksFailed, match=r"the snapshot of step 2 .*(is corrupt|is too short)"):
        run(1, finds, tmp_path)  # a rank alone reads all parts
    assert run(2, finds, tmp_path) == [(1, 1)] * 2


@NEEDS_FSDP
def test_a_part_that_was_never_finished_is_passed_by(tmp_path: Path) -> None:
    run(2, saves_twice, tmp_path)
    slots = Folder(tmp_path).slots()
    slots[max(slots)].indexes()[1].unlink()
    assert run(2, finds, tmp_path) == [(1, 1)] * 2


@NEEDS_FSDP
def test_ranks_that_save_for_themselves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RanksFailed, match=r"1 of 2 ranks save step 1 together: a snapshot needs all"):
        run(2, saves_alone, tmp_path)
    assert not any(slot.indexes() for slot in Folder(tmp_path).slots().values())


# -- in this process -----------------------------------------------------------------------------------------

ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is ")


def small() -> dict[str, Any]:
    return {"weights": torch.arange(6.0).reshape(2, 3).t(), "none": torch.empty(0, 3), "epoch": 4}


@ALONE
def test_a_step_that_is_saved_again_is_that_of_the_last_time(tmp_path: Path) -> None:
    for step, epoch in ((1, 3), (2, 4), (2, 5)):
        dcp.save(small() | {"epoch": epoch}, storage_writer=snapshots.writer(step, directory=tmp_path))
    state = {"weights": torch.empty(3, 2), "none": torch.empty(0, 3), "epoch": 0}
    dcp.load(state, storage_reader=snapshots.reader(directory=tmp_path))
    assert state["epoch"] == 5
    assert torch.equal(state["weights"], small()["weights"])


@ALONE
def test_parts_of_two_attempts_at_a_step_make_no_snapshot(tmp_path: Path) -> None:
    """Without an agent a job that begins again may save a step that the last one has saved."""
    for step in (1, 2):
        dcp.save(small(), storage_writer=snapshots.writer(step, directory=tmp_path))
    snapshots.writer(2, directory=tmp_path).prepare_local_plan(SavePlan([]))
    assert snapshots.reader(directory=tmp_path).step == 1


@ALONE
def test_a_step_whose_copy_was_corrupt_can_be_saved_again(tmp_path: Path) -> None:
    for step in (1, 2):
        dcp.save(small(), storage_writer=snapshots.writer(step, directory=tmp_path))
    path = Folder(tmp_path).slots()[Stamp(2, 0)].path / "0.bin"
    path.write_bytes(bytes(path.stat().st_size))
    for step in (2, 1):
        reader = snapshots.reader(directory=tmp_path)
        assert reader.step == step
        with pytest.raises(CheckpointException, match="corrupt") if step == 2 else nullcontext():
            dcp.load(small(), storage_reader=reader)
    dcp.save(small(), storage_writer=snapshots.writer(2, directory=tmp_path))
    assert snapshots.reader(directory=tmp_path).step == 2


def test_what_was_overtaken_is_no_snapshot(tmp_path: Path) -> None:
    slow = snapshots.writer(1, directory=tmp_path)
    plan = slow.prepare_local_plan(SavePlan([]))
    for step in (2, 3, 4):
        Folder(tmp_path).begin(Stamp(step, 0))
    with pytest.raises(
        SnapshotError, match=r"its slot was needed before the snapshot of step 1 was complete"
    ):
        slow.write_data(plan, DefaultSavePlanner())
    assert not any(slot.indexes() for slot in Folder(tmp_path).slots().values())


@ALONE
def test_nothing_to_load_is_said(tmp_path: Path) -> None:
    reader = snapshots.reader(directory=tmp_path)
    assert reader.step is None
    with pytest.raises(CheckpointException, match=r"there is no snapshot to load: .*reader\(\)\.step"):
        dcp.load(small(), storage_reader=reader)


@ALONE
def test_what_dcp_saved_is_not_for_snaps_load(tmp_path: Path) -> None:
    dcp.save(small(), storage_writer=snapshots.writer(1, directory=tmp_path))
    snaps = snapshots.open({"model": nn.Linear(2, 2)}, directory=tmp_path)
    try:
        with pytest.raises(SnapshotError, match=r"step 1 was made by dcp\.save: load it by dcp\.load"):
            snaps.load()
        with pytest.raises(SnapshotError, match=r"saves by snaps\.step\(\), not by dcp\.save"):
            snapshots.writer(2, directory=tmp_path)
    finally:
        snapshots._opened.clear()


@ALONE
def test_a_rank_without_a_predecessor_keeps_its_own_values_if_the_script_allows_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"model": model, "optimizer": optimizer, "epoch": {"number": 2}}
    snaps = snapshots.open(given, per_rank={"own": {"number": 3}}, directory=tmp_path)
    try:
        optimizer.step()
        snaps.step(1)
        snaps.save_now()
    finally:
        snapshots._opened.clear()
    for rank, found in (("0", 3), ("1", 5)):
        monkeypatch.setenv("RANK", rank)
        state = {"epoch": {"number": 1}, "own": {"number": 5}}
        planner = DefaultLoadPlanner(allow_partial_load=True)
        dcp.load(state, storage_reader=snapshots.reader(directory=tmp_path), planner=planner)
        assert state == {"epoch": {"number": 2}, "own": {"number": found}}


@ALONE
def test_too_little_memory_is_said_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "control.json").write_text(json.dumps({"memory": 10}))
    with pytest.raises(CheckpointException, match=r"--snapshot-memory"):
        dcp.save(small(), storage_writer=snapshots.writer(1, directory=tmp_path))
    [slot] = Folder(tmp_path).slots().values()
    assert not slot.indexes()


@pytest.mark.parametrize("step", [-1, 1.0, None, True])
def test_steps_are_whole_numbers(step: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps are whole numbers"):
        snapshots.writer(step, directory=tmp_path)
