"""Plans come true: 50 changes, 500 of them with HET_TEST_ALL=1, each planned before it really happens."""

import os

import pytest

from tests.sim.__main__ import tell
from tests.sim.plans import CASES_A_STORY, PlannedWorld
from tests.support.needs import ALL

STORIES = (500 if os.environ.get(ALL) == "1" else 50) // CASES_A_STORY


def test_what_is_planned_is_what_happens() -> None:
    """A failing one is replayed by `python -m tests.sim.plans --seeds 1 --from SEED -v`."""
    planned = 0
    for seed in range(STORIES):
        world = PlannedWorld(seed)
        outcome = world.run()
        if outcome.check:
            pytest.fail(tell(outcome, lines=80), pytrace=False)
        planned += sum(world.kinds.values())
    assert planned == STORIES * CASES_A_STORY
