"""What tests need: programs of the system, or to be run by `make test-all`, since they take minutes to set up."""

import fcntl
import importlib
import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ALL = "HET_TEST_ALL"
PART = "HET_TEST_PART"
"""Which of the long tests run: `3/24`, and after commas files whose long tests run, too; `auto`: what `turn` says."""

LONG = "HET_TEST_LONG_S"
"""For how long the tests of a part may take, all together (seconds); those that are left then are skipped."""

AUTO_LONG_S = 20.0
"""That of `auto`: a third of it beside the other tests."""

PARTS = 24
"""A part takes about 80 s, most of them waiting."""

TOGETHER = 3
"""Of the tests for which something is installed, so many are in a part, all with the same need: most turns then install
one thing or nothing."""

AT_MOST = 2
"""Of the long tests in files that a commit has changed, so many run besides (the first of each file, then more)."""

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
    """The part whose turn it is at this commit, and the test files that were changed in the day before it.

    It goes by the number of commits; in a shallow clone, which does not know it, by the commit's hash.
    """

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    head = git("rev-parse", "HEAD")
    if git("rev-parse", "--is-shallow-repository") == "false":
        number = int(git("rev-list", "--count", "HEAD"))
        day = int(git("log", "-1", "--format=%ct")) - 24 * 3600
        names = git("log", f"--since={day}", "--name-only", "--format=", "--", "tests/*.py").splitlines()
        there = [name for name in set(names) if (root / name).exists()]
        changed = sorted(name for name in there if "pytest.mark.long" in (root / name).read_text("utf-8"))
    else:
        number, changed = int(head or "0", 16), []
    return ",".join([f"{number % PARTS + 1}/{PARTS}", *changed])


def share(needs: Mapping[str, str | None], part: str) -> set[str]:
    """Those of all long tests that a part contains: every sixteenth, say, and some in each file that is named.

    Args:
        needs: for each test, what is installed for it (a target of make); None: nothing.

    Raises:
        ValueError: it is no part.
    """
    which, *files = part.split(",")
    try:
        number, parts = (int(word) for word in which.split("/"))
    except ValueError:
        number, parts = 0, 0
    if not 1 <= number <= parts:
        raise ValueError(f"{PART}={part}: give a part such as 3/{PARTS}, or auto")
    tests = sorted(needs)
    ordinary = [test for test in tests if needs[test] is None]
    others = [
        [test for test in tests if needs[test] == need]
        for need in sorted({*needs.values()} - {None}, key=str)
    ]
    blocks = [same[at : at + TOGETHER] for same in others for at in range(0, len(same), TOGETHER)]
    files = files[number:] + files[:number]  # where there are many, each has its turn, too
    of_files = [[test for test in tests if test.startswith(f"{file}::")] for file in files]
    besides = [of_file[at] for at in range(len(tests)) for of_file in of_files if at < len(of_file)]
    in_turn = [
        *ordinary[number - 1 :: parts],
        *(test for block in blocks[number - 1 :: parts] for test in block),
    ]
    return {*in_turn, *besides[:AT_MOST]}
