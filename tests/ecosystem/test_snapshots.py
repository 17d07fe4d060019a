"""Snapshots in Lightning Fabric and Accelerate: the scripts of examples/snapshots."""

import os
from pathlib import Path

import pytest

from tests.support.worlds.examples import ROOT, check_example

VENV = ROOT / ".venv-ecosystem"


@pytest.mark.skipif(
    os.environ.get("HET_TEST_ALL") != "1" or not (VENV / ".installed").exists(),
    reason="needs Lightning Fabric and Accelerate: make test-ecosystem",
)
@pytest.mark.parametrize("script", ["with_fabric.py", "with_accelerate.py"])
def test_an_example_goes_on_from_its_snapshot_in_another_world(script: str, tmp_path: Path) -> None:
    check_example(tmp_path, script, str(VENV / "bin" / "python"))
