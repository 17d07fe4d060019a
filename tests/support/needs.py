"""What tests need: programs of the system, or to be run by `make test-all`, since they take minutes to set up."""

import os
import shutil
from pathlib import Path

import pytest

ALL = "HET_TEST_ALL"
SHOWN = "HET_SHOWN"
"""Names the file into which tests write what docs/test-all.md shows of them."""

UNPACKED = Path(__file__).resolve().parents[2] / ".cache" / "debian" / "usr" / "bin"
"""Where `make tools` puts programs whose Debian packages it does not install."""


def program(name: str) -> str | None:
    """The path of a program, installed or unpacked by `make tools`; None if there is none."""
    return shutil.which(name) or shutil.which(name, path=str(UNPACKED))


def needs_set_up(target: str) -> None:
    """Skip the test outside `make test-TARGET` and `make test-all`, which install what it needs."""
    if os.environ.get(ALL) != "1":
        pytest.skip(f"takes minutes, or minutes to set up: make test-{target} (or make test-all)")


def show(text: str) -> None:
    """Report in one line what a test saw: printed (pytest -s), and kept where docs/test-all.md is being written."""
    print(text)
    if path := os.environ.get(SHOWN):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
