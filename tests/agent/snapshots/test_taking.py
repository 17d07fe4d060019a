"""How often snapshots are taken."""

import pytest

from hetagent.snapshots.taking import steps_apart


@pytest.mark.parametrize(
    ("cost_s", "own_s", "apart"),
    [
        (0.03, 0.0, 64),  # 60 steps of 100 ms
        (0.03, 0.0001, 128),  # what belongs to every step is a fifth of it
        (0.03, 0.001, 128),  # half of it is counted at most
        (0.0, 0.0, 1),
    ],
)
def test_snapshots_take_a_part_of_the_time_with_what_belongs_to_every_step(
    cost_s: float, own_s: float, apart: int
) -> None:
    assert steps_apart(cost_s, 0.1, own_s) == apart
