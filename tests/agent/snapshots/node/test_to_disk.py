"""Snapshots on disk are checkpoints of DCP that it reads without us, and never of what is torn or corrupt."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from hetagent import snapshots
from hetagent.snapshots.copying import WorkerRank
from hetagent.snapshots.errors import SnapshotError, SnapshotSuperseded
from hetagent.snapshots.folder import Index, Slot, SnapshotFiles, SnapshotId
from hetagent.snapshots.loading import SnapshotLoader
from hetagent.snapshots.node import to_disk
from hetagent.snapshots.node.to_disk import write_snapshot
from hetagent.snapshots.on_disk import (
    METADATA_FILE,
    SnapshotMetadata,
    directory_name,
    list_directories,
    require_private,
)
from hetagent.snapshots.script import Snapshots
from hetagent.snapshots.state import State

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is ")

STEP = 3
OWN = SnapshotId(0, STEP, "j")


class Script:
    """What a script trains, on one rank."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=seed + 1.0)
        self.sampler = {"consumed": 0, "seeds": [seed]}
        self.tensor = torch.zeros(2) + seed

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "sampler": self.sampler,
            "tensor": self.tensor,
        }

    def train(self, snaps: Snapshots) -> None:
        for step in range(1, STEP + 1):
            self.model(torch.randn(5, 4)).sum().backward()
            self.optimizer.step()
            self.sampler["consumed"] = step
            snaps.step(step)
        snaps.save_now()

    def same_as(self, other: "Script") -> None:
        for name, tensor in self.model.state_dict().items():
            assert torch.equal(tensor, other.model.state_dict()[name]), name
        pairs = zip(self.model.parameters(), other.model.parameters(), strict=True)
        for mine, theirs in pairs:
            for name, tensor in self.optimizer.state[mine].items():
                assert torch.equal(tensor, other.optimizer.state[theirs][name]), name


def opened(script: Script, folder: Path) -> Snapshots:
    return Snapshots(
        SnapshotFiles(folder), State(script.state(), {"own": [7]}), WorkerRank(0, 1, 1), has_agent=False
    )


@pytest.fixture
def trained() -> Script:
    return Script(0)


@pytest.fixture
def slot(trained: Script, tmp_path: Path) -> Slot:
    trained.train(opened(trained, tmp_path / "memory"))
    return SnapshotFiles(tmp_path / "memory").find_slots()[SnapshotId(0, STEP)]


def written(slot: Slot, into: Path) -> Path:
    write_snapshot(slot, into, [0])
    return into


def command(slot: Slot, path: Path) -> list[str]:
    """As the agent starts it."""
    told = {
        "slot": str(slot.path),
        "stamp": slot.stamp,
        "into": str(path),
        "ranks": [0],
        "keep": 3,
        "jobs": ["j"],
    }
    return [sys.executable, "-P", "-m", "hetagent.snapshots.node.to_disk", json.dumps(told)]


def test_plain_dcp_reads_it(trained: Script, slot: Slot, tmp_path: Path) -> None:
    path = tmp_path / directory_name(OWN)
    done = subprocess.run(command(slot, path), capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    other = Script(1)
    model, optimizer = get_state_dict(other.model, other.optimizer)
    state: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "sampler": other.sampler,
        "tensor": other.tensor,
    }
    dcp.load(state, checkpoint_id=path)
    set_state_dict(
        other.model, other.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    other.same_as(trained)
    assert other.optimizer.param_groups[0]["lr"] == 1.0
    assert state["sampler"] == {"consumed": STEP, "seeds": [0]}
    assert torch.equal(state["tensor"], trained.tensor)
    dcp_to_torch_save(path, tmp_path / "all.pt")
    nested: Mapping[str, Any] = torch.load(tmp_path / "all.pt", weights_only=False)
    assert nested.keys() == {"model", "optimizer", "sampler", "tensor"}
    assert nested["optimizer"]["param_groups"][0]["lr"] == 1.0
    assert list_directories(tmp_path) == {OWN: path}
    mark = SnapshotMetadata.read_metadata(path)
    assert mark is not None
    assert (mark.world_size, mark.sharded) == (1, False)


def load(folder: Path, path: Path, script: Script) -> int:
    """As a worker whose agent has found it on disk."""
    mark = SnapshotMetadata.read_metadata(path)
    assert mark is not None
    told = {"node": "", "path": str(path), "ranks": mark.ranks}
    start = {"round": 0, "step": STEP, "world_size": mark.world_size, "sources": [told]}
    loader = SnapshotLoader(SnapshotFiles(folder), 0, start, has_agent=True)
    loader.load(State(script.state(), {"own": []}))
    return loader.stamp.step


@pytest.mark.parametrize("name", ["shared.bin", "0.small", "0.json"])
def test_what_is_corrupt_on_disk_is_not_loaded(
    slot: Slot, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetagent.snapshots.loading.ROUND_END_WAIT_S", 0.0)
    path = written(slot, tmp_path / "disk")
    content = bytearray((path / name).read_bytes())
    for at in range(0, len(content), 64):
        content[at] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(SnapshotError, match=rf"cannot be loaded: .*{re.escape(str(path))}"):
        load(tmp_path / "other", path, Script(1))


def test_it_is_on_disk_before_its_mark_is(
    slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into, synced = tmp_path / "all" / "disk", list[Path]()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}"))))
    write_snapshot(slot, into, [0])
    before = synced[: synced.index(into / METADATA_FILE)]
    assert {*before} >= {into, *into.iterdir()} - {into / METADATA_FILE}
    assert synced[synced.index(into / METADATA_FILE) :] == [into / METADATA_FILE, into, into.parent, tmp_path]


def test_what_is_corrupt_in_memory_does_not_get_there(slot: Slot, tmp_path: Path) -> None:
    content = bytearray((slot.path / "shared.bin").read_bytes())
    content[8] ^= 1
    (slot.path / "shared.bin").write_bytes(content)
    with pytest.raises(SnapshotError, match=r"shared\.bin .* is corrupt"):
        write_snapshot(slot, tmp_path / "disk", [0])
    assert not (tmp_path / "disk" / "shared.bin").exists()


def test_a_slot_that_is_given_away_while_it_is_copied_leaves_nothing_torn(
    slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_and_lose(*args: Any) -> None:
        slot.path.unlink()
        copy_part(*args)

    copy_part = to_disk.copy_part
    monkeypatch.setattr(to_disk, "copy_part", copy_and_lose)
    for _ in range(2):
        with pytest.raises(SnapshotSuperseded, match="a newer snapshot has taken its memory"):
            write_snapshot(slot, tmp_path / "disk", [0])
    assert not [*(tmp_path / "disk").iterdir()]


class World:
    """The slots of two nodes with a rank each."""

    def __init__(self, slot: Slot, tmp_path: Path, *, sharded: bool) -> None:
        self.slots = []
        for rank in (0, 1):
            path = tmp_path / f"node{rank}" / slot.stamp.name
            shutil.copytree(slot.path, path)
            index = Index.from_json((path / "0.json").read_bytes())
            (path / "0.json").unlink()
            small = path / f"{rank}.small"
            (path / "0.small").rename(small)
            files = {"shared.bin": index.files["shared.bin"], small.name: index.files["0.small"]}
            index = replace(index, rank=rank, writer=rank, world_size=2, sharded=sharded, files=files)
            (path / f"{rank}.json").write_bytes(index.to_json())
            self.slots.append(Slot(path, slot.stamp))
        self.into = tmp_path / "disk"

    def write(self, *ranks: int) -> None:
        """Nodes write at the same time."""
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(write_snapshot, self.slots[rank], self.into, [rank]) for rank in ranks]:
                done.result()


def test_nodes_write_their_parts_and_one_makes_the_checkpoint(slot: Slot, tmp_path: Path) -> None:
    world = World(slot, tmp_path, sharded=True)
    world.write(1, 0)
    mark = SnapshotMetadata.read_metadata(world.into)
    assert mark is not None
    assert (mark.world_size, sorted(mark.ranks)) == (2, [0, 1])
    assert (world.into / "shared.bin").read_bytes() == (slot.path / "shared.bin").read_bytes()


def test_without_the_parts_of_all_ranks_a_sharded_one_is_not_complete(
    slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_disk, "STALL_S", 0.1)
    world = World(slot, tmp_path, sharded=True)
    with pytest.raises(SnapshotError, match="the part of rank 1 is not there after 0 s"):
        world.write(0)
    assert SnapshotMetadata.read_metadata(world.into) is None


def test_if_the_node_of_rank_0_is_gone_another_one_writes_what_all_have_alike(
    slot: Slot, trained: Script, tmp_path: Path
) -> None:
    """With the start of the writer, within a grace of 25 s."""
    world = World(slot, tmp_path, sharded=False)
    began = time.monotonic()
    world.write(1)
    assert time.monotonic() - began < 16
    other = Script(1)
    assert load(tmp_path / "other", world.into, other) == STEP
    other.same_as(trained)


def test_a_mark_of_another_version_or_without_sense_is_none(slot: Slot, tmp_path: Path) -> None:
    path = written(slot, tmp_path / "disk")
    good = json.loads((path / METADATA_FILE).read_text())
    for odd in (
        {"v": 2},
        {"written_at": None},
        {"size": float("inf")},
        {"ranks": [1]},
        {"x": 1},
        {"after": 3},
    ):
        (path / METADATA_FILE).write_text(json.dumps(good | odd))
        assert SnapshotMetadata.read_metadata(path) is None, odd
    shutil.rmtree(path)
    assert SnapshotMetadata.read_metadata(path) is None


def test_nothing_is_written_where_others_may_write(slot: Slot, tmp_path: Path) -> None:
    for open_to_others in (tmp_path / "disk", tmp_path / "disk" / directory_name(OWN)):
        open_to_others.mkdir()
        open_to_others.chmod(0o777)
        with pytest.raises(SnapshotError, match=rf"others can write to {open_to_others} "):
            write_snapshot(slot, tmp_path / "disk" / directory_name(OWN), [0])
        open_to_others.chmod(0o755)
        assert not [*tmp_path.glob("disk/*/*")]
        shutil.rmtree(tmp_path / "disk" / directory_name(OWN))


def test_what_others_may_change_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    require_private(path)
    require_private(tmp_path / "nowhere")
    path.chmod(0o775)
    with pytest.raises(
        SnapshotError, match=rf"others can write to {path} \(mode 775\).*: chmod -R go-w {path}"
    ):
        require_private(path)
    path.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(path)
    require_private(link)
    for mode, is_safe in ((0o777, False), (0o1777, True), (0o2775, True), (0o755, True)):  # of what is above
        tmp_path.chmod(mode)
        with (
            nullcontext()
            if is_safe
            else pytest.raises(SnapshotError, match=rf"others .*chmod o-w {tmp_path}")
        ):
            require_private(path)
    if os.geteuid() == 0:
        os.chown(link, 12345, -1, follow_symlinks=False)
        with pytest.raises(SnapshotError, match=rf"{link} belongs to user 12345, not to 0"):
            require_private(link)
        os.chown(path, 12345, -1)
        with pytest.raises(SnapshotError, match="belongs to user 12345, not to 0"):
            require_private(path)


def test_without_an_agent_snapshots_are_not_read_where_others_may_write(tmp_path: Path) -> None:
    snapshots.open({"n": {"a": 1}}, directory=tmp_path / "own")
    (tmp_path / "others").mkdir()
    (tmp_path / "others").chmod(0o777)
    with pytest.raises(SnapshotError, match="others can write to"):
        snapshots.open({"n": {"a": 1}}, directory=tmp_path / "others")


def test_what_is_written_nobody_else_may_change(slot: Slot, tmp_path: Path) -> None:
    path = tmp_path / "disk" / directory_name(OWN)
    subprocess.run(command(slot, path), check=True, timeout=100, umask=0o002)
    modes = {each.name: each.stat().st_mode & 0o022 for each in (path.parent, path, *path.iterdir())}
    assert METADATA_FILE in modes
    assert set(modes.values()) == {0}
