"""hetctl logs: what is new in the end of a log."""

import pytest

from hetrdzv.cli.hetctl.look.logs import GAP, news


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "a b", "a b"),
        ("a b", "a b", ""),
        ("a b", "a b c", "c"),
        ("a b c", "b c d e", "d e"),  # the beginning is no longer kept
        ("a b 10%", "a b 20%", "20%"),  # a progress bar
        ("a b hal", "a b half c", "half c"),
        ("a a a", "a a a a", "a"),
        ("a b", "x y", f"{GAP} x y"),
        ("10%", "20%", "20%"),
    ],
)
def test_only_lines_that_are_new_are_shown(before: str, now: str, new: str) -> None:
    assert news(before.split(), now.split()) == new.split()
