"""What a node holds, from the indexes that workers have written: no files."""

import json
from typing import Any

import pytest

from hetagent.snapshots.node.holdings import Part, Unusable, held, newest, read
from hetrdzv.protocol.rooms.snapshots import Held, Stamp

STAMP = Stamp(round=3, step=120)
SIZES = {"shared.bin": 100, "0.bin": 50, "1.bin": 50}


def index(rank: int = 0, **more: Any) -> dict[str, Any]:
    told = {"v": 1, "round": 3, "step": 120, "rank": rank, "world_size": 2, "sharded": False}
    return {**told, "alike": {"a": 60, "b": 40}, "tensors": [], "digests": {}, "small_bytes": 5, **more}


def block(name: str, at: int, size: int, file: str = "shared.bin") -> dict[str, Any]:
    return {"name": name, "file": file, "at": at, "bytes": size, "dtype": "float32", "digest": "d"}


def part(rank: int = 0, **more: Any) -> Part:
    made = read(json.dumps(index(rank, **more)).encode(), f"d{rank}", STAMP, rank, SIZES)
    assert made is not None
    return made


def test_one_rank_that_has_copied_all_that_is_alike_makes_it_whole() -> None:
    first = part(0, tensors=[block("a", 0, 60), block("b", 60, 40)])
    second = part(1)
    assert held([first]).whole
    assert not held([second]).whole
    assert not held([part(0, tensors=[block("a", 0, 60)])]).whole
    both = held([second, first])
    assert both.whole
    assert [(each.rank, each.digest) for each in both.ranks] == [(0, "d0"), (1, "d1")]
    assert (both.round, both.step, both.world_size, both.size) == (3, 120, 2, 110)


def test_ranks_own_parts_make_nothing_whole() -> None:
    alone = part(0, sharded=True, tensors=[block("a", 0, 50, "0.bin")])
    assert held([alone]).sharded
    assert not held([alone]).whole
    assert held([part(0, alike={}, sharded=True)]).whole, "nothing is alike"


def test_values_that_differ_are_named() -> None:
    same = held([part(rank, digests={"epoch": "1", "lr": "2"}) for rank in (0, 1)])
    assert same.values == {"epoch": "1", "lr": "2"}
    with pytest.raises(
        Unusable, match=r"ranks 0 and 1 have different values of 'epoch'.*name it in per_rank"
    ):
        held([part(rank, digests={"epoch": str(rank)}) for rank in (0, 1)])


def test_of_many_values_as_many_are_declared_as_may_be() -> None:
    assert len(held([part(digests={f"v{number:03}": "1" for number in range(100)})]).values) == 64


def test_parts_of_different_worlds_do_not_fit() -> None:
    with pytest.raises(Unusable, match="different rounds or layouts"):
        held([part(0), part(1, world_size=3)])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"v": 1, "round"', "torn"),
        (b"[" * 100_000, "torn"),
        (b"[]", "of version None"),
        (b'{"v": 2}', "of version 2"),
        (b'{"v": 1}', "makes no sense"),
        (json.dumps(index(0, tensors=[block("a", 90, 20)])).encode(), "shared.bin ends before a"),
        (json.dumps(index(0, tensors=[block("a", 0, 1, "7.bin")])).encode(), "7.bin ends before a"),
        (json.dumps(index(0, tensors=[block("a", -1, 1)])).encode(), "makes no sense"),
        (json.dumps(index(1)).encode(), "of rank 1 of 2"),
        (json.dumps(index(0, world_size=0)).encode(), "makes no sense"),
    ],
)
def test_what_does_not_count_says_why(text: bytes, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        read(text, "d", STAMP, 0, SIZES)


def test_what_a_slot_held_before_is_nothing() -> None:
    assert read(json.dumps(index(0, step=60)).encode(), "d", STAMP, 0, SIZES) is None


def test_the_newest_are_declared_without_those_that_were_dropped() -> None:
    def of(number: int, step: int) -> Held:
        return Held(round=number, step=step, world_size=2)

    found = [of(1, 10), of(2, 30), of(3, 30), of(1, 20), of(1, 5)]
    assert newest(found, ()) == (of(3, 30), of(2, 30), of(1, 20), of(1, 10))
    assert newest(found, {Stamp(round=3, step=30)}) == (of(2, 30), of(1, 20), of(1, 10), of(1, 5))
