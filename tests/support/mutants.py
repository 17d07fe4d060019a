"""Breaks a copy of the code on purpose, one line at a time, to show that tests notice.

tests/core/mutants.py and tests/sim/mutants.py hold the lists, and what to run against the copy.
"""

import argparse
import ast
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = "rendezvous/hetrdzv/core"


@dataclass(frozen=True)
class Mutant:
    """One change that breaks something: `old` becomes `new` in a file."""

    what: str
    file: str
    old: str
    new: str


@contextmanager
def copied(*parts: str) -> Iterator[Path]:
    """Copy some files and folders of the project; gone after the block."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for part in parts:
            (home / part).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, home / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / part, home / part)
        yield home


@contextmanager
def broken(mutant: Mutant, home: Path) -> Iterator[None]:
    """Break a copy for the length of a block."""
    path = home / mutant.file
    source = path.read_text()
    assert mutant.old in source, f"{mutant.what}: {mutant.file} no longer has that line"
    changed = source.replace(mutant.old, mutant.new)
    ast.parse(changed, mutant.what)  # any test would notice a syntax error
    path.write_text(changed)
    try:
        yield
    finally:
        path.write_text(source)


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment in which Python imports the copy."""
    path = f"{home / 'rendezvous'}:{home / 'agent'}"
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with `--only`."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--only", default=".", help="mutants whose name matches this pattern")
    return made


def report(
    mutants: Iterable[Mutant], only: str, home: Path, columns: str, seek: Callable[[], tuple[bool, str]]
) -> int:
    """Print a row for every mutant: what was broken, what `seek` found, how long it took.

    Args:
        seek: runs against the broken copy; returns whether it noticed, and the cells of its columns.

    Returns:
        the exit status: 1 if a mutant survived.
    """
    survived = 0
    print(f"| mutant | {columns} | s |\n|{'---|' * (columns.count('|') + 3)}")
    for mutant in mutants:
        if not re.search(only, mutant.what):
            continue
        began = time.monotonic()
        with broken(mutant, home):
            noticed, cells = seek()
        survived += not noticed
        print(f"| {mutant.what} | {cells} | {time.monotonic() - began:.1f} |", flush=True)
    return 1 if survived else 0
