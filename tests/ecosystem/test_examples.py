"""Snapshots and uneven batches in Lightning Fabric and Accelerate: their scripts in examples/."""

from pathlib import Path

import pytest

from tests.ecosystem import PYTHON, needs_frameworks
from tests.support.worlds import examples

pytestmark = [
    needs_frameworks,
    pytest.mark.parametrize("script", ["with_fabric.py", "with_accelerate.py"]),
]


def test_an_example_goes_on_from_its_snapshot_in_another_world(script: str, tmp_path: Path) -> None:
    examples.check_example(tmp_path, script, str(PYTHON))


def test_three_unlike_ranks_train_as_one_process_does(script: str, tmp_path: Path) -> None:
    """With unlike shares they end with the same parameters."""
    examples.check_uneven(tmp_path, script, str(PYTHON))
