"""What another node has is loaded from there: few requests, and from the next node where a copy is not good."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.snapshots.test_round_trip import STEPS, Job, adamw, assert_same
from xxhash import xxh3_64_hexdigest

from hetagent.job.loop import Identity
from hetagent.job.snapshots.serving import Serving
from hetagent.node.network import hold_port
from hetagent.snapshots import ahead
from hetagent.snapshots.folder import FOLDER, Folder, Place
from hetagent.snapshots.script import Snapshots

BLOCK = 512
"""Of bytes, for tests: the job's tensors take several."""


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "BLOCK", BLOCK)
    monkeypatch.setattr("hetagent.snapshots.adopting.FETCHED", BLOCK)


class Nodes:
    """Two nodes that have a snapshot, and one that has none."""

    def __init__(self, tmp_path: Path, running: contextlib.ExitStack) -> None:
        self.here = tmp_path / "here"
        self.there = [tmp_path / "a", tmp_path / "b"]
        self.serving = []
        for folder in self.there:
            self.saved = saved = Job(folder, adamw)
            saved.train(0, STEPS)
            saved.snaps.save_now()
            one = Serving(
                folder, Identity("g", folder.name, "1"), lambda: hold_port("127.0.0.1", None), str, print
            )
            one.start()
            running.callback(one.close)
            self.serving.append(one)
        sources = []
        for folder, one in zip(self.there, self.serving, strict=True):
            stamp = max(Folder(folder).slots())
            text = (self.slot(folder) / "0.json").read_bytes()
            url = f"http://127.0.0.1:{one.port}/"
            of = {"node": folder.name, "url": url, "key": one.key, "path": None, "whole": True}
            sources.append({**of, "ranks": {"0": xxh3_64_hexdigest(text)}})
        told = {"round": stamp.round, "step": stamp.step, "world_size": 1, "sharded": False}
        self.here.mkdir(mode=0o700)
        (self.here / "start.json").write_text(json.dumps({**told, "sources": sources}))

    def slot(self, folder: Path) -> Path:
        """Where a node has its newest snapshot."""
        slots = Folder(folder).slots()
        return slots[max(slots)].path

    def change(self, node: int, name: str) -> None:
        """Flip a bit of a file."""
        with (self.slot(self.there[node]) / name).open("r+b") as file:
            first = file.read(1)[0]
            file.seek(0)
            file.write(bytes([first ^ 1]))

    def load(self, monkeypatch: pytest.MonkeyPatch, local_world_size: int) -> tuple[int | None, Job]:
        """What a worker of the node that has none comes by."""
        monkeypatch.setenv(FOLDER, str(self.here))
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", str(local_world_size))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local_world_size))
        job = Job(self.here, adamw)
        snaps: Snapshots = job.snaps
        return snaps.load(), job


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with contextlib.ExitStack() as running:
        yield Nodes(tmp_path, running)


@pytest.mark.parametrize("local_world_size", [1, 2])
@pytest.mark.parametrize("trouble", ["none", "corrupt", "gone"])
def test_it_comes_back_bit_for_bit(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, local_world_size: int, trouble: str
) -> None:
    if trouble == "corrupt":
        nodes.change(0, "shared.bin")
    if trouble == "gone":
        (nodes.slot(nodes.there[0]) / "shared.bin").unlink()
    step, job = nodes.load(monkeypatch, local_world_size)
    assert step == STEPS
    assert_same(job.everything(), nodes.saved.everything())
    copies = [slot for slot in Folder(nodes.here).slots().values() if (slot.path / "0.json").exists()]
    assert len(copies) == (local_world_size == 2 and trouble == "none"), (
        "this node has a copy for its workers"
    )


def test_several_tensors_come_with_one_request(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int]] = []
    read_into = ahead.Source.read_into

    def counted(source: Any, file: str, at: int, into: memoryview) -> None:
        asked.append((file, at, into.nbytes))
        read_into(source, file, at, into)

    monkeypatch.setattr(ahead.Source, "read_into", counted)
    nodes.load(monkeypatch, 1)
    index = json.loads((nodes.slot(nodes.there[0]) / "0.json").read_bytes())
    requests = [each for each in asked if each[0] == "shared.bin" and each[2]]
    assert 1 < len(requests) < len(index["tensors"]) / 2


def test_blocks_are_of_tensors_side_by_side() -> None:
    places = [
        Place(
            name="w",
            dtype="f",
            shape=(size,),
            offsets=(0,),
            lengths=(size,),
            file="shared.bin",
            at=at,
            bytes=size,
        )
        for at, size in ((0, 4), (4, 4), (8, 40), (48, 1))
    ]
    assert [[place.at for place in block] for block in ahead.blocks(reversed(places), 8)] == [
        [0, 4],
        [8],
        [48],
    ]
    assert ahead.blocks([], 8) == []
