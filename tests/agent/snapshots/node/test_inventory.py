"""Which snapshots a node holds, from the indexes of its workers."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.agent.snapshots.node.standin import part
from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.folder import Folder, Stamp
from hetagent.snapshots.node.inventory import SnapshotInventory
from hetrdzv.protocol.snapshots import Held, RankPart


class Node:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.logged: list[str] = []
        self.inventory = SnapshotInventory(Folder(path), self.logged.append)

    def part(self, stamp: tuple[int, int] = (3, 120), slot: int = 0, rank: int = 0, **more: Any) -> None:
        part(self.path, slot, stamp, rank, **more)

    @property
    def held(self) -> tuple[Held, ...]:
        return self.inventory.held()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_newest_come_first_without_those_that_were_dropped(node: Node) -> None:
    node.part(rank=0)
    node.part(rank=1, files={})
    node.part((3, 60), slot=2, rank=1, files={})
    assert [(one.step, one.whole, len(one.ranks), one.size) for one in node.held] == [
        (120, True, 2, 69),
        (60, False, 1, 0),
    ]
    digest = xxh3_64_hexdigest((node.path / "0" / "1.json").read_bytes())
    assert node.held[0].ranks[1] == RankPart(rank=1, digest=digest)
    assert [one.step for one in node.inventory.held({Stamp(3, 120)})] == [60]
    assert node.logged == []


def test_ranks_own_parts_make_nothing_whole(node: Node) -> None:
    node.part(sharded=True, files={})
    assert [(one.sharded, one.whole) for one in node.held] == [(True, False)]
    node.part(sharded=True, shared=False, files={})
    assert node.held[0].whole, "nothing is alike"


def test_a_slot_that_is_reused_holds_nothing_of_the_old(node: Node) -> None:
    node.part((3, 60), rank=0)
    node.part((3, 60), rank=1)
    assert len(node.held[0].ranks) == 2
    node.part((3, 120), rank=1)
    assert [(one.step, [each.rank for each in one.ranks]) for one in node.held] == [(120, [1])]


def test_an_index_that_is_replaced_is_read_again(node: Node) -> None:
    node.part()
    before = node.held
    assert node.held == before
    node.part(files={})
    assert (before[0].whole, node.held[0].whole) == (True, False)


@pytest.mark.parametrize("size", [0, 20, None])
def test_what_is_torn_does_not_count_and_is_logged_once(node: Node, size: int | None) -> None:
    node.part(**({"v": 2} if size is None else {}))
    if size is not None:
        os.truncate(node.path / "0" / "0.json", size)
    assert (node.held, node.held) == ((), ())
    (text,) = node.logged
    assert text.startswith("rank 0's part of the snapshot of step 120 does not count: ")
