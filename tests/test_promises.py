"""Each promise of docs/reliability.md has a test that `make test` runs; what else shows it is where the table says."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.needs import PART

ROOT = Path(__file__).parents[1]
TARGET = re.compile(r"`make ([a-z-]+)`: ((?:`tests/[^`]+`(?:, )?)*)")


def rows(page: str) -> list[list[str]]:
    """The cells of the table of promises."""
    table = page.partition("## Promises\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in table.splitlines()[3:] if line]


def named(page: str) -> dict[str, set[str]]:
    """The tests that the table names, by the target that runs them.

    Raises:
        AssertionError: a promise without a test in `make test`, or a test of which no target is named.
    """
    targets: dict[str, set[str]] = {"test": set()}
    for promise, tests, others in rows(page):
        here = set(re.findall(r"`(tests/[^`]+)`", tests))
        assert here, f"no test of make test shows this promise: {promise}"
        targets["test"] |= here
        for target, tests_there in TARGET.findall(others):
            targets.setdefault(target, set()).update(re.findall(r"`([^`]+)`", tests_there))
        told = {test for _, those in TARGET.findall(others) for test in re.findall(r"`([^`]+)`", those)}
        assert told == set(re.findall(r"`(tests/[^`]+)`", others)), f"without a target: {promise}"
    return targets


COLLECT = """
import sys
import pytest

class Names:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("test-long" if item.get_closest_marker("long") else "test", item.nodeid)

sys.exit(pytest.main(["--collect-only", "-qq", "-pno:cacheprovider", *sys.argv[1:]], plugins=[Names()]))
"""


@cache
def collected() -> dict[str, str]:
    """The tests in all files of the table, one per line, by the target that runs them."""
    tests = named((ROOT / "docs" / "reliability.md").read_text())
    paths = sorted({test.partition("::")[0] for target in ("test", "test-long") for test in tests[target]})
    command = [sys.executable, "-c", COLLECT, *paths]
    env = {name: value for name, value in os.environ.items() if name != PART}  # else only some long tests are
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^(test|test-long) (.*)$", done.stdout, re.MULTILINE)
    return {
        name: "\n".join(test for target, test in found if target == name) for name in ("test", "test-long")
    }


def missing(tests: set[str], runs: str) -> list[str]:
    """Tests of which not a single one runs."""
    return sorted(
        test for test in tests if not re.search(rf"^{re.escape(test)}(::|\[|/|$)", runs, re.MULTILINE)
    )


def set_up_elsewhere(test: str) -> bool:
    """Whether the body of a test says that another target installs what it needs."""
    path, _, name = test.partition("::")
    source = re.search(
        rf"^(?:async )?def {name}\(.*?(?=^\S|\Z)", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL
    )
    return source is not None and "needs_set_up(" in source[0]


@pytest.mark.parametrize("target", ["test", "test-long"])
def test_each_test_is_run_by_the_target_that_the_table_names(target: str) -> None:
    tests = named((ROOT / "docs" / "reliability.md").read_text())[target]
    assert missing(tests, collected()[target]) == []
    assert [test for test in tests if "::" in test and set_up_elsewhere(test)] == []


def test_the_other_targets_run_the_files_that_the_table_names() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target, tests in named((ROOT / "docs" / "reliability.md").read_text()).items():
        recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        assert recipe is not None, target
        for test in tests if target not in ("test", "test-long") else ():
            assert (ROOT / test.partition("::")[0]).exists(), test
            assert any(test.startswith(word) for word in re.findall(r"tests/\S+", recipe[1])), (
                f"{test}: {target}"
            )


def test_what_the_table_lacks_is_noticed() -> None:
    page = "## Promises\n\n| promise | by | and |\n|---|---|---|\n| It works | {} | {} |\n\n## Next\n"
    assert named(
        page.format("`tests/a.py`", "`make test-mpi`: `tests/b.py::c`, `tests/d.py`; `make bench`: it")
    ) == {
        "test": {"tests/a.py"},
        "test-mpi": {"tests/b.py::c", "tests/d.py"},
        "bench": set(),
    }
    with pytest.raises(AssertionError, match="no test of make test shows this promise: It works"):
        named(page.format("", ""))
    with pytest.raises(AssertionError, match="without a target"):
        named(page.format("`tests/a.py`", "`tests/b.py`"))
    assert missing({"t/a.py::x", "t/a.py", "t/b.py::y"}, "t/a.py::x[1]\nt/b.py::yy\n") == ["t/b.py::y"]
