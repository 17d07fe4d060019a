"""What some ranks have saved comes back bit for bit in worlds of other sizes, where training goes on undisturbed."""

from pathlib import Path

import pytest
from tests.support.worlds.jobs import LAST, NEEDS_FSDP, SAVED, Trained, assert_same, loads, saves
from tests.support.worlds.ranks import run

ROUNDING = 1e-12
"""By how much losses may differ in float64 when others share the sum."""


def check(trained: list[Trained], saved: list[Trained]) -> None:
    """All ranks have loaded what was saved, and have gone on as the job did that was left alone."""
    [(state, losses), *others] = saved
    for other, _ in others:
        assert_same(other, state)
    for loaded, later in trained:
        assert_same(loaded, state)
        assert len(later) == LAST - SAVED
        assert later == pytest.approx(losses, rel=ROUNDING, abs=ROUNDING)


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=NEEDS_FSDP)])
def test_what_two_ranks_saved_comes_back_in_any_world(kind: str, tmp_path: Path) -> None:
    saved = run(2, saves, kind, tmp_path)
    for world_size in (1, 2, 3):
        check(run(world_size, loads, kind, tmp_path), saved)


@NEEDS_FSDP
def test_what_was_replicated_goes_on_sharded_and_the_other_way_round(tmp_path: Path) -> None:
    for before, after in (("ddp", "fsdp"), ("fsdp", "ddp")):
        saved = run(2, saves, before, tmp_path / before)
        check(run(3, loads, after, tmp_path / before), saved)


@NEEDS_FSDP
def test_replicas_of_shards_come_back_as_shards_though_one_was_killed(tmp_path: Path) -> None:
    saved = run(4, saves, "hsdp", tmp_path)
    check(run(3, loads, "fsdp", tmp_path), saved)
