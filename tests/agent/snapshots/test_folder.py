"""The files of snapshots on a node."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hetagent.snapshots.errors import Overtaken
from hetagent.snapshots.folder import Claims, Folder, Index, Place, Stamp

ONE, TWO, THREE, FOUR = (Stamp(1, step) for step in (1, 2, 3, 4))


def control(folder: Folder, **told: object) -> None:
    (folder.path / "control.json").write_text(json.dumps(told))


def test_all_workers_of_a_node_get_the_same_slot_for_a_snapshot(tmp_path: Path) -> None:
    first, second = Folder(tmp_path), Folder(tmp_path)
    assert first.begin(ONE).number == second.begin(ONE).number
    assert second.begin(TWO).number == first.begin(TWO).number != first.begin(ONE).number


def test_the_oldest_makes_room(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for stamp in (ONE, TWO, THREE, FOUR):
        folder.begin(stamp)
    assert set(folder.slots()) == {TWO, THREE, FOUR}


def test_what_the_agent_says_is_kept_however_old_it_is(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    control(folder, round=1, kept=[ONE.told()])
    for stamp in (ONE, TWO, THREE, FOUR):
        folder.begin(stamp)
    assert set(folder.slots()) == {ONE, THREE, FOUR}


def test_two_steps_fit_beside_the_complete_one(tmp_path: Path) -> None:
    """Living workers may be a step apart when a round ends."""
    folder = Folder(tmp_path)
    for stamp in (ONE, TWO, THREE):
        folder.begin(stamp)
    control(folder, round=1, kept=[ONE.told()])
    folder.begin(Stamp(1, 7))
    folder.begin(Stamp(1, 6))
    assert set(folder.slots()) >= {ONE, Stamp(1, 6)}
    folder.begin(Stamp(1, 7))
    assert set(folder.slots()) == {ONE, Stamp(1, 6), Stamp(1, 7)}


def test_what_is_safe_and_what_a_round_began_from_are_kept_for_as_long_as_can_be(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for stamp in (ONE, TWO):
        folder.begin(stamp)
    control(folder, round=2, kept=[ONE.told(), TWO.told()])
    first, second, end, beside = (Stamp(2, step) for step in (10, 20, 25, 26))
    folder.begin(first, spares=True)
    with pytest.raises(Overtaken, match="before another one is safe"):
        folder.begin(second, spares=True)
    assert set(folder.slots()) == {ONE, TWO, first}
    folder.begin(second, spares=True, insists=True)
    assert set(folder.slots()) == {ONE, TWO, second}
    folder.begin(end)
    assert set(folder.slots()) == {ONE, TWO, end}
    folder.begin(beside)  # of the living workers some may have ended with the one, some with the other
    assert set(folder.slots()) == {ONE, end, beside}
    control(folder, round=3, kept=[beside.told()])
    folder.begin(Stamp(3, 40), spares=True)
    folder.begin(Stamp(3, 50), spares=True)
    assert set(folder.slots()) == {beside, Stamp(3, 40), Stamp(3, 50)}


def test_of_what_may_be_safe_the_likeliest_is_kept_when_a_round_ends(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    safe, may_be, newest = (Stamp(2, step) for step in (10, 20, 30))
    for stamp in (safe, may_be, newest):
        folder.begin(stamp, spares=True)
    control(folder, round=2, kept=[stamp.told() for stamp in (safe, may_be, newest)])
    with pytest.raises(Overtaken):
        folder.begin(Stamp(2, 40), spares=True, insists=True)
    with pytest.raises(Overtaken):  # the other nodes might drop the same one, for shards of different steps
        folder.begin(Stamp(2, 40), sharded=True)
    folder.begin(Stamp(2, 45))
    assert set(folder.slots()) == {safe, may_be, Stamp(2, 45)}


def test_a_slot_that_is_given_away_has_no_index_any_more(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    slot = folder.begin(ONE)
    (slot.path / "0.json").write_text("{}")
    folder.forget([ONE])
    assert folder.slots() == {}
    assert slot.indexes() == {}


def test_control_is_read_again_when_it_changes(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.control().kept == ()
    control(folder, round=3, kept=[[2, 8]], every_s=16, memory=9)
    told = folder.control()
    assert (told.round, told.kept, told.every_s, told.memory) == (3, (Stamp(2, 8),), 16, 9)


def test_claims_share_blocks_and_each_is_copied_once(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "claims", 10)
    first = claims.mine(wait=False)
    taken = [next(first) for _ in range(3)]
    code = """
import sys
from pathlib import Path
from hetagent.snapshots.errors import Overtaken
from hetagent.snapshots.folder import Claims
print(*Claims(Path(sys.argv[1]), 10).mine(wait=False))
"""
    other = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "claims")], capture_output=True, text=True, check=True
    )
    theirs = [int(word) for word in other.stdout.split()]
    rest = list(first)
    assert sorted([*taken, *theirs, *rest]) == list(range(10))
    claims.close()


def test_what_a_killed_worker_was_copying_is_copied_by_another(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from hetagent.snapshots.errors import Overtaken
from hetagent.snapshots.folder import Claims
mine = Claims(Path(sys.argv[1]), 4).mine(wait=False)
print(next(mine), next(mine), flush=True)
time.sleep(100)
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "claims")], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline().split() == ["0", "1"]  # it has copied 0, and is at 1
    claims = Claims(tmp_path / "claims", 4)
    mine = claims.mine(wait=True)
    assert [next(mine), next(mine)] == [2, 3]
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert list(mine) == [1]
    other.stdout.close()
    claims.close()


def test_an_index_comes_back_as_it_was_written() -> None:
    place = Place(
        name="model.weight",
        dtype="float32",
        shape=(4, 2),
        offsets=(2, 0),
        lengths=(2, 2),
        file="1.bin",
        at=64,
        bytes=16,
        digest="ab",
    )
    index = Index(
        stamp=Stamp(3, 12),
        rank=1,
        world_size=2,
        sharded=True,
        alike={"a": 4},
        tensors=(place,),
        digests={"sampler": "cd"},
    )
    assert Index.read(index.written()) == index


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"null", b'{"v": 2}', b'{"v": 1}', b'{"v": 1, "round": 1, "step": 1}']
)
def test_what_is_no_index_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Index.read(text)
