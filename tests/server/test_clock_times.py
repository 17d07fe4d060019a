"""Clock times beside durations, in the words of whoever has a clock."""

from datetime import UTC, datetime, timedelta

import pytest
from hetrdzv.protocol.clock_times import ago, clock_time, later, with_clock_times

NOW = datetime(2026, 11, 22, 13, 53, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("waiting for 1 more (at most 598 s more)", "waiting for 1 more (until 14:03:10, 598 s from now)"),
        (
            "last call: starts in 8 s, or as soon as 3 are ready",
            "last call: starts at 13:53:20, 8 s from now, or as soon as 3 are ready",
        ),
        ("at most 3 nodes", "at most 3 nodes"),
        ("no heartbeat for 5 s", "no heartbeat for 5 s"),
        ("(at most 86400 s more)", "(until 2026-11-23 13:53:12, 86400 s from now)"),
    ],
)
def test_durations_get_a_clock_time(text: str, shown: str) -> None:
    assert with_clock_times(text, NOW) == shown


def test_a_date_is_shown_for_another_day_only() -> None:
    assert clock_time(NOW, NOW) == "13:53:12"
    assert clock_time(NOW - timedelta(days=1), NOW) == "2026-11-21 13:53:12"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.2, "0 s ago"), (119, "119 s ago"), (180, "3 min ago"), (7_200, "2 h ago"), (200_000, "2 days ago")],
)
def test_ago(seconds: float, shown: str) -> None:
    assert ago(seconds) == shown


def test_a_text_that_was_said_some_time_ago() -> None:
    assert later("waiting for gpu2 (at most 60 s more)", 12.9) == "waiting for gpu2 (at most 48 s more)"
    assert later("starts in 8 s", 9.0) == "starts in 0 s"
