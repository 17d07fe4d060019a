"""What tests need: programs of the system, or to be run by `make test-all`, since they take minutes to set up."""

import fcntl
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ALL = "HET_TEST_ALL"
PART = "HET_TEST_PART"
"""Which of the long tests run: `3/96`; `auto`: what `turn` says."""

PARTS = 96
"""A part takes about 20 s, most of them waiting."""

UNPACKED = ROOT / ".cache" / "debian" / "usr" / "bin"
"""Where `make tools` puts programs whose Debian packages it does not install."""


def program(name: str) -> str | None:
    """The path of a program, installed or unpacked by `make tools`; None if there is none."""
    return shutil.which(name) or shutil.which(name, path=str(UNPACKED))


def needs_set_up(target: str) -> None:
    """Skip the test outside `make test-TARGET` and `make test-all`, which install what it needs."""
    if os.environ.get(ALL) != "1":
        pytest.skip(f"takes minutes, or minutes to set up: make test-{target} (or make test-all)")


@cache
def set_up(target: str, root: Path = ROOT) -> None:
    """Have make install what tests need; where it cannot, they skip themselves. Horovod only where it is built."""
    torch = importlib.metadata.version("torch").replace("+", ".")
    if target == "horovod" and not [*root.glob(f".cache/wheels/horovod-*+torch{torch}-*.whl")]:
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    with (root / "Makefile").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # pytest-xdist has several processes
        subprocess.run(["make", "--no-print-directory", target], cwd=root, env=environment, check=False)
    importlib.invalidate_caches()


def turn(root: Path) -> str:
    """The part whose turn it is at this commit: by the number of commits, or its hash in a shallow clone."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    shallow = git("rev-parse", "--is-shallow-repository") != "false"
    number = int(git("rev-parse", "HEAD") or "0", 16) if shallow else int(git("rev-list", "--count", "HEAD"))
    return f"{number % PARTS + 1}/{PARTS}"


def share(needs: Mapping[str, str | None], part: str) -> set[str]:
    """Those of all long tests that a part contains. Those with the same need are together: most turns install little.

    Args:
        needs: for each test, what is installed for it (a target of make); None: nothing.

    Raises:
        ValueError: it is no part.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    number, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= parts:
        raise ValueError(f"{PART}={part}: give a part such as 3/{PARTS}, or auto")
    ordinary = sorted(test for test in needs if needs[test] is None)
    others = sorted((need, test) for test, need in needs.items() if need is not None)
    first, last = (len(others) * place // parts for place in (number - 1, number))
    return {*ordinary[number - 1 :: parts], *(test for _, test in others[first:last])}
