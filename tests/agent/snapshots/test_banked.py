"""What a killed worker had kept of its last step becomes its part of the snapshot that others save."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetagent.snapshots.banked import rescue
from hetagent.snapshots.folder import Folder, Index, Stamp

WORKER = """
import os, sys, torch
from hetagent import snapshots
model = torch.nn.BatchNorm1d(2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
mine = {"at": 0}
snaps = snapshots.open({"model": model, "optimizer": optimizer}, per_rank={"mine": mine}, directory=sys.argv[1])
start = snaps.load()
print(start, mine["at"], flush=True)
for step in range(start or 0, int(sys.argv[2])):
    model(torch.ones(3, 2) * step).sum().backward()
    optimizer.step()
    mine["at"] = 100 * int(os.environ["RANK"]) + step + 1
    snaps.step(step + 1)
    if step == 0:
        snaps._taker._ahead.join()
        snaps._taker._every = 1 << 30
if os.environ["RANK"] == "1" and start is None:
    os.kill(os.getpid(), 9)
if start is None:
    snaps.save_now()
"""


def worker(folder: Path, rank: int, steps: int) -> str:
    """What a worker prints."""
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ran = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder), str(steps)],
        env={**os.environ, **place},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return ran.stdout


def test_a_killed_workers_part_is_that_of_the_step_which_the_others_saved(tmp_path: Path) -> None:
    worker(tmp_path, 1, 6)
    worker(tmp_path, 0, 5)
    folder = Folder(tmp_path)
    assert max(folder.slots()) == Stamp(5, 0)
    assert rescue(folder) == 6
    assert worker(tmp_path, 1, 0) == "5 105\n"
    assert worker(tmp_path, 0, 0) == "5 5\n"


def test_its_last_two_steps_are_parts_since_others_may_be_a_step_behind(tmp_path: Path) -> None:
    worker(tmp_path, 1, 4)
    folder = Folder(tmp_path)
    assert rescue(folder) == 4
    for step in (3, 4):
        index = Index.read((folder.slots()[Stamp(step, 0)].path / "1.json").read_bytes())
        assert (index.rank, index.world_size, index.tensors) == (1, 2, ())


def test_what_a_worker_had_that_was_behind_does_not_cost_what_the_others_saved(tmp_path: Path) -> None:
    """It was killed in the middle of a step, which the others have ended."""
    worker(tmp_path, 1, 6)
    worker(tmp_path, 0, 7)
    folder, saved = Folder(tmp_path), Stamp(7, 0)
    folder.begin(Stamp(1, 0))
    (tmp_path / "control.json").write_text(json.dumps({"round": 0, "kept": [[0, 1], [0, 7]]}))
    assert rescue(Folder(tmp_path)) == 7
    assert set(folder.slots()) == {Stamp(1, 0), Stamp(6, 0), saved}
    assert set(folder.slots()[saved].indexes()) == {0}


@pytest.mark.parametrize("name", ["1.small", "1.json"])
def test_what_cannot_be_read_is_nothing(tmp_path: Path, name: str) -> None:
    worker(tmp_path, 1, 4)
    (tmp_path / "now" / name).write_bytes(b"\xff" * 7)
    assert rescue(Folder(tmp_path)) == 0
    assert Folder(tmp_path).slots() == {}
