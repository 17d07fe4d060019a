"""Each promise of docs/reliability.md has a test that `make test` runs; what else shows it is where the table says."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

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


LONG = re.compile(r"\bmark\.long\b")


def targets_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Which targets run a test: the ordinary ones, the long ones, or some of its cases each."""
    targets = {"test"}
    for decorator in test.decorator_list:
        if not LONG.search(ast.unparse(decorator)):
            continue
        if not isinstance(decorator, ast.Call) or not isinstance(decorator.args[-1], ast.List):
            return {"test-long"}
        long = [LONG.search(ast.unparse(case)) is not None for case in decorator.args[-1].elts]
        targets = (targets - {"test"} if all(long) else targets) | {"test-long"}
    return targets


@cache
def collected() -> dict[str, str]:
    """The tests in all files of the table, one per line, by the target that runs them."""
    tests = named((ROOT / "docs" / "reliability.md").read_text())
    places = sorted(
        {ROOT / test.partition("::")[0] for target in ("test", "test-long") for test in tests[target]}
    )
    found: dict[str, list[str]] = {"test": [], "test-long": []}
    for path in [path for place in places for path in sorted(place.rglob("test_*.py")) or [place]]:
        tree = ast.parse(path.read_text())
        marks = [ast.unparse(node) for node in tree.body if ast.unparse(node).startswith("pytestmark = ")]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for target in {"test-long"} if any(map(LONG.search, marks)) else targets_of(node):
                    found[target].append(f"{path.relative_to(ROOT)}::{node.name}")
            elif ast.unparse(node).startswith("Test"):  # of hypothesis
                found["test"].append(f"{path.relative_to(ROOT)}::")
    return {target: "\n".join(names) for target, names in found.items()}


def missing(tests: set[str], runs: str) -> list[str]:
    """Tests of which not a single one runs."""
    return sorted(
        test for test in tests if not re.search(rf"^{re.escape(test)}(::|\[|/|$)", runs, re.MULTILINE)
    )


@pytest.mark.parametrize("target", ["test", "test-long"])
def test_each_test_is_run_by_the_target_that_the_table_names(target: str) -> None:
    tests = named((ROOT / "docs" / "reliability.md").read_text())[target]
    assert missing(tests, collected()[target]) == []


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
