"""Tests that take minutes to set up, and what they have to show: `make test-all` and its parts."""

import os
from pathlib import Path

import pytest

ALL = "HET_TEST_ALL"
SHOWN = "HET_SHOWN"
"""Names the file into which tests write what docs/test-all.md shows of them."""


def needs_set_up(target: str) -> None:
    """Skip the test unless it runs under `make test-TARGET` or `make test-all`, which install what it needs."""
    if os.environ.get(ALL) != "1":
        pytest.skip(
            f"one of those that take minutes, or minutes to set up: make test-{target} (or make test-all)"
        )


def show(text: str) -> None:
    """Say in one line what a test saw: printed (pytest -s), and kept for docs/test-all.md where that is made."""
    print(text)
    if path := os.environ.get(SHOWN):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
