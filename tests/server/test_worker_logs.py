"""hetctl logs --follow: what is new in the end of a log."""

import pytest

from hetrdzv.cli.hetctl.logs import new_text


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "a/b", "a/b"),
        ("a/b/", "a/b/", ""),
        ("a/b", "a/b", ""),
        ("a/b", "a/b/c", "c"),
        ("a/b/c/", "b/c/d/", "b/c/d/"),  # too little is left of what was known
        ("x/a/b/c/", "x/a/b/c/d/e", "d/e"),
        ("a/b/10%", "a/b/20%", "20%"),  # a progress bar
        ("a/b/hal", "a/b/half/c", "half/c"),
        ("a/b/", "x/y/", "x/y/"),
        ("10%", "20%", "20%"),
    ],
)
def test_only_lines_that_are_new_are_shown(before: str, now: str, new: str) -> None:
    assert new_text(before.replace("/", "\n"), now.replace("/", "\n")) == new.replace("/", "\n")
