"""Durations of hetserver's flags."""

import pytest

from hetrdzv.cli.types import duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90s", 90), ("1.5m", 90), ("12h", 43_200), ("7d", 604_800), ("3650d", 315_360_000)],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "90", "7w", "1d12h", "nan", "inf", "1e3", "3651d", "d", "7 d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration such as 90s, 15m, 12h or 7d, at most 3650d"):
        duration(text)
