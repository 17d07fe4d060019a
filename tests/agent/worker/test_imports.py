"""What runs in the workers' Python finds what it imports there: the standard library, and nothing of ours."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetagent.worker

FOLDER = Path(hetagent.worker.__path__[0])

ALSO = {"horovod_store.py": {"horovod"}}
"""What else a file may import: its agent has checked that it is there, or asks the file to."""


def foreign(source: str, also: frozenset[str] | set[str] = frozenset()) -> Iterator[str]:
    """Imports that the workers' Python may not have, one sentence each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        else:
            continue
        for name in names:
            if name.split(".")[0] not in sys.stdlib_module_names | also:
                yield f"line {node.lineno} imports {name}"


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_workers_import_the_standard_library_only(path: Path) -> None:
    assert list(foreign(path.read_text(), ALSO.get(path.name, set()))) == []
    assert len(list(foreign("import os\ndef f():\n    import numpy as np"))) == 1


def test_no_file_is_named_like_a_module_that_workers_may_import() -> None:
    """Python puts the folder of the file that it runs first in sys.path."""
    names = {path.stem for path in FOLDER.rglob("*.py")}
    assert names.isdisjoint(sys.stdlib_module_names | {"horovod", "torch", "numpy"})
