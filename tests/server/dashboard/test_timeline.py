"""Rounds as a drawing: one bar after another, none too thin to be seen."""

import pytest

from hetrdzv.dashboard.group import bars
from hetrdzv.protocol.rounds import RoundRecord


def test_bars_fill_the_width_and_none_is_too_thin_to_be_seen() -> None:
    time = {"starting_up": 2.0, "training": 2_000.0, "noticing": 0.5}
    rounds = [RoundRecord(number=1, world_size=2, time=time), RoundRecord(number=2, world_size=2, time=time)]
    drawn = bars(rounds)
    assert [(bar.phase, bar.length, bar.round) for bar in drawn[:4]] == [
        ("starting_up", 2.0, 1),
        ("training", 2_000.0, 1),
        ("noticing", 0.5, 1),
        ("starting_up", 2.0, 2),
    ]
    assert min(bar.width for bar in drawn) == 2
    assert drawn[3].x == pytest.approx(500)
    assert bars([]) == bars([RoundRecord(number=1, world_size=2)]) == []
