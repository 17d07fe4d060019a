"""What `make test` leaves out does not rot: long tests take turns, and scripts find what they import."""

import ast
import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest

from tests.support.needs import PARTS, share, turn

ROOT = Path(__file__).parents[1]
OURS = ("hetrdzv", "hetagent", "tests", "benchmarks")


def test_all_parts_together_are_all_long_tests() -> None:
    needs = {
        f"tests/{need}.py::test_{number}": need for need in (None, "mpi", "slurm") for number in range(99)
    }
    parts = [share(needs, f"{number}/{PARTS}") for number in range(1, PARTS + 1)]
    assert sorted(test for part in parts for test in part) == sorted(needs)
    assert max(len({needs[test] for test in part} - {None}) for part in parts) <= 2, (
        "two installations in a turn"
    )
    with pytest.raises(ValueError, match="25/24: give a part such as 3/96, or auto"):
        share(needs, "25/24")
    assert re.fullmatch(rf"\d+/{PARTS}", turn(ROOT))


def missing(path: Path) -> list[str]:
    """Which of our own names a script imports that are not there; other packages need not be installed."""
    absent = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    older = {inner for handler in handlers for inner in ast.walk(handler)}  # as it was in older releases
    for node in ast.walk(tree):
        if node in older:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            wanted = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names if alias.name.partition(".")[0] in OURS]
        else:
            continue
        for module, name in wanted:
            try:
                there = hasattr(importlib.import_module(module), name or "__name__")
                there = there or importlib.util.find_spec(f"{module}.{name}") is not None
            except ModuleNotFoundError as error:
                there = (error.name or "").partition(".")[0] not in OURS
            if not there:
                absent.append(f"{path.relative_to(ROOT)}: {module}.{name}")
    return absent


def test_scripts_find_what_they_import_from_us() -> None:
    """Also those of benchmarks, frameworks and deployment, which only other targets run."""
    folders = ("tests", "benchmarks", "deploy", "docs", "examples")
    scripts = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert [name for script in scripts for name in missing(script)] == []


def test_what_the_makefile_starts_is_there() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    paths = set(re.findall(r"(?<![\w./])((?:tests|docs|deploy|examples)/[\w/.-]+)", text))
    modules = set(re.findall(r"python -m ((?:tests|benchmarks)\.\w+)", text))
    assert paths
    assert modules
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert [module for module in sorted(modules) if importlib.util.find_spec(module) is None] == []
