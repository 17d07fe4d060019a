"""Tests the checker of all campaigns and end-to-end tests with logs that are wrong in one way each."""

from typing import Any

import pytest

from tests.support.workload.worklog import complaints


def line(at: float, round_number: int, rank: int, **other: object) -> dict[str, Any]:
    """What rank 0 or 1 of a world of 2 writes, unless `other` says otherwise."""
    right = {"world": 2, "sum": 3.0, "restart": 0, "step": 1, "made": 1, "pid": 10 * round_number + rank}
    own = {"at": at, "started": at - 0.5, "imported": at, "node": "ab"[rank % 2]}
    return right | own | {"round": round_number, "rank": rank} | other


RIGHT = [
    line(1.0, 1, 0),
    line(1.1, 1, 1),
    line(1.4, 1, 0, step=50, made=50),
    line(2.0, 2, 0, restart=1, made=41),
    line(2.1, 2, 1, restart=1, made=41),
]


def test_what_is_right_gives_no_complaint() -> None:
    assert complaints(RIGHT) == []


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (line(2.2, 2, 1, restart=0, made=41), "others (2, 1, 40)"),
        (line(2.2, 2, 1, restart=1, made=1), "others (2, 1, 40)"),
        (line(2.2, 2, 1, restart=1, made=41, world=3, sum=6.0), "others (2, 1, 40)"),
        (line(2.2, 2, 2, restart=1, made=41), "no rank of a world of 2"),
        (line(2.2, 2, 1, restart=1, made=41, pid=99), "is two processes, 21 and 99"),
        (line(2.2, 2, 1, restart=1, made=41, sum=2.0), "gave 2.0"),
        (line(2.05, 1, 1, step=2, made=2), "all-reduced after round 2 had"),
        (line(3.0, 3, 1, restart=0), "restart 0 after 1"),
    ],
)
def test_each_wrong_line_is_found(wrong: dict[str, Any], complaint: str) -> None:
    (found,) = complaints([*RIGHT, wrong])
    assert complaint in found
