"""What is loaded after a worker was killed is what the others have saved, or nothing."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.agent.snapshots.test_round_trip import Job, adamw, assert_same

from hetagent.snapshots import SnapshotError
from hetagent.snapshots.folder import SnapshotFiles, SnapshotId


def of_rank(rank: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A worker's script."""
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    job = Job(folder, adamw)
    job.snaps._schedule.is_due = lambda *_, **__: False  # type: ignore[method-assign]
    return job


@pytest.fixture
def survivor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a worker has saved while another one, which was a step ahead, was killed."""
    folder = tmp_path / "node"
    of_rank(1, folder, monkeypatch).train(0, 6)
    job = of_rank(0, folder, monkeypatch)
    job.train(0, 5)
    job.snaps.save_now()
    assert max(SnapshotFiles(folder).find_slots()) == SnapshotId(0, 5)
    return job.everything()


def test_what_the_killed_worker_had_of_its_own_is_gone_and_all_else_is_loaded(
    survivor: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = of_rank(1, tmp_path / "node", monkeypatch)
    own = job.generator["state"].clone()
    assert job.snaps.load() == 5
    assert_same(job.everything(), {**survivor, "state": own})


def test_whichever_file_is_corrupt_nothing_wrong_is_loaded(
    survivor: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = tmp_path / "node"
    files = [path.relative_to(node) for path in node.rglob("*") if path.is_file() and path.stat().st_size]
    assert len(files) > 3
    for file in files:
        spoilt = tmp_path / file.as_posix().replace("/", "-")
        shutil.copytree(node, spoilt)
        content = bytearray((node / file).read_bytes())
        for at in range(0, len(content), 4):
            content[at] ^= 4
        (spoilt / file).write_bytes(content)
        for rank in (0, 1):
            job = of_rank(rank, spoilt, monkeypatch)
            own = job.generator["state"].clone()
            try:
                step = job.snaps.load()
            except (SnapshotError, ValueError):
                continue
            if step is not None:
                assert step == 5, file
                assert_same(job.everything(), survivor if rank == 0 else {**survivor, "state": own})
