"""The core, and the values that it takes and gives, are pure: no clock, no I/O, no framework."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetrdzv.core
import hetrdzv.protocol

CORE, LEAF = Path(hetrdzv.core.__path__[0]), Path(hetrdzv.protocol.__path__[0])
FORBIDDEN = {"time", "random", "asyncio", "os", "socket", "logging", "threading", "datetime", "io", "pathlib"}
FORBIDDEN |= {"subprocess", "uuid", "secrets", "multiprocessing", "selectors"}
OURS = {"hetrdzv", "annotated_types", "typing_extensions"}
NO_VALUES = {"codec.py"}
"""Modules beside the values: what reads and writes them, what looks at connections, and what people read of times."""
EFFECTS = {"open", "print", "input", "exec", "eval", "__import__"}


def impurities(source: str, *, values: bool = False) -> Iterator[str]:
    """What a module must not do, one sentence each; `values` may have bounds of pydantic."""
    allowed = {*sys.stdlib_module_names, *OURS, *(["pydantic"] if values else [])} - FORBIDDEN
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        elif isinstance(node, ast.Name) and node.id in EFFECTS:
            yield f"line {node.lineno} uses {node.id}"
        for name in names:
            if name.split(".")[0] not in allowed or name == "hetrdzv.protocol.codec":
                yield f"line {node.lineno} imports {name}"


@pytest.mark.parametrize("folder", [CORE, LEAF])
def test_modules_are_pure(folder: Path) -> None:
    paths = [path for path in folder.rglob("*.py") if path.name not in NO_VALUES]
    assert len(paths) > 10
    found = {path.name: list(impurities(path.read_text(), values=folder is LEAF)) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}
