"""The steps of the last hour as lines."""

import pytest

from hetrdzv.dashboard.timeline import HEIGHT, WIDTH, speed_line, step_line
from hetrdzv.service.progress.trail import Point


def trail(*points: tuple[float, int, int]) -> tuple[Point, ...]:
    return tuple(Point(*point) for point in points)


def test_a_line_has_the_speed_from_zero_and_a_gap_at_a_restart() -> None:
    points = trail((0.0, 1, 0), (30.0, 1, 60), (60.0, 1, 90), (90.0, 2, 80), (120.0, 2, 110), (150.0, 2, 170))
    speeds = speed_line(points)
    assert speeds is not None
    assert (speeds.least, speeds.most, speeds.last, speeds.since_s) == (1.0, 2.0, 2.0, 150.0)
    assert speeds.pieces == ["60.0,0.0 120.0,18.0", f"240.0,18.0 {WIDTH},0.0"]
    steps = step_line(points)
    assert steps is not None
    assert (steps.least, steps.most, len(steps.pieces)) == (0.0, 170.0, 1)
    assert steps.pieces[0].startswith(f"0.0,{HEIGHT} ")


@pytest.mark.parametrize("points", [(), ((0.0, 1, 1), (30.0, 1, 2))])
def test_a_few_points_are_no_line(points: tuple[tuple[float, int, int], ...]) -> None:
    assert step_line(trail(*points)) is None
    assert speed_line(trail(*points)) is None


def test_a_job_that_stands_still_has_a_flat_line() -> None:
    points = trail(*((at * 30.0, 1, 7) for at in range(6)))
    speeds = speed_line(points)
    assert speeds is not None
    assert (speeds.most, speeds.last) == (0.0, 0.0)
