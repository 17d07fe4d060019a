"""The core is pure: it imports no clock, no I/O and no framework, and prints and opens nothing."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetrdzv.core

CORE = Path(hetrdzv.core.__path__[0])
FORBIDDEN = {"time", "random", "asyncio", "os", "socket", "logging", "threading", "pydantic", "fastapi"}
FORBIDDEN |= {"datetime", "io", "pathlib", "subprocess", "uuid", "secrets", "multiprocessing", "selectors"}
SHARED = ("errors", "addresses", "differences", "ids", "parts", "reasons", "stalls", "who")
WORDS = ("phrasing", "stalls", "why")
"""Until events and causes are values, too, the core words them itself."""
ALLOWED = (
    "hetrdzv.core",
    "hetrdzv.protocol",
    "hetrdzv.words",
    *(f"hetrdzv.protocol.{name}" for name in SHARED),
    *(f"hetrdzv.words.{name}" for name in WORDS),
)
PURE = [*CORE.rglob("*.py"), *(CORE.parent / "protocol" / f"{name}.py" for name in SHARED)]
EFFECTS = {"open", "print", "input", "exec", "eval", "__import__"}


def impurities(source: str) -> Iterator[str]:
    """What a module of the core must not do, one sentence each."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        elif isinstance(node, ast.Name) and node.id in EFFECTS:
            yield f"line {node.lineno} uses {node.id}"
        for name in names:
            if name in ALLOWED or name.startswith("hetrdzv.core."):
                continue
            root = name.split(".")[0]
            if root in FORBIDDEN or root not in sys.stdlib_module_names:
                yield f"line {node.lineno} imports {name}"


@pytest.mark.parametrize("path", sorted(PURE), ids=lambda path: path.name)
def test_module_is_pure(path: Path) -> None:
    assert list(impurities(path.read_text())) == []


def test_all_modules_are_seen() -> None:
    assert {"group.py", "settle.py", "model.py"} <= {path.name for path in CORE.rglob("*.py")}


@pytest.mark.parametrize(
    "bad",
    [
        "import time",
        "import os.path",
        "from random import choice",
        "def f():\n    import asyncio",
        "from pydantic import BaseModel",
        "import torch",
        "from hetrdzv.service.service import Service",
        "from . import model",
        "def f(): print('x')",
        "open('x')",
        "from datetime import datetime",
    ],
)
def test_impurity_is_found(bad: str) -> None:
    assert list(impurities(bad))


def test_no_private_names_cross_modules() -> None:
    crossing = [
        f"{path.name}: {alias.name}"
        for path in CORE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert crossing == []
