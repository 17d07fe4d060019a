"""Uneven batches in Lightning Fabric and Accelerate: the scripts of docs/uneven.md."""

import os
from pathlib import Path

import pytest

from tests.support.uneven import ROOT, check_example, run

VENV = ROOT / ".venv-ecosystem"


@pytest.mark.skipif(
    os.environ.get("HET_TEST_ALL") != "1" or not (VENV / ".installed").exists(),
    reason="needs Lightning Fabric and Accelerate: make test-ecosystem",
)
@pytest.mark.parametrize("script", ["with_fabric.py", "with_accelerate.py"])
def test_three_unlike_ranks_train_as_one_process_does(script: str, tmp_path: Path) -> None:
    output = run(tmp_path, script, python=str(VENV / "bin" / "python"))
    check_example(output)
    print(f"{script}: three ranks with unlike shares and one process end with the same parameters")
