"""How moments and durations look."""

from datetime import UTC, datetime, timedelta

import pytest

from hetrdzv.protocol.texts.times import Clock, ago, clock_time, lasted

HERE = datetime(2026, 11, 22, 13, 53, 12, tzinfo=UTC)
NOW = 1000.0


def test_where_there_is_no_clock_only_durations_are_shown() -> None:
    clock = Clock(NOW)
    assert clock.at_most(NOW + 598) == "at most 9 min 58 s more"
    assert clock.left(NOW - 3) == "0 s", "it is overdue"


def test_durations_get_a_clock_time() -> None:
    clock = Clock(NOW, HERE)
    assert clock.at_most(NOW + 598) == "until 14:03:10, 9 min 58 s from now"
    assert clock.at_most(NOW + 86_400) == "until 2026-11-23 13:53:12, 1 d 0 h from now"


def test_a_date_is_shown_for_another_day_only() -> None:
    assert clock_time(HERE, HERE) == "13:53:12"
    assert clock_time(HERE - timedelta(days=1), HERE) == "2026-11-21 13:53:12"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.2, "0.2 s ago"), (180, "3 min ago"), (7_200, "2 h ago"), (200_000, "2 d ago")],
)
def test_ago(seconds: float, shown: str) -> None:
    assert ago(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.04, "< 0.1 s"),
        (0.06, "0.1 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (12_000, "3 h 20 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_a_length_of_time(seconds: float, text: str) -> None:
    assert lasted(seconds) == text
