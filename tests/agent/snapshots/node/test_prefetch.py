"""Copies of another node's shards: real files, served as agents serve them."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.agent.rig import soon
from tests.agent.snapshots.node.standin import named, part, put
from xxhash import xxh3_64_hexdigest

from hetagent.node.network import hold_port
from hetagent.snapshots import sources
from hetagent.snapshots.folder import RoundControl, SnapshotFiles
from hetagent.snapshots.folder import SnapshotId as Taken
from hetagent.snapshots.memory import MappedFile
from hetagent.snapshots.node import prefetch
from hetagent.snapshots.node.files import SnapshotDir
from hetagent.snapshots.node.prefetch import fetch
from hetagent.snapshots.node.server import SnapshotServer
from hetagent.snapshots.sources import Source as Fetched
from hetagent.snapshots.sources import SourceError
from hetrdzv.protocol.snapshots import CopyOrder, HeldSnapshot, RankPart, SnapshotId, SnapshotSource

SIZE = 1000


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK", 300)


class Nodes:
    """One node that has rank 1's part of a snapshot, and one that has rank 0's and is to have both."""

    def __init__(self, folder: Path) -> None:
        self.there, self.here = folder / "there", folder / "here"
        content, small = os.urandom(SIZE), b"small"
        for path in (self.there, self.here):
            path.mkdir(mode=0o700)
        files = {"1.bin": [SIZE, xxh3_64_hexdigest(content)], "1.small": [5, xxh3_64_hexdigest(small)]}
        part(self.there, 2, (3, 120), 1, sharded=True, shared=False, files=files)
        part(self.here, 0, (3, 120), sharded=True, shared=False, files={})
        self.content = content
        (self.there / "2" / "1.bin").write_bytes(content)
        self.runs(3)
        self.serving = SnapshotServer(self.there, lambda: hold_port("127.0.0.1", None), str, print)
        self.serving.start()

    def runs(self, number: int, memory: int = 1 << 20) -> None:
        """The node that copies is in a round."""
        SnapshotFiles(self.here).write_control(RoundControl(round=number, memory=memory))

    @property
    def copy(self) -> CopyOrder:
        text = (self.there / "2" / "1.json").read_bytes()
        of = RankPart(rank=1, digest=xxh3_64_hexdigest(text))
        port, key = self.serving.port, self.serving.key
        source = SnapshotSource(node_id="b", address="127.0.0.1", port=port, key=key, ranks=(of,))
        return CopyOrder(stamp=SnapshotId(round=3, step=120), source=source)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.serving.close()


def test_a_part_is_copied_with_its_index(nodes: Nodes) -> None:
    fetch(nodes.here, nodes.copy)
    for name in ("1.bin", "1.small", "1.json"):
        assert (nodes.here / "0" / name).read_bytes() == (nodes.there / "2" / name).read_bytes()
    assert (nodes.here / "0" / "1.bin").read_bytes() == nodes.content


@pytest.mark.parametrize("name", ["1.bin", "1.small"])
def test_what_is_corrupt_does_not_count(nodes: Nodes, name: str) -> None:
    path = nodes.there / "2" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(SourceError, match=rf"{name} on node 'b' is corrupt"):
        fetch(nodes.here, nodes.copy)
    assert not (nodes.here / "0" / "1.json").exists()


def test_what_is_corrupt_is_not_fetched_again_and_again_but_after_a_pause(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, is_over = list[float](), threading.Event()
    pause = lambda pause_s: (pauses.append(pause_s), is_over.wait())  # noqa: E731
    monkeypatch.setattr(prefetch, "time", SimpleNamespace(sleep=pause))
    asked, opened = list[str](), Fetched.open
    monkeypatch.setattr(Fetched, "open", lambda self, name: (asked.append(name), opened(self, name))[1])
    copies = prefetch.Prefetcher(nodes.here, print)
    new = b"x" * SIZE
    (nodes.there / "2" / "1.bin").write_bytes(new)
    copies.start(nodes.copy)
    soon(lambda: pauses, "its failure")
    copies.start(nodes.copy)
    assert (pauses, asked.count("1.bin")) == ([prefetch.PAUSE_S], 1)
    index = json.loads((nodes.there / "2" / "1.json").read_bytes())
    index["files"]["1.bin"] = [SIZE, xxh3_64_hexdigest(new)]
    put(nodes.there / "2" / "1.json", json.dumps(index))
    is_over.set()
    soon(lambda: all(thread.name != "hetagent-copy" for thread in threading.enumerate()), "its end")
    copies.start(nodes.copy)
    soon((nodes.here / "0" / "1.json").exists, "the copy")
    assert (nodes.here / "0" / "1.bin").read_bytes() == new


def alike(nodes: Nodes, content: bytes) -> None:
    """Rank 1 has copied what all have alike; the other node has it."""
    (nodes.there / "2" / "shared.bin").write_bytes(content)
    index = json.loads((nodes.there / "2" / "1.json").read_bytes())
    index["files"]["shared.bin"] = [len(content), xxh3_64_hexdigest(content)]
    index["shared"] = True
    put(nodes.there / "2" / "1.json", json.dumps(index))


def declared(node: Path) -> HeldSnapshot:
    """What a node declares of its only snapshot."""
    (held,) = SnapshotDir(node).list_held_snapshots()
    return held


def test_a_node_that_had_nothing_has_all_that_ranks_have_alike_with_the_parts_of_a_whole_node(
    nodes: Nodes,
) -> None:
    """AdamW's step counters are alike on all ranks: without them no node could begin from the copies."""
    content = os.urandom(764)
    alike(nodes, content)
    shutil.rmtree(nodes.here / "0")
    (nodes.here / "3-120").unlink()
    nodes.runs(4)
    fetch(nodes.here, nodes.copy)
    slot = SnapshotFiles(nodes.here).find_slots()[Taken(3, 120)]
    assert (slot.path / "shared.bin").read_bytes() == content
    assert declared(nodes.here).whole
    assert not list(slot.path.glob("*.new*"))


def test_what_ranks_have_alike_is_not_fetched_twice(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(700)
    alike(nodes, content)
    files = {"shared.bin": [len(content), xxh3_64_hexdigest(content)]}
    part(nodes.here, 0, (3, 120), sharded=True, files=files)
    (nodes.here / "0" / "shared.bin").write_bytes(content + b"of other ranks")
    asked: list[str] = []
    opened = Fetched.open
    monkeypatch.setattr(Fetched, "open", lambda self, name: (asked.append(name), opened(self, name))[1])
    nodes.runs(4)
    fetch(nodes.here, nodes.copy)
    assert "shared.bin" not in asked
    assert (nodes.here / "0" / "shared.bin").read_bytes() == content + b"of other ranks"


def test_a_copy_of_an_earlier_round_leaves_alone_what_a_worker_has_mapped(nodes: Nodes) -> None:
    """A worker of this round may have the file of that rank, larger, for its own snapshots."""
    mapped = MappedFile(nodes.here / "0" / "1.bin", 5 * SIZE)
    mapped._map[:] = b"x" * mapped.size
    nodes.runs(4)
    fetch(nodes.here, nodes.copy)
    assert (nodes.here / "0" / "1.bin").read_bytes() == nodes.content
    assert mapped._map[-1] == ord("x"), "a file that was cut would end the process here"
    assert not mapped.truncate_to_map(), "it has to be mapped again"
    assert not list((nodes.here / "0").glob("*.new*"))


def test_without_memory_for_it_nothing_is_left_of_a_copy(nodes: Nodes) -> None:
    nodes.runs(4, memory=100)
    with pytest.raises(OSError, match="a larger --snapshot-memory"):
        fetch(nodes.here, nodes.copy)
    assert not (nodes.here / "0" / "1.bin").exists()


def test_a_slot_that_is_given_away_in_the_middle_of_a_copy_is_left_alone(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may have mapped that file for a snapshot of its own."""
    whose, read = nodes.here / "0" / "1.bin", Fetched.read

    def given_away(*args: Any) -> Iterator[memoryview]:
        for piece in read(*args):
            named(nodes.here, 0, (4, 160))
            whose.write_bytes(b"x" * 5 * SIZE)
            yield piece

    monkeypatch.setattr(Fetched, "read", given_away)
    with pytest.raises(FileNotFoundError):
        fetch(nodes.here, nodes.copy)
    assert whose.read_bytes() == b"x" * 5 * SIZE
    assert not (nodes.here / "0" / "1.json").exists()
