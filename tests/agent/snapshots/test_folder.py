"""The files of snapshots on a node."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hetagent.snapshots.errors import SnapshotSuperseded
from hetagent.snapshots.folder import (
    TO_DISK,
    Index,
    SnapshotFiles,
    SnapshotId,
    choose_snapshot_to_evict,
    open_atomic,
    write_atomic,
    write_lock,
)

ONE, TWO, THREE, FOUR = (SnapshotId(1, step) for step in (1, 2, 3, 4))


def control(folder: SnapshotFiles, **told: object) -> None:
    (folder.path / "control.json").write_text(json.dumps(told))


def test_all_workers_of_a_node_get_the_same_slot_for_a_snapshot(tmp_path: Path) -> None:
    first, second = SnapshotFiles(tmp_path), SnapshotFiles(tmp_path)
    assert first.claim_slot(ONE).directory == second.claim_slot(ONE).directory
    assert (
        second.claim_slot(TWO).directory == first.claim_slot(TWO).directory != first.claim_slot(ONE).directory
    )


@pytest.mark.parametrize(
    ("held", "retained", "stamp", "how", "goes"),
    [
        ([TWO], [], THREE, {}, None),
        ([TWO, THREE], [], FOUR, {"sharded": True}, None),
        ([TWO, THREE], [], FOUR, {}, TWO),
        ([TWO, THREE], [TWO], FOUR, {}, THREE),
        ([ONE, TWO, THREE], [ONE, TWO, THREE], FOUR, {"sharded": True}, THREE),  # the last step needs one
        ([TWO, THREE, FOUR], [TWO, THREE], SnapshotId(1, 5), {"sharded": True}, FOUR),
        ([ONE, TWO], [TWO, ONE], THREE, {"due": True}, SnapshotSuperseded),  # one is being written to disk
        ([ONE, TWO, THREE], [ONE, THREE, TWO], FOUR, {"sharded": True, "due": True}, SnapshotSuperseded),
        ([TWO, THREE], [], ONE, {}, SnapshotSuperseded),
        ([TWO, THREE], [], SnapshotId(2, 1), {}, TWO),
        # Living workers may be a step apart when a round ends: two steps fit beside the safe one.
        ([ONE, TWO, THREE], [ONE], FOUR, {"sharded": True}, TWO),
        ([ONE, THREE, FOUR], [ONE], TWO, {"sharded": True}, SnapshotSuperseded),
    ],
)
def test_the_oldest_makes_room_unless_it_is_retained(
    held: list[SnapshotId], retained: list[SnapshotId], stamp: SnapshotId, how: dict[str, bool], goes: Any
) -> None:
    options = {"sharded": False, **how}
    if goes is SnapshotSuperseded:
        with pytest.raises(SnapshotSuperseded, match="newer snapshots than that of step"):
            choose_snapshot_to_evict(stamp, held, retained, **options)
    else:
        assert choose_snapshot_to_evict(stamp, held, retained, **options) == goes


def test_a_slot_is_given_away_by_what_the_agent_says(tmp_path: Path) -> None:
    folder = SnapshotFiles(tmp_path)
    control(folder, round=1, retained=[ONE])
    for stamp in (ONE, TWO, THREE):
        folder.claim_slot(stamp)
    assert set(folder.find_slots()) == {ONE, THREE}


def test_what_is_for_the_disk_is_marked_until_its_slot_is_given_away(tmp_path: Path) -> None:
    folder = SnapshotFiles(tmp_path)
    directory = folder.claim_slot(ONE, to_disk=True).directory
    assert (folder.claim_slot(ONE).path / TO_DISK).exists()
    for stamp in (TWO, THREE):
        folder.claim_slot(stamp)
    assert not (directory / TO_DISK).exists()


def test_a_slot_that_is_given_away_has_no_index_any_more_and_its_former_name_leads_nowhere(
    tmp_path: Path,
) -> None:
    folder = SnapshotFiles(tmp_path)
    slot = folder.claim_slot(ONE)
    (slot.path / "0.json").write_text("{}")
    folder.discard_newer(None)
    assert (folder.find_slots(), slot.find_indexes()) == ({}, {})
    assert folder.claim_slot(TWO).find_indexes() == {}
    with pytest.raises(FileNotFoundError):
        write_atomic(slot.path / "0.json", b"{}")


def test_files_of_ranks_that_are_elsewhere_now_take_no_memory_for_ever(tmp_path: Path) -> None:
    folder = SnapshotFiles(tmp_path)
    slot = folder.claim_slot(ONE)
    for name in ("shared.bin", "0.bin", "1.bin", "4.bin", "4.bin.new", "0.small", "4.small", "4.json"):
        (slot.path / name).write_text("{}")
    directory = slot.directory
    folder.discard_newer(None)
    control(folder, round=2, ranks=[1, 2])
    assert folder.claim_slot(TWO).directory == directory
    left = {path.name for path in directory.iterdir()}
    assert left == {"shared.bin", "1.bin"}


def test_control_is_read_again_when_it_changes(tmp_path: Path) -> None:
    folder = SnapshotFiles(tmp_path)
    assert folder.read_control().retained == ()
    control(folder, round=3, must_wait=True, retained=[[2, 8]], every_s=16, memory=9, to_disk=True)
    told = folder.read_control()
    assert (told.round, told.must_wait, told.retained) == (3, True, (SnapshotId(2, 8),))
    assert (told.every_s, told.memory, told.to_disk) == (16, 9, True)


def test_one_worker_copies_what_all_have_alike_and_another_if_it_dies(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from hetagent.snapshots.folder import write_lock
lock = write_lock(Path(sys.argv[1]), wait=True)
print(lock is not None, flush=True)
time.sleep(100)
"""
    path = tmp_path / "shared.lock"
    other = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline().strip() == "True"
    assert write_lock(path, wait=False) is None
    os.kill(other.pid, signal.SIGKILL)
    lock = write_lock(path, wait=True)
    assert lock is not None
    other.wait()
    other.stdout.close()
    lock.close()


def test_a_child_that_is_forked_while_slots_are_changed_does_not_keep_others_from_it(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
from pathlib import Path
from hetagent.snapshots.folder import SnapshotFiles, SnapshotId
folder = SnapshotFiles(Path(sys.argv[1]))
with folder._hold_lock():
    child = os.fork()
    if not child:
        time.sleep(100)
signal.alarm(10)
try:
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(1))
    folder.claim_slot(SnapshotId(1, 1))
finally:
    os.kill(child, signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"null", b'{"v": 2}', b'{"v": 1}', b'{"v": 1, "round": 1, "step": 1}']
)
def test_what_is_no_index_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Index.from_json(text)


def test_two_writers_of_a_file_do_not_meet(tmp_path: Path) -> None:
    """In containers with a directory that they share they have the same pid, too."""
    path = tmp_path / "shared.bin"
    with open_atomic(path) as one, open_atomic(path) as other:
        one.write(b"one")
        other.write(b"other")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"one"]
