"""What `make test` leaves out does not rot: long tests take turns, and scripts find what they import."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.support.needs import LONG, PART, PARTS, set_up, share, turn

ROOT = Path(__file__).parents[1]
TESTS = [f"tests/{file}.py::test_{number}" for file in "abc" for number in range(9)]
NEEDS = dict.fromkeys(TESTS)
OURS = ("hetrdzv", "hetagent", "tests", "benchmarks")


def test_all_parts_together_are_all_long_tests() -> None:
    needs = NEEDS | {
        f"tests/{need}.py::test_{number}": need for need in ("mpi", "slurm") for number in range(11)
    }
    parts = [share(needs, f"{number}/{PARTS}") for number in range(1, PARTS + 1)]
    assert sorted(test for part in parts for test in part) == sorted(needs)
    assert max(len({needs[test] for test in part} - {None}) for part in parts) == 1, (
        "one installation in a turn"
    )


def test_launch_styles_have_their_turns() -> None:
    """Open MPI, Slurm, Horovod and the commands of docs/launch.md: nobody ran them, and they rotted."""
    places = ["tests/mpi", "tests/slurm", "tests/horovod", "tests/e2e/test_launch_docs.py"]
    words = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", "slow and not long", *places]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", PART))
    }
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout


def test_a_turn_installs_what_its_tests_need_once(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("open-mpi horovod:\n\techo $@ >> made\n")
    made = tmp_path / "made"
    for _ in range(2):
        set_up("open-mpi", tmp_path)
        set_up("horovod", tmp_path)
    assert made.read_text() == "open-mpi\n", "Horovod takes minutes to build"
    torch = importlib.metadata.version("torch").replace("+", ".")
    wheel = tmp_path / ".cache" / "wheels" / f"horovod-1+torch{torch}-cp311.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    set_up.cache_clear()
    set_up("horovod", tmp_path)
    assert made.read_text() == "open-mpi\nhorovod\n"


def test_files_that_were_changed_run_besides() -> None:
    part = share(NEEDS, "3/10")
    assert share(NEEDS, "3/10,tests/b.py") - part == set(TESTS[9:11]) - part
    assert share(NEEDS, "3/10,tests/gone.py") == part


@pytest.mark.parametrize("part", ["0/10", "11/10", "3", "next"])
def test_what_is_no_part_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match=f"{part}: give a part such as 3/24, or auto"):
        share(NEEDS, part)


def test_every_commit_has_a_turn_also_in_a_shallow_clone(tmp_path: Path) -> None:
    def git(folder: Path, *words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)

    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    (whole / "tests").mkdir(parents=True)
    git(whole, "init")
    turns = []
    for number in range(PARTS):
        (whole / "tests" / f"test_{number}.py").write_text("@pytest.mark.long\n" * (number % 2))
        git(whole, "add", ".")
        git(whole, "commit", "-m", str(number))
        turns.append(turn(whole).split(",")[0])
    assert len(set(turns)) == PARTS
    assert sorted(turn(whole).split(",")[1:]) == sorted(f"tests/test_{n}.py" for n in range(1, PARTS, 2))
    git(tmp_path, "clone", "--depth", "1", f"file://{whole}", str(shallow))
    assert re.fullmatch(rf"\d+/{PARTS}", turn(shallow))
    assert re.fullmatch(rf"\d+/{PARTS}", turn(tmp_path)), "no repository, as in an unpacked archive"


def test_long_tests_end_with_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PART, "3/24")
    monkeypatch.setenv(LONG, "60")
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    monkeypatch.setattr(conftest, "took_s", [])
    item: Any = SimpleNamespace(get_closest_marker=lambda name: name if name == "long" else None)
    for took_s, keywords in ((15.0, {"long"}), (90.0, {}), (5.0, {"long"})):
        conftest.pytest_runtest_setup(item)
        report: Any = SimpleNamespace(keywords=keywords, duration=took_s)
        conftest.pytest_runtest_logreport(report)
    conftest.pytest_runtest_setup(item)
    conftest.took_s.append(0.1)
    with pytest.raises(pytest.skip.Exception, match="make test-long PART=3/24"):
        conftest.pytest_runtest_setup(item)


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
