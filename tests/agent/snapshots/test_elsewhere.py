"""What another node has is loaded from there, and from the next node where a copy is not good."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from tests.agent.snapshots.test_round_trip import STEPS, Job, adamw, assert_same
from xxhash import xxh3_64_hexdigest

from hetagent.node.network import hold_port
from hetagent.snapshots import SnapshotError, sources
from hetagent.snapshots.folder import FOLDER, REPLICATED_SLOTS, Index, SnapshotFiles, SnapshotId
from hetagent.snapshots.node.server import SnapshotServer
from hetagent.snapshots.script import Snapshots
from hetagent.snapshots.sources import Source


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
            one = SnapshotServer(folder, lambda: hold_port("127.0.0.1", None), str, print)
            one.start()
            running.callback(one.close)
            self.serving.append(one)
        sources = []
        for folder, one in zip(self.there, self.serving, strict=True):
            stamp = max(SnapshotFiles(folder).find_slots())
            text = (self.slot(folder) / "0.json").read_bytes()
            url = f"http://127.0.0.1:{one.port}/"
            of = {"node": folder.name, "url": url, "key": one.key, "path": None}
            sources.append({**of, "ranks": {"0": xxh3_64_hexdigest(text)}})
        told = {"round": stamp.round, "step": stamp.step, "world_size": 1}
        self.here.mkdir(mode=0o700)
        (self.here / "start.json").write_text(json.dumps({**told, "sources": sources}))

    def slot(self, folder: Path) -> Path:
        """Where a node has its newest snapshot."""
        slots = SnapshotFiles(folder).find_slots()
        return slots[max(slots)].path

    def change(self, node: int, name: str) -> None:
        """Flip a bit of a file."""
        with (self.slot(self.there[node]) / name).open("r+b") as file:
            first = file.read(1)[0]
            file.seek(0)
            file.write(bytes([first ^ 1]))

    def load(self, monkeypatch: pytest.MonkeyPatch) -> tuple[int | None, Job]:
        """What a worker of the node that has none comes by."""
        monkeypatch.setenv(FOLDER, str(self.here))
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        job = Job(self.here, adamw)
        snaps: Snapshots = job.snaps
        return snaps.load(), job


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with contextlib.ExitStack() as running:
        yield Nodes(tmp_path, running)


@pytest.mark.parametrize("trouble", ["none", "corrupt", "gone", "short"])
def test_it_comes_back_bit_for_bit(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    if trouble == "corrupt":
        nodes.change(0, "shared.bin")
    if trouble == "gone":
        (nodes.slot(nodes.there[0]) / "shared.bin").unlink()
    if trouble == "short":
        shared = nodes.slot(nodes.there[0]) / "shared.bin"
        os.truncate(shared, shared.stat().st_size // 2)
    step, job = nodes.load(monkeypatch)
    assert step == STEPS
    assert_same(job.everything(), nodes.saved.everything())


def test_who_cannot_be_reached_at_once_is_asked_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    connect = sources._open

    def refuses_once(request: Any, **more: Any) -> Any:
        tried.append(request.full_url)
        if len(tried) == 1:
            raise URLError("Connection refused")
        return connect(request, **more)

    monkeypatch.setattr(sources, "PAUSES_S", (0.0,))
    monkeypatch.setattr(sources, "_open", refuses_once)
    assert nodes.load(monkeypatch)[0] == STEPS
    assert tried[0] == tried[1]


def test_what_is_overwritten_while_it_is_read_is_not_loaded(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Source.read_index

    def overwritten(source: Source, rank: int) -> tuple[bytes, Index]:
        text = index(source, rank)
        for folder in nodes.there:
            for number in range(REPLICATED_SLOTS):
                slot = SnapshotFiles(folder).claim_slot(SnapshotId(1, number))
                (slot.path / "shared.bin").write_bytes(os.urandom(1 << 16))
        return text

    monkeypatch.setattr(Source, "read_index", overwritten)
    with pytest.raises(
        SnapshotError,
        match=r"the snapshot of step 4 .* cannot be loaded: .* on node '.' cannot be read: .*404",
    ):
        nodes.load(monkeypatch)
