"""What workers know of their shares, and of what they measured in the round before: files and variables."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.workers.test_store import start

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.runloop.share_files import ShareFiles
from hetrdzv.protocol.directive import Shares


def assignment(*, weights: list[tuple[int, float]] | None = None, offset: int = 0) -> Assignment:
    """Round 3 with some weights."""
    found = start("a", 1).start
    assert found is not None
    decided = Shares(round=3, weights=tuple(weights)) if weights is not None else None
    of = replace(found, rank_offset=offset, slots=2, world_size=4, shares=decided)
    return Assignment(group="g", node_id="a", round=3, start=of)


def begin(shares: ShareFiles, folder: Path, of: Assignment) -> Path:
    folder.mkdir()
    of.folder = folder
    shares.on_round_start(of, WorkerCommand("train", (), is_python=False))
    return Path(str(shares.worker_env(0)["HET_WEIGHTS_FILE"]))


def test_workers_get_their_weight_the_sum_and_a_file_with_all(tmp_path: Path) -> None:
    shares = ShareFiles()
    path = begin(shares, tmp_path / "1", assignment(weights=[(1, 2.0), (2, 1.0), (1, 0.25)], offset=2))
    assert json.loads(path.read_text()) == {"round": 3, "weights": [2.0, 1.0, 1.0, 0.25], "given": True}
    for local_rank, weight in enumerate(("1", "0.25")):
        environ = shares.worker_env(local_rank)
        assert (environ["HET_WEIGHT"], environ["HET_WEIGHT_SUM"]) == (weight, "4.25")


@pytest.mark.parametrize(("offset", "weight"), [(0, "1"), (2, None)])
def test_the_program_of_a_whole_node_has_a_weight_only_if_its_ranks_have_the_same(
    tmp_path: Path, offset: int, weight: str | None
) -> None:
    shares = ShareFiles(one_per_node=True)
    begin(shares, tmp_path / "1", assignment(weights=[(3, 1.0), (1, 0.5)], offset=offset))
    environ = shares.worker_env(0)
    assert (environ["HET_WEIGHT"], environ["HET_WEIGHT_SUM"]) == (weight, "3.5")


def test_what_a_worker_has_measured_is_there_in_the_next_round_at_its_new_rank(tmp_path: Path) -> None:
    shares = ShareFiles()
    before = begin(shares, tmp_path / "1", assignment(offset=2))
    Path(f"{before}.speed.3").write_text("12345")
    shares.on_round_end()
    shares.on_round_end()
    after = begin(shares, tmp_path / "2", assignment(offset=0))
    assert sorted(path.name for path in after.parent.iterdir()) == ["weights", "weights.speed.1"]
    assert Path(f"{after}.speed.1").read_text() == "12345"
