"""What a node holds, from the indexes that workers have written: no files."""

import json
from typing import Any

import pytest

from hetagent.snapshots.node.holdings import Part, Unusable, held, newest, read
from hetrdzv.protocol.rooms.snapshots import Held, Stamp

STAMP = Stamp(round=3, step=120)
SIZES = {"shared.bin": 100, "0.bin": 50, "1.bin": 50}


def index(rank: int = 0, **more: Any) -> dict[str, Any]:
    told = {"v": 1, "stamp": [3, 120], "rank": rank, "world_size": 2, "sharded": False}
    return {**told, "shared": True, "tensors": [], "files": {}, **more}


def part(rank: int = 0, **more: Any) -> Part:
    made = read(json.dumps(index(rank, **more)).encode(), f"d{rank}", STAMP, rank, SIZES)
    assert made is not None
    return made


def test_one_rank_that_has_copied_all_that_is_alike_makes_it_whole() -> None:
    first = part(0, files={"shared.bin": [100, "d"], "0.bin": [5, "e"]})
    second = part(1, files={"1.bin": [5, "e"]})
    assert held([first]).whole
    assert not held([second]).whole
    assert held([part(0, shared=False, sharded=True)]).whole, "nothing is alike"
    both = held([second, first])
    assert both.whole
    assert [(each.rank, each.digest) for each in both.ranks] == [(0, "d0"), (1, "d1")]
    assert (both.round, both.step, both.world_size, both.size) == (3, 120, 2, 110)


def test_parts_of_different_worlds_do_not_fit() -> None:
    with pytest.raises(Unusable, match="different rounds or layouts"):
        held([part(0), part(1, world_size=3)])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"v": 1, "round"', "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[]", "makes no sense"),
        (b'{"v": 2}', "of version 2"),
        (b'{"v": 1}', "makes no sense"),
        (json.dumps(index(0, files={"shared.bin": [101, "d"]})).encode(), "shared.bin is too short"),
        (json.dumps(index(0, files={"7.bin": [1, "d"]})).encode(), "7.bin is too short"),
        (json.dumps(index(0, stamp=["a", 1])).encode(), "cannot be read"),
        (json.dumps(index(1)).encode(), "of rank 1 of 2"),
        (json.dumps(index(0, world_size=0)).encode(), "of rank 0 of 0"),
    ],
)
def test_what_does_not_count_says_why(text: bytes, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        read(text, "d", STAMP, 0, SIZES)


def test_what_a_slot_held_before_is_nothing() -> None:
    assert read(json.dumps(index(0, stamp=[3, 60])).encode(), "d", STAMP, 0, SIZES) is None


def test_the_newest_are_declared_without_those_that_were_dropped() -> None:
    def of(number: int, step: int) -> Held:
        return Held(round=number, step=step, world_size=2)

    found = [of(1, 10), of(2, 30), of(3, 30), of(1, 20), of(1, 5)]
    assert newest(found, ()) == (of(3, 30), of(2, 30), of(1, 20), of(1, 10))
    assert newest(found, {Stamp(round=3, step=30)}) == (of(2, 30), of(1, 20), of(1, 10), of(1, 5))
