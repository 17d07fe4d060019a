"""What runs in the workers' Python finds what it imports there: the standard library, and nothing of ours."""

import re
import sys
from pathlib import Path

import pytest

import hetagent.worker

FOLDER = Path(hetagent.worker.__path__[0])

ALSO = {"horovod_store.py": {"horovod"}}
"""What else a file may import: its agent has checked that it is there, or asks the file to."""


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_workers_import_the_standard_library_only(path: Path) -> None:
    names = re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names | ALSO.get(path.name, set())


def test_no_file_is_named_like_a_module_that_workers_may_import() -> None:
    """Python puts the folder of the file that it runs first in sys.path."""
    names = {path.stem for path in FOLDER.rglob("*.py")}
    assert names.isdisjoint(sys.stdlib_module_names | {"horovod", "torch", "numpy"})
