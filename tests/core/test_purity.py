"""The core, and the values that it takes and gives, are pure: no clock, no I/O, no framework, no import upwards."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetrdzv.core
import hetrdzv.protocol

CORE, LEAF = Path(hetrdzv.core.__path__[0]), Path(hetrdzv.protocol.__path__[0])
FORBIDDEN = {"time", "random", "asyncio", "os", "socket", "logging", "threading", "pydantic", "fastapi"}
FORBIDDEN |= {"datetime", "io", "pathlib", "subprocess", "uuid", "secrets", "multiprocessing", "selectors"}
NO_VALUES = {"codec.py", "keepalive.py", "times.py"}
"""Modules beside the values: what reads and writes them, what looks at connections, and what people read of times."""
VALUES = [path for path in LEAF.rglob("*.py") if path.name not in NO_VALUES]
EFFECTS = {"open", "print", "input", "exec", "eval", "__import__"}


def impurities(source: str, ours: str = "hetrdzv.core.", bounds: str = "annotated_types") -> Iterator[str]:
    """What a module of the core must not do, one sentence each.

    Args:
        ours: the package of which it may import, beside the values.
        bounds: what else it may import for the bounds of fields.
    """
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
            if names == ["hetrdzv"] and [alias.name for alias in node.names] == ["__version__"]:
                continue
        elif isinstance(node, ast.Name) and node.id in EFFECTS:
            yield f"line {node.lineno} uses {node.id}"
        for name in names:
            if f"{name}.".startswith((ours, "hetrdzv.protocol.")) and name != "hetrdzv.protocol.codec":
                continue
            root = name.split(".")[0]
            if root in FORBIDDEN - {bounds} or root not in {
                *sys.stdlib_module_names,
                "annotated_types",
                "typing_extensions",
                bounds,
            }:
                yield f"line {node.lineno} imports {name}"


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: path.name)
def test_module_is_pure(path: Path) -> None:
    assert list(impurities(path.read_text())) == []


@pytest.mark.parametrize("path", sorted(VALUES), ids=lambda path: path.name)
def test_values_import_values_only(path: Path) -> None:
    assert list(impurities(path.read_text(), "hetrdzv.protocol.", "pydantic")) == []


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
        "from hetrdzv.protocol.codec import read",
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
